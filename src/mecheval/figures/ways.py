"""What a verdict says about where the association goes: as words, and as a way through positions and layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mecheval.figures.canvas import INK
from mecheval.figures.style import RAMP

POSITIONS = ("key", "value", "next_key", "query")
VERDICTS = ("induction", "conv_association", "direct_retrieval", "mixed", "undetermined", "not_learnt")
"""In the order in which figures show them."""
ASSOCIATES, RETRIEVES, BOTH = "#b35900", RAMP[7], INK
FAINT = 0.1
"""Share from which a place in a convolution takes part."""


class Finding(NamedTuple):
    """What the verdict on one run says."""

    verdict: str
    layer: int | None
    stored_by: int | None
    stored_at: str | None

    @property
    def order(self) -> tuple[int, str]:
        """Place among the verdicts, those that we do not know last."""
        return (VERDICTS.index(self.verdict) if self.verdict in VERDICTS else len(VERDICTS), str(self))

    def __str__(self) -> str:
        name = "short convolution" if self.verdict == "conv_association" else self.verdict.replace("_", " ")
        return f"{name} in layer {self.layer}" if self.verdict in ("conv_association", "direct_retrieval") else name

    @property
    def words(self) -> str:
        """The same as a sentence."""
        where = "position after the value" if self.stored_at == "next_key" else self.stored_at
        return {
            "induction": f"layer {self.stored_by} stores the key at the {where}, layer {self.layer} retrieves",
            "conv_association": f"layer {self.layer} associates by its short convolution, and retrieves",
            "direct_retrieval": f"layer {self.layer} associates and retrieves at once",
            "mixed": "more than one position carries the association",
            "undetermined": "the measurements do not settle it",
            "not_learnt": "the answer does not depend on the key",
        }.get(self.verdict, "")


class Place(NamedTuple):
    """A position before layer 0, 1, ... (or, after the last, before none); halves are inside a layer."""

    role: str
    level: float


class Arrow(NamedTuple):
    """One step of the way, and the share that speaks for it (NaN if none was measured)."""

    start: Place
    end: Place
    colour: str
    share: float


def way(finding: Finding, shares: Mapping[str, float]) -> tuple[list[Arrow], dict[Place, float]]:
    """The arrows of a verdict, and the shares measured at places on the way; nothing for verdicts without a way."""
    layer, at = finding.layer, finding.stored_at
    if layer is None:
        return [], {}
    key, query = Place("key", layer), Place("query", layer + 1)
    if finding.verdict == "induction" and finding.stored_by is not None and at in POSITIONS:
        share = shares[f"share_{at}"]
        stored = Arrow(Place("key", finding.stored_by), Place(at, finding.stored_by + 1), ASSOCIATES, share)
        return [stored, Arrow(Place(at, layer), query, RETRIEVES, share)], {Place(at, layer): share}
    if finding.verdict == "direct_retrieval":
        measured = query if layer == 0 else key
        share = shares[f"share_{measured.role}"]
        return [Arrow(key, query, BOTH, share)], {measured: share}
    if finding.verdict == "conv_association":
        inside = {Place(role, layer + 0.5): shares[f"conv_{role}"] for role in ("value", "next_key")}
        apart = {place: share for place, share in inside.items() if not share < FAINT}  # NaN is not known to be faint
        inside = apart or dict([max(inside.items(), key=lambda item: item[1])])
        arrows = [
            (Arrow(key, at, ASSOCIATES, share), Arrow(at, query, RETRIEVES, share)) for at, share in inside.items()
        ]
        return [arrow for pair in arrows for arrow in pair], inside
    return [], {}


def carries(arrows: list[Arrow], n_layers: int) -> list[tuple[Place, Place]]:
    """Where the residual stream carries it on, position by position: from the document to the answer without a gap."""
    if not arrows:
        return []
    spots = [
        Place("key", 0),
        Place("query", n_layers),
        *(spot for arrow in arrows for spot in (arrow.start, arrow.end)),
    ]
    levels = {role: [spot.level for spot in spots if spot.role == role] for role in POSITIONS}
    return [(Place(role, min(at)), Place(role, max(at))) for role, at in levels.items() if at and min(at) < max(at)]
