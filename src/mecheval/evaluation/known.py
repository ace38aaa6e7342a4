"""Hand-set models whose mechanism is known, each with the finding that a verdict on it must give."""

from __future__ import annotations

from typing import Any, NamedTuple

from mecheval.intervene.finding import Finding


class Known(NamedTuple):
    """A hand-set model and its mechanism."""

    recipe: str
    options: dict[str, Any]  # options of `handmade`
    finding: Finding
    stores: tuple[str, ...] = ()  # all roles that hold the whole key, if there are several

    @property
    def title(self) -> str:
        return " ".join([self.recipe, *(f"{name}={value}".replace(" ", "") for name, value in self.options.items())])

    def agrees(self, found: Finding) -> bool:
        """Whether a finding is right: its label, its layers and, in induction, a place where the key is stored."""
        return found.name == self.finding.name and found.stored_at in (self.finding.stored_at, *self.stores)


INDUCTION = Finding("induction", layer=1, stored_by=0, stored_at="value")
MECHANISMS = (
    Known("induction", {}, INDUCTION),
    Known("induction", {"layer": (0, 1), "n_layers": 3}, INDUCTION),
    Known("induction", {"layer": (1, 2), "n_layers": 3}, Finding("induction", 2, 1, "value")),
    Known("induction", {"layer": (0, 2), "n_layers": 3}, Finding("induction", 2, 0, "value")),  # idle in the middle
    *(Known("conv_direct", {"layer": i, "n_layers": n}, Finding("conv_association", i)) for n in (1, 3)
      for i in range(n)),
    *(Known("conv_direct", {"offset": i}, Finding("conv_association", 0)) for i in range(4)),
    *(Known("direct", {"layer": i}, Finding("direct_retrieval", i)) for i in range(2)),
    Known("pointer", {}, Finding("pointer", 1, found_by=0)),
    Known("pointer", {"layer": (0, 2), "n_layers": 3}, Finding("pointer", 2, found_by=0)),
    Known("redundant", {}, Finding("redundant")),
    Known("joint", {}, Finding("joint")),
    Known("mixture", {}, Finding("mixed")),
    Known("two_stores", {}, INDUCTION, ("value", "next_key")),
    Known("divider_store", {}, Finding("induction", 1, 0, "divider")),
    Known("split_store", {}, INDUCTION),
    Known("split_store", {"share": 0.8}, INDUCTION),
    Known("conv_attention", {}, Finding("induction", 1, 0, "value+2")),
    Known("conv_attention", {"offset": 1}, Finding("induction", 1, 0, "next_key")),
    Known("token_shift", {}, Finding("conv_association", 0)),
    Known("token_shift", {"layer": 1}, Finding("conv_association", 1)),
    Known("foo", {}, Finding("conv_association", 0)),
)  # fmt: skip
"""Models that recall, each by another mechanism."""
GUESSERS = tuple(Known(name, {}, Finding("not_learnt")) for name in ("guesser", "present_guesser", "stored_guesser"))
"""Models that only guess among a document's values."""
