"""The rule that turns restored shares into the name of a mechanism; docs/concepts.md has it in words.

The corrupted key makes the answer unlikely. Before the first block, only the clean activation at `key` can bring it
back; after the last, only the one at `query`. So the share that each role restores at the input of every block between
shows where the association is on its way: still at the key, stored at the value, or already at the query.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from mecheval.errors import UserError
from mecheval.sites import Site
from mecheval.types import CARRIERS

if TYPE_CHECKING:  # slow to import
    pass

Label = Literal["induction", "direct_retrieval", "conv_association", "mixed", "not_learnt", "undetermined"]
Cell = tuple[str, str]  # site, role

STORES = ("value", "next_key")
"""Where an association can be kept for a later layer, or brought together inside one."""


@dataclass(frozen=True)
class Rule:
    """The thresholds of the verdict."""

    learnt: float = 0.1  # original minus corrupted likelihood from which there is something to explain
    carries: float = 0.5  # restored share from which a role carries the association
    trace: float = 0.2  # restored share from which a role takes part in carrying it
    agreement: float = 0.95  # share of resamples that must give the same finding


@dataclass(frozen=True)
class Finding:
    """What one set of shares says."""

    label: Label
    layer: int | None = None  # that retrieves
    stored_by: int | None = None  # layer, in induction
    stored_at: str | None = None  # role, in induction

    def __str__(self) -> str:
        return {
            "induction": f"induction: layer {self.stored_by} stores the key at the {words(self.stored_at)}, "
            f"layer {self.layer} retrieves",
            "direct_retrieval": f"direct retrieval: layer {self.layer} both associates and retrieves",
            "conv_association": f"association by short convolution: layer {self.layer} associates by it and retrieves",
            "mixed": "mixed: more than one role carries the association",
            "not_learnt": "not learnt: the answer does not depend on the key",
            "undetermined": "undetermined",
        }[self.label]


@dataclass(frozen=True)
class Depths:
    """The sites that decide, by depth: the inputs of layers 1, 2, ..., and the short convolutions of every layer."""

    boundaries: tuple[str, ...]
    convolutions: tuple[tuple[str, ...], ...]

    @property
    def sites(self) -> list[str]:
        """All of them: effects at these are enough for a verdict."""
        inside = [site for layer in self.convolutions for site in layer]
        return [*self.boundaries, *inside] or [Site(0, "input", "stream")]

    @property
    def cells(self) -> list[Cell]:
        """Sites and roles whose shares the rule looks at."""
        inside = [(site, role) for layer in self.convolutions for site in layer for role in STORES]
        return [(site, role) for site in self.boundaries for role in CARRIERS] + inside


def depths_of(sites: Iterable[Site]) -> Depths:
    """The sites that decide among all sites of a model."""
    there = list(dict.fromkeys(sites))
    layers = 1 + max((site.block for site in there if site.block is not None), default=-1)
    if not layers:
        raise UserError("verdict: name the boundaries between layers; these sites are in no layer.")
    inputs = {site.block: site for site in there if site.kind == "stream" and site.part == "input"}
    inside = [tuple(site for site in there if site.block == i and site.kind == "short_conv") for i in range(layers)]
    return Depths(tuple(inputs.get(layer, Site(layer, "input", "stream")) for layer in range(1, layers)), tuple(inside))


def judge(shares: NDArray[np.float64], gap: float, depths: Depths, rule: Rule) -> Finding:
    """What shares (one for each of `depths.cells`) and the gap of original and corrupted likelihood say.

    Boundary by boundary, one role carries the association; or several do (mixed), or none of those we look at.
    """
    if not gap >= rule.learnt:
        return Finding("not_learnt")
    share = dict(zip(depths.cells, shares, strict=True))
    carriers = []
    for site in depths.boundaries:
        part = [role for role in CARRIERS if share[site, role] >= rule.trace]
        if len(part) > 1:
            return Finding("mixed")
        if not part or share[site, part[0]] < rule.carries:
            return Finding("undetermined")
        carriers += part
    stored = [layer for layer, role in enumerate(carriers) if role in STORES]  # boundary i follows layer i
    if stored:
        return Finding("induction", layer=stored[-1] + 1, stored_by=stored[0], stored_at=carriers[stored[0]])
    layer = carriers.index("query") if "query" in carriers else len(carriers)
    # A convolution spreads over the tokens that follow: what it brings to the value and after it counts together.
    inside = [sum(share[site, role] for role in STORES) for site in depths.convolutions[layer]]
    if any(together >= rule.carries for together in inside):
        return Finding("conv_association", layer=layer)
    return Finding("direct_retrieval", layer=layer)


def words(role: str | None) -> str:
    """A role for people."""
    return "position after the value" if role == "next_key" else str(role)
