"""Where each mixer stores the key-value link: a small drawing of each mechanism, from the verdicts on its runs.

Positions stand side by side, layers above each other; arrows are the way from key to query that a verdict names. All
of it comes from the rows, so that a custom mixer is drawn like a built-in one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from mecheval.errors import UserError
from mecheval.figures.canvas import INK, PALE, PAPER, QUIET, Canvas, breadth, cut
from mecheval.figures.heatmap import label
from mecheval.figures.vegalite import RAMP, Chart
from mecheval.intervene.finding import Finding
from mecheval.intervene.mechanism import Rule
from mecheval.studies.axes import plain
from mecheval.types import CARRIERS, MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

TITLE = "Where each mixer stores the key-value link"
VERDICTS = (
    "induction", "conv_association", "direct_retrieval", "pointer", "redundant", "joint", "mixed", "undetermined",
    "not_learnt",
)  # fmt: skip
"""The verdicts in the order in which figures show them."""
AFTER_VALUE = ("next_key", "value+1", "value+2", "value+3")
"""Roles after the value, which share a column of the drawing: a short convolution reaches them."""
UNNAMED = ("redundant", "joint", "mixed", "undetermined")
"""Verdicts on runs that learnt, without a way from key to query."""
UNSETTLED = "the measurements do not settle it"
SHARES = (*(f"share_{role}" for role in CARRIERS), "conv_value", "conv_next_key")
"""Restored shares. The first four: at the input of the layer that retrieves, or of layer 1 if that is layer 0; the
others: after the short convolution of the layer that retrieves, the one that restores most."""
COLUMNS = (
    "mixer", "n_layers", "d_model", "seed", "verdict", "layer", "stored_by", "stored_at", "found_by", "places",
    "agreement", "test_accuracy", *SHARES,
)  # fmt: skip
ASSOCIATES, RETRIEVES, BOTH = "#b35900", RAMP[7], INK
LEGEND = {"associates": ASSOCIATES, "retrieves": RETRIEVES, "associates and retrieves at once": BOTH}
NOTES = (
    "Positions of a document across, layers upwards. Arrows: the way from key to query that the verdict names.",
    "Number: restored share, how much of the lost likelihood the clean activation here brings back (mean).",
)
STEP, BAND, NAMES = 64.0, 36.0, 30.0
"""Pixels between two positions, of a layer, and of the head of the table."""
LINE, SPACE = 15.0, 26.0
"""Height of a line of text, and space between two mixers, in pixels."""
LONGEST = 34
"""Largest number of characters of a mixer's name that are shown."""
TALLEST = 12_000.0
"""Largest height of a drawing in pixels; a note gives the number of mixers that did not fit."""
FEW = 6
"""Largest number of findings of a mixer that are listed; of the rest, only the number is given."""


class Spot(NamedTuple):
    """A position before layer 0, 1, ... or after the last; levels with a half are inside a layer."""

    role: str
    level: float


class Arrow(NamedTuple):
    """One step of the way, and the share that supports it (NaN if none was measured)."""

    start: Spot
    end: Spot
    colour: str
    share: float


