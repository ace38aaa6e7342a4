"""The rule that names a mechanism, with its argument; tests/intervene/test_ground_truth.py has its ground truth.

**Where is the key?** A corrupted key makes the answer unlikely. At the input of a layer, all that later layers know of
the key stands at positions from the key on. They are of three kinds: the key itself, what lies *between* key and query,
and the *question* (the query, up to the prediction). Each kind is replaced as a whole, so no position is left out:
*restoring* (a clean activation in the corrupted run) shows what is sufficient, *destroying* (a corrupted one in the
clean run) what is necessary. Before the first layer the key's identity is at the key; after the last it has become the
answer, at the question. If it is found in between, some layer has stored it there.

**Where is the value?** The same with the value corrupted tells *what* from *where*: if the key's identity is at the
question and nothing of the value's is, the question holds a pointer to the pair, and a later layer fetches the value.
(Trained models often use the value at both places: they retrieve it, and check that it occurs in the document.)

**How do they meet inside one layer?** If no layer stores the key, one layer takes it from the key to the question.
Inside it, some activation may hold the key's identity *between* key and query: something has moved it there before the
layer retrieves, by a short convolution or a shift, whatever it is called.

| key at the inputs of layers | value | name |
|---|---|---|
| key .., between .., question .. | reaches the question with the key | induction |
| key .., question .. | with the key; inside the layer, the key is between first | association by short convolution |
| key .., question .. | with the key | direct retrieval |
| .., question .. | later than the key | pointer |
| two kinds, each sufficient, neither necessary | | redundant |
| two kinds, both necessary, neither sufficient | | jointly necessary |
| two kinds, each in part | | mixed |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mecheval.errors import UserError
from mecheval.sites import Site
from mecheval.types import FRAMED, RANDOM, Meaning

Label = Literal[
    "induction", "direct_retrieval", "conv_association", "pointer", "redundant", "joint", "mixed", "not_learnt",
    "undetermined",
]  # fmt: skip


class Cell(NamedTuple):
    """One intervention of the evidence."""

    site: str
    role: str
    corruption: str = "key"
    direction: str = "restore"


@dataclass(frozen=True)
class Rule:
    """The thresholds of the verdict."""

    learnt: float = 0.05  # original minus corrupted likelihood from which there is something to explain
    carries: float = 0.5  # share from which a place carries an identity, or is necessary
    trace: float = 0.2  # share from which a place takes part in carrying it
    enough: float = 0.8  # share from which a place alone is sufficient
    agreement: float = 0.95  # share of resamples that must give the same finding
    alone: float = 0.9  # part of what all positions between key and query restore that one of them does by itself
    documents: int = 16  # fewer documents than this have no verdict, nor do fewer than a quarter as many that count


@dataclass(frozen=True)
class Finding:
    """What one set of shares says."""

    label: Label
    layer: int | None = None  # that retrieves
    stored_by: int | None = None  # layer, in induction
    stored_at: str | None = None  # role, in induction: the one that restores most
    found_by: int | None = None  # layer that finds the pair, of a pointer
    places: tuple[str, ...] = field(default=(), compare=False)  # all roles that hold the key, most important first
    how: Literal["", "either", "split", "joint"] = field(default="", compare=False)  # they do, where there are several
    reason: str = field(default="", compare=False)  # why there is no name, or what is beside the name
    meaning: Meaning = field(default=FRAMED, compare=False)  # what key and value are called

    @property
    def name(self) -> tuple[str, int | None, int | None, int | None]:
        """What resamples must agree on: the label and its layers."""
        return self.label, self.layer, self.stored_by, self.found_by

    def __str__(self) -> str:
        stored = _stored(self.places or ((self.stored_at,) if self.stored_at else ()), self.how)
        key, value = words(self.meaning.key), words(self.meaning.value)
        text = {
            "induction": f"induction: layer {self.stored_by} stores the {key} at {stored}, "
            f"layer {self.layer} retrieves",
            "direct_retrieval": f"direct retrieval: layer {self.layer} both associates and retrieves",
            "conv_association": f"association by short convolution: layer {self.layer} joins {key} and {value}"
            f"{f' at {stored}' if self.places else ' with its short convolution'}, then retrieves",
            "pointer": f"pointer: layer {self.found_by} finds the pair, layer {self.layer} fetches its {value}",
            "redundant": "redundant: more than one place holds the association, and each is enough",
            "joint": "jointly necessary: more than one place holds the association, and all are needed",
            "mixed": "mixed: more than one place carries a part of the association",
            "not_learnt": "not learnt" if self.reason else "not learnt: nothing is recalled beyond chance",
            "undetermined": "undetermined",
        }[self.label]
        joined = ", " if self.label in ("redundant", "joint", "mixed") else ": "
        return f"{text}{joined}{self.reason}" if self.reason else text


def _stored(places: Sequence[str], how: str) -> str:
    named = [f"the {words(role)}" for role in places]
    if len(named) < 2:
        return named[0] if named else "several positions"
    joined = {"either": " and again at ", "split": " or at ", "joint": " and at "}[how or "split"].join(named)
    return joined + {"either": " (redundant: either is enough)", "joint": " (jointly necessary)"}.get(how, "")


def words(role: str | None) -> str:
    """A role for people."""
    known = {"next_key": "position after the value", "others": "other positions between key and query"}
    base, _, steps = str(role).partition("+")
    if steps in ORDINALS:
        return f"{ORDINALS[steps]} position after the {words(base)}"
    return known.get(str(role), str(role).replace("_", " "))


ORDINALS = {"1": "first", "2": "second", "3": "third"}


@dataclass(frozen=True)
class Depths:
    """The sites that decide, by depth: the inputs of layers 1, 2, ..., and what can be replaced inside every layer."""

    boundaries: tuple[str, ...]
    inside: tuple[tuple[str, ...], ...]

    @property
    def sites(self) -> list[str]:
        """All of them."""
        return [*self.boundaries, *(site for layer in self.inside for site in layer)] or [Site(0, "input", "stream")]


def depths_of(sites: Iterable[Site]) -> Depths:
    """The sites that decide among all sites of a model."""
    there = list(dict.fromkeys(sites))
    layers = 1 + max((site.block for site in there if site.block is not None), default=-1)
    if not layers:
        raise UserError("verdict: name the boundaries between layers; these sites are in no layer.")
    inputs = {site.block: site for site in there if site.kind == "stream" and site.part == "input"}
    inside = [
        tuple(site for site in there if site.block == i and site.kind in ("short_conv", "inside"))
        for i in range(layers)
    ]
    return Depths(tuple(inputs.get(layer, Site(layer, "input", "stream")) for layer in range(1, layers)), tuple(inside))


Shares = Mapping[Cell, float]
"""What each intervention restores or destroys, as a share of what the corruption loses; NaN where not measured."""


def held_at(share: Shares, site: str, rule: Rule, kinds: Sequence[str]) -> str:
    """The kind of positions at which the key's identity is at a site, or redundant, joint, mixed or undetermined."""
    restored = {kind: share[Cell(site, kind)] for kind in kinds}
    destroyed = {kind: share[Cell(site, kind, direction="destroy")] for kind in kinds}
    enough = [kind for kind in kinds if restored[kind] >= rule.enough]
    part = [kind for kind in kinds if restored[kind] >= rule.trace]
    if len(enough) > 1 and all(destroyed[kind] < rule.carries for kind in enough):
        return "redundant"
    needed = [kind for kind in kinds if destroyed[kind] >= rule.enough]
    if len(needed) > 1 and all(restored[kind] < rule.carries for kind in kinds):
        return "joint"
    if len(part) > 1:
        return "mixed"
    if not part or restored[part[0]] < rule.carries:
        return "undetermined"
    return part[0] if destroyed[part[0]] >= rule.trace else "mixed"


