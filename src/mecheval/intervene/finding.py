"""What a verdict finds: the name of a mechanism with its layers and places, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mecheval.types import FRAMED, Meaning, spoken

Label = Literal[
    "induction", "direct_retrieval", "conv_association", "pointer", "redundant", "joint", "mixed", "not_learnt",
    "undetermined",
]  # fmt: skip


NO_NAME: tuple[Label, ...] = ("not_learnt", "undetermined")
"""Labels that name no mechanism."""


@dataclass(frozen=True)
class Finding:
    """The mechanism that one set of shares shows."""

    label: Label
    layer: int | None = None  # the layer that retrieves
    stored_by: int | None = None  # in induction, the layer that stores
    stored_at: str | None = None  # in induction, the role that restores most
    found_by: int | None = None  # for a pointer, the layer that finds the pair
    places: tuple[str, ...] = field(default=(), compare=False)  # all roles that hold the key, most important first
    how: Literal["", "either", "split", "joint"] = field(default="", compare=False)  # how several places share the key
    reason: str = field(default="", compare=False)  # why no mechanism is named, or what is special about it
    meaning: Meaning = field(default=FRAMED, compare=False)  # what key and value are called

    @property
    def name(self) -> tuple[str, int | None, int | None, int | None]:
        """The label and its layers, on which resamples must agree."""
        return self.label, self.layer, self.stored_by, self.found_by

    @property
    def local(self) -> bool:
        """Whether all roles that hold the key are within reach of a short convolution."""
        near = (self.meaning.key, self.meaning.value)
        return bool(self.places) and all(place.partition("+")[0] in (*near, "next_key") for place in self.places)

    def __str__(self) -> str:
        stored = _stored(self.places or ((self.stored_at,) if self.stored_at else ()), self.how, self.meaning)
        key, value = words(self.meaning.key), words(self.meaning.value)
        what = value if self.stored_at == self.meaning.key else key
        layer, stores, finds = (_layer(each) for each in (self.layer, self.stored_by, self.found_by))
        text = {
            "induction": f"induction: {stores} stores the {what} {stored}, {layer} retrieves",
            "direct_retrieval": f"direct retrieval: {layer} both associates and retrieves",
            "conv_association": f"association {'by short convolution' if self.local else 'inside one layer'}: "
            f"{layer} joins {key} and {value} {stored}, then retrieves",
            "pointer": f"pointer: {finds} finds the pair, {layer} fetches its {value}",
            "redundant": "redundant",
            "joint": "jointly necessary",
            "mixed": "mixed",
            "not_learnt": "not learnt",
            "undetermined": "undetermined",
        }[self.label]
        reason = self.reason or SEVERAL.get(self.label, "")
        return f"{text}: {reason}" if reason else text


def _layer(number: int | None) -> str:
    """A layer in words; verdicts of an earlier version do not say which."""
    return "a layer" if number is None else f"layer {number}"


SEVERAL: Mapping[str, str] = {
    "redundant": "more than one place holds the association, and each is enough",
    "joint": "more than one place holds the association, and all are needed",
    "mixed": "more than one place carries a part of the association",
    "not_learnt": "nothing is recalled beyond chance",
}
"""The default reason for each of these labels."""


def _stored(places: Sequence[str], how: str, meaning: Meaning) -> str:
    named = [f"at the {words(role, meaning)}" for role in places]
    if len(named) < 2:
        return named[0] if named else "at several positions"
    if how in ("", "split"):
        return " and ".join(f"partly {place}" for place in named)
    each = "either" if len(named) == 2 else "each"
    joined = {"either": " and again ", "joint": " and "}[how].join(named)
    return joined + {"either": f" (redundant: {each} is enough)", "joint": " (jointly necessary)"}[how]


def words(role: str | None, meaning: Meaning = FRAMED) -> str:
    """A role in words, with the names that the task uses."""
    key, value, query = (spoken(str(name)) for name in (meaning.key, meaning.value, meaning.query))
    known = {"next_key": f"position after the {value}", "others": f"other positions between {key} and {query}"}
    if str(role).endswith("-1"):
        return f"position before the {words(str(role)[:-2], meaning)}"
    base, _, steps = str(role).partition("+")
    if steps in ("1", "2", "3"):
        return f"{('first', 'second', 'third')[int(steps) - 1]} position after the {words(base, meaning)}"
    return known.get(str(role), spoken(str(role)))