@dataclass(frozen=True)
class Group:
    """The runs of one mixer, or of several (a name a line), and number of layers."""

    mixer: str
    n_layers: int
    findings: list[tuple[Finding, int]]  # with the number of runs: the one that is drawn, then the commonest first
    shares: dict[str, float]  # means over the runs with the finding that is drawn
    widths: list[int]
    seeds: int
    accuracies: tuple[float, float]  # lowest and highest on test, of the runs with that finding

    @property
    def about(self) -> list[str]:
        """Which runs these are, line by line, after the names of the mixers."""
        counts = {"layer": self.n_layers, "seed": self.seeds}
        layers, seeds = (f"{n} {name}{'s' * (n > 1)}" for name, n in counts.items())
        return [layers, cut(f"d {', '.join(map(str, self.widths))}", LONGEST), seeds]

    @property
    def names(self) -> list[str]:
        return [cut(name, LONGEST) for name in self.mixer.split("\n")]

    @property
    def said(self) -> list[str]:
        """The verdicts in words, line by line."""
        (finding, n), *others = self.findings
        runs = sum(count for _, count in self.findings)
        low, high = (MISSING if math.isnan(each) else f"{each:.3f}" for each in self.accuracies)
        lines = [f"{n} of {runs} run{'s' * (runs > 1)}: {short(finding)}", sentence(finding)]
        lines.append(f"test accuracy {low}" + (f" to {high}" if high != low else ""))
        lines += [f"{count} of {runs}: {short(other)}" for other, count in others[:FEW]]
        lines += [f"{len(others) - FEW} other findings"] if len(others) > FEW else []
        return [line for line in lines if line]

    @property
    def height(self) -> float:
        """Pixels that the drawing of these runs takes, with the space below it."""
        return max(BAND * self.n_layers, LINE * len(self.names + self.about), LINE * len(self.said)) + SPACE

    def way(self) -> tuple[list[Arrow], dict[Spot, float]]:
        """The way of the finding that is drawn; none where it is about layers that the model does not have."""
        finding = self.findings[0][0]
        known = (layer for layer in (finding.layer, finding.stored_by, finding.found_by) if layer is not None)
        return way(finding, self.shares) if all(0 <= layer < self.n_layers for layer in known) else ([], {})


def words(verdict: str) -> str:
    """The name of a verdict in a picture."""
    return "short convolution" if verdict == "conv_association" else verdict.replace("_", " ")


def short(finding: Finding) -> str:
    """The name of a finding, with the layer where that distinguishes it: direct retrieval in layer 0."""
    name, distinguishes = words(finding.label), finding.label in ("conv_association", "direct_retrieval")
    return f"{name} in layer {finding.layer}" if distinguishes and finding.layer is not None else name


def sentence(finding: Finding) -> str:
    """The finding as a sentence, without its name; empty for a verdict of another version."""
    return str(finding).partition(": ")[2] or UNSETTLED if finding.label in VERDICTS else ""


def order(finding: Finding) -> tuple[int, str]:
    """The place of a finding among others; verdicts of another version come last."""
    return (VERDICTS.index(finding.label) if finding.label in VERDICTS else len(VERDICTS), short(finding))


def mechanisms_figure(frame: pd.DataFrame, title: str = TITLE) -> Chart:
    """A drawing for each mixer and number of layers; `frame` has a row for each run and the columns `COLUMNS`.

    Drawn is the commonest finding among the runs that have learnt the task; the others are listed in words, to the
    right of the drawing.
    """
    every = grouped(frame)
    fitting = zip(every, accumulate(group.height for group in every), strict=True)
    groups = [group for group, bottom in fitting if bottom <= TALLEST] or every[:1]
    drawing = max(breadth(text, 12) for group in groups for text in group.names + group.about) + 64
    right = drawing + STEP * len(CARRIERS) + 36
    canvas = Canvas(right + max(breadth(line) for group in groups for line in group.said), 0)
    place = {role: drawing + STEP * (i + 0.5) for i, role in enumerate(CARRIERS)}
    for role, x in place.items():
        canvas.text(x, 8, role, align="center", colour=QUIET, what="position")
    top, colours = NAMES, set()
    for group in groups:
        for i, text in enumerate(group.names + group.about):
            about = i >= len(group.names)
            canvas.text(0, top + (i + 0.5) * LINE, text, bold=not about, size=11 if about else 12,
                        colour=QUIET if about else INK, what="about" if about else "mixer")  # fmt: skip
        for i, text in enumerate(group.said):
            colour = QUIET if i > 1 else INK
            canvas.text(right, top + (i + 0.5) * LINE, text, bold=i == 0, colour=colour, what="verdict")
        colours |= draw_mechanism(canvas, group, place, top + BAND * group.n_layers)
        top += group.height
    canvas.height = draw_legend(canvas, colours, drawing, top)
    notes = list(NOTES if colours else NOTES[:1])
    if len(groups) < len(every):
        notes.append(f"Not shown: {len(every) - len(groups):,} of {len(every):,} mixers and numbers of layers.")
    return canvas.chart(title, notes, describe(groups, title))