def route(share: Shares, depths: Depths, rule: Rule, meaning: Meaning = FRAMED) -> Finding | list[str]:
    """The kind of positions that holds the key at each boundary; a finding where there is no single one."""
    path = []
    for layer, site in enumerate(depths.boundaries, start=1):
        kind = held_at(share, site, rule, meaning.kinds)
        if kind == "undetermined":
            return Finding(
                "undetermined",
                reason=f"at the input of layer {layer} no kind of positions holds the {words(meaning.key)}",
            )
        if kind not in meaning.kinds:
            return Finding(kind, reason=f"at the input of layer {layer}")  # type: ignore[arg-type]
        path.append(kind)
    if path != sorted(path, key=meaning.kinds.index):
        return Finding("undetermined", reason=f"the {words(meaning.key)} seems to move back from layer to layer")
    return path


def retrieving(path: Sequence[str]) -> int:
    """The layer after which the key's identity is at the question."""
    return path.index("question") if "question" in path else len(path)


def judge(share: Shares, depths: Depths, rule: Rule, inner: str | None = None, meaning: Meaning = FRAMED) -> Finding:
    """The mechanism behind these shares; `inner` is the site inside the retrieving layer that holds the key first."""
    path = route(share, depths, rule, meaning)
    if isinstance(path, Finding):
        return path
    layer = retrieving(path)
    for before, site in enumerate(depths.boundaries[:layer], start=1):
        if share[Cell(site, "question", "value")] >= rule.carries:
            key, value = words(meaning.key), words(meaning.value)
            reason = f"the {value} reaches the question in layer {before - 1}, before the {key} does in layer {layer}"
            return Finding("undetermined", reason=reason)
    fetches = layer
    for site in depths.boundaries[layer:]:  # where the question knows which pair is meant
        missing = share[Cell(site, "question", "value")] < rule.trace
        if not (missing and share[Cell(site, "body", "value")] >= rule.carries):
            break
        fetches += 1
    if fetches > layer:
        return Finding("pointer", layer=fetches, found_by=layer, meaning=meaning)
    if "between" in path:
        stored_by = path.index("between")
        places, how = stores(share, depths.boundaries[stored_by], rule, meaning)
        first = places[0] if places else "others"
        return Finding("induction", layer, stored_by, first, places=places, how=how, meaning=meaning)
    if inner is not None and share[Cell(inner, "between")] >= rule.carries:
        places, how = stores(share, inner, rule, meaning)
        return Finding("conv_association", layer, places=places, how=how, meaning=meaning)
    if inner is not None and share[Cell(inner, "between")] >= rule.trace:
        key, query = words(meaning.key), words(meaning.query)
        return Finding("undetermined", reason=f"inside layer {layer}, a part of the {key} is between {key} and {query}")
    return Finding("direct_retrieval", layer)


def stores(
    share: Shares, site: str, rule: Rule, meaning: Meaning
) -> tuple[tuple[str, ...], Literal["", "either", "split", "joint"]]:
    """The roles between key and query that hold the key at a site, and how they share the work."""
    whole, no_store = share[Cell(site, "between")], (*meaning.kinds, meaning.query, RANDOM)
    alone = {cell.role: value / whole for cell, value in share.items()
             if cell.site == site and (cell.corruption, cell.direction) == ("key", "restore")
             and cell.role not in no_store and value == value}  # fmt: skip
    ranked = sorted(alone, key=lambda role: -alone[role])
    enough = [role for role in ranked if alone[role] >= rule.alone]
    if enough:
        return tuple(enough), "either" if len(enough) > 1 else ""
    part = [role for role in ranked if alone[role] >= rule.trace / 2]
    if sum(alone[role] for role in part) >= rule.enough:
        return tuple(part), "split"
    needed = {cell.role: value for cell, value in share.items()
              if cell.site == site and (cell.corruption, cell.direction) == ("key", "destroy")
              and cell.role not in no_store and value >= rule.carries}  # fmt: skip
    return tuple(sorted(needed, key=lambda role: -needed[role])), "joint"