def grouped(frame: pd.DataFrame) -> list[Group]:
    """The runs by mixer and number of layers, sorted by finding and then by name."""
    missing = [name for name in COLUMNS if name not in frame]
    if missing:
        raise UserError(f"mechanisms: the table has no column {missing[0]!r}; it needs {', '.join(COLUMNS)}.")
    if frame.empty:
        raise UserError("mechanisms: there are no runs to show.")
    groups = [_group(str(mixer), int(n), part) for (mixer, n), part in frame.groupby(["mixer", "n_layers"])]
    return sorted(groups, key=lambda group: (order(group.findings[0][0])[0], group.mixer, group.n_layers))


def _group(mixer: str, n_layers: int, part: pd.DataFrame) -> Group:
    names = ("verdict", "layer", "stored_by", "stored_at", "found_by")
    rows = part.to_dict("records")
    found = [_finding(*(plain(row[name]) for name in names)) for row in rows]
    held: dict[Finding, set[Any]] = {}
    for finding, row in zip(found, rows, strict=True):
        held.setdefault(finding, set()).add(plain(row["places"]))
    named = {finding: replace(finding, places=_one_place(places)) for finding, places in held.items()}
    counts = Counter(named[finding] for finding in found).items()
    ranked = sorted(counts, key=lambda item: (item[0].label == "not_learnt", -item[1], order(item[0])))
    drawn = part[[finding == ranked[0][0] for finding in found]]
    means = {name: float(drawn[name].astype("float64").mean()) for name in SHARES}
    scores = drawn["test_accuracy"].astype("float64")
    widths, ends = sorted({int(each) for each in part["d_model"]}), (float(scores.min()), float(scores.max()))
    return Group(mixer, n_layers, ranked, means, widths, part["seed"].nunique(), ends)


def _one_place(places: set[Any]) -> tuple[str, ...]:
    """The place that holds the key in all runs; none if it is unknown, or if there are several."""
    [first, *others] = places
    return (first,) if isinstance(first, str) and not others and ", " not in first else ()


def _finding(verdict: Any, layer: Any, stored_by: Any, stored_at: Any, found_by: Any) -> Finding:
    layer, stored_by, found_by = (None if each is None else int(each) for each in (layer, stored_by, found_by))
    return Finding(verdict, layer, stored_by, stored_at, found_by)


def way(finding: Finding, shares: Mapping[str, float]) -> tuple[list[Arrow], dict[Spot, float]]:
    """The arrows of a verdict, and the shares measured at places on the way.

    A verdict that names no way that can be drawn, such as mixed, has no arrows, but the places before layer 1 that
    take part.
    """
    layer, at = finding.layer, "next_key" if finding.stored_at in AFTER_VALUE else finding.stored_at
    every = {Spot(role, layer or 1): shares[f"share_{role}"] for role in CARRIERS}
    before = {spot: share for spot, share in every.items() if share >= Rule().trace / 2}
    if layer is None:
        return [], before if finding.label in UNNAMED else {}
    key, query = Spot("key", layer), Spot("query", layer + 1)
    if finding.label == "induction" and finding.stored_by is not None and at in CARRIERS:
        share = shares[f"share_{at}"]
        stored = Arrow(Spot("key", finding.stored_by), Spot(at, finding.stored_by + 1), ASSOCIATES, share)
        return [stored, Arrow(Spot(at, layer), query, RETRIEVES, share)], {Spot(at, layer): share}
    if finding.label == "direct_retrieval":
        measured = query if layer == 0 else key
        share = shares[f"share_{measured.role}"]
        return [Arrow(key, query, BOTH, share)], {measured: share}
    if finding.label == "conv_association":
        inside = {Spot(role, layer + 0.5): shares[f"conv_{role}"] for role in ("value", "next_key")}
        strong = {spot: share for spot, share in inside.items() if not share < Rule().trace}  # NaN may be anything
        inside = strong or dict([max(inside.items(), key=lambda item: item[1])])
        arrows = []
        for spot, share in inside.items():
            arrows += [Arrow(key, spot, ASSOCIATES, share), Arrow(spot, query, RETRIEVES, share)]
        return arrows, inside
    return [], before


def carries(arrows: Sequence[Arrow], n_layers: int) -> list[tuple[Spot, Spot]]:
    """Where the residual stream carries it, position by position: from the document to the answer without a gap."""
    if not arrows:
        return []
    spots = [Spot("key", 0), Spot("query", n_layers), *(spot for arrow in arrows for spot in arrow[:2])]
    levels = {role: [spot.level for spot in spots if spot.role == role] for role in CARRIERS}
    return [(Spot(role, min(at)), Spot(role, max(at))) for role, at in levels.items() if at and min(at) < max(at)]


def draw_mechanism(canvas: Canvas, group: Group, place: Mapping[str, float], floor: float) -> set[str]:
    """Draw the layers, the positions before and after each, and the way through them; returns its colours.

    `place`: role -> x, at even distances.
    """

    def at(spot: Spot) -> tuple[float, float]:
        return place[spot.role], floor - spot.level * BAND

    arrows, measured = group.way()
    carried = carries(arrows, group.n_layers)
    passed = {spot for ends in (*(arrow[:2] for arrow in arrows), *carried) for spot in ends} | set(measured)
    beside = (place[CARRIERS[1]] - place[CARRIERS[0]]) / 2
    left, right = place[CARRIERS[0]] - beside, place[CARRIERS[-1]] + beside
    canvas.layers(group.n_layers, left, right, floor, BAND, BAND - 10)
    for spot in sorted({Spot(role, level) for role in CARRIERS for level in range(group.n_layers + 1)} | passed):
        size = 10.0 if spot in passed else 6.0  # a square is inside a layer, a disc between layers
        canvas.box(*at(spot), size, size, INK if spot in passed else PALE, PAPER,
                   radius=0 if spot.level % 1 else size / 2, what="spot")  # fmt: skip
    for start, end in carried:
        canvas.line([at(start), at(end)], QUIET, 1.5, "carried")
    for arrow in arrows:
        (x0, y0), (x1, y1) = at(arrow.start), at(arrow.end)
        back = 6 / math.hypot(x1 - x0, y1 - y0)  # the tip stops at the edge of the spot
        share = 0.5 if math.isnan(arrow.share) else min(1.0, max(0.0, arrow.share))
        tip = (x1 - back * (x1 - x0), y1 - back * (y1 - y0))
        canvas.arrow([(x0, y0), tip], arrow.colour, 1 + 2 * share, "way")
    for spot, share in measured.items():
        if not math.isnan(share):
            (x, y), (dx, dy, align) = at(spot), _beside(spot)
            canvas.text(x + dx, y + dy, label(share), align=align, bold=True, what="share")
    return {arrow.colour for arrow in arrows}


def _beside(spot: Spot) -> tuple[float, float, Any]:
    """Where the share of a spot stands, so that no arrow passes through it: pixels across, down, and alignment."""
    if spot.role == "query":
        return 9, 0, "left"
    if spot.role == "key":
        return -9, 0, "right"
    return (0, 12, "center") if spot.role == "next_key" and spot.level % 1 else (-4, -10, "right")


def draw_legend(canvas: Canvas, colours: Container[str], x: float, y: float) -> float:
    """Draw what these colours of the arrows mean; returns the height at which that ends."""
    names = [name for name, colour in LEGEND.items() if colour in colours]
    for name in names:
        canvas.arrow([(x, y), (x + 26, y)], LEGEND[name], 2.5, "legend")
        canvas.text(x + 33, y, name, what="legend")
        x += 33 + breadth(name) + 18
    return y + LINE if names else y - SPACE + 4


def describe(groups: Iterable[Group], title: str) -> str:
    """The figure in words, for readers who cannot see it."""
    said = [
        f"{', '.join(group.mixer.splitlines())} ({group.n_layers} layers): {'; '.join(group.said)}." for group in groups
    ]
    return " ".join([f"{title}. By mixer:", *said])
