"""Who stores the association where: a small drawing of each mixer's mechanism, from the verdicts on its runs.

Positions stand side by side, layers one above the other; arrows are the way that a verdict names. Nothing here knows
any mixer: all comes from the rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures.canvas import INK, PALE, PAPER, QUIET, Canvas, breadth, cut
from mecheval.figures.heatmap import label
from mecheval.figures.style import MISSING
from mecheval.figures.ways import ASSOCIATES, BOTH, POSITIONS, RETRIEVES, Arrow, Finding, Place, carries, way

if TYPE_CHECKING:  # both are slow to import
    import altair as alt
    import pandas as pd

SHARES = ("share_key", "share_value", "share_next_key", "share_query", "conv_value", "conv_next_key")
"""Restored shares. The first four: at the input of the layer that retrieves, or of layer 1 if that is layer 0; the
others: after the short convolution of the layer that retrieves, the one that restores most."""
COLUMNS = (
    "mixer", "n_layers", "d_model", "seed", "verdict", "layer", "stored_by", "stored_at", "agreement", "test_accuracy",
    *SHARES,
)  # fmt: skip
LEGEND = {"associates": ASSOCIATES, "retrieves": RETRIEVES, "associates and retrieves at once": BOTH}
NOTES = (
    "Positions of a document across, layers upwards. Arrows: the way from key to query that the verdict names.",
    "Number: restored share, how much of the lost likelihood the clean activation here brings back (mean).",
)
STEP, BAND, NAMES = 64.0, 36.0, 30.0
"""Pixels between two positions, of a layer, and of the head of the table."""
LINE, SPACE = 15.0, 26.0
"""Height of a line of text, and what is free between two mixers."""
LONGEST = 34
"""Characters of a mixer's name; the rest is cut off."""
TALLEST = 12_000.0
"""Pixels of a drawing; mixers that would stand below are counted in a note."""
FEW = 6
"""Findings of a mixer that are said; of more it is said how many there are."""


@dataclass(frozen=True)
class Group:
    """The runs of one mixer."""

    mixer: str
    n_layers: int
    findings: list[tuple[Finding, int]]  # with how many runs have each: the one that is drawn, then the commonest first
    shares: dict[str, float]  # means over the runs with the finding that is drawn
    widths: list[int]
    seeds: int
    accuracies: tuple[float, float]  # lowest and highest on test, of the runs with that finding

    @property
    def runs(self) -> int:
        """How many there are."""
        return sum(n for _, n in self.findings)

    @property
    def said(self) -> list[str]:
        """The verdicts in words, line by line."""
        (finding, n), *others = self.findings
        low, high = (MISSING if math.isnan(each) else f"{each:.3f}" for each in self.accuracies)
        lines = [f"{n} of {self.runs} run{'s' * (self.runs > 1)}: {finding}", finding.words]
        lines.append(f"test accuracy {low}" + (f" to {high}" if high != low else ""))
        lines += [f"{n} of {self.runs}: {other}" for other, n in others[:FEW]]
        lines += [f"{len(others) - FEW} other findings"] if len(others) > FEW else []
        return [line for line in lines if line]

    @property
    def height(self) -> float:
        """Pixels that the drawing of these runs takes, with what is free below it."""
        return max(BAND * self.n_layers, LINE * len(self.said), LINE * len(_about(self))) + SPACE


def mechanisms_figure(frame: pd.DataFrame, title: str = "Who stores the association where") -> alt.VConcatChart:
    """A drawing for each mixer and number of layers; `frame` has a row for each run and the columns `COLUMNS`.

    Drawn is the commonest finding among the runs that have learnt the task; the others are said in words.
    """
    every = grouped(frame)
    groups = _fitting(every)
    left = max(breadth(text, 12) for group in groups for text in _about(group)) + 12
    drawing = left + 52
    right = drawing + STEP * len(POSITIONS) + 36
    said = max(breadth(line, 11) for group in groups for line in group.said)
    canvas = Canvas(right + said, 0)
    place = {role: drawing + STEP * (i + 0.5) for i, role in enumerate(POSITIONS)}
    for role, x in place.items():
        canvas.text(x, 8, role, align="center", colour=QUIET, what="position")
    top, colours = NAMES, set()
    for group in groups:
        arrows, measured = _way(group)
        colours |= {arrow.colour for arrow in arrows}
        floor = top + BAND * group.n_layers
        for i, text in enumerate(_about(group)):
            canvas.text(0, top + (i + 0.5) * LINE, text, bold=i == 0, size=11 if i else 12, colour=QUIET if i else INK,
                        what="about" if i else "mixer")  # fmt: skip
        carried = carries(arrows, group.n_layers)
        passed = {spot for part in ([arrow[:2] for arrow in arrows], carried) for ends in part for spot in ends}
        _draw_layers(canvas, group.n_layers, place, floor, passed)
        for part in carried:
            canvas.line([_at(spot, place, floor) for spot in part], QUIET, 1.5, "carried")
        _draw_way(canvas, arrows, measured, place, floor)
        for i, text in enumerate(group.said):
            canvas.text(
                right, top + (i + 0.5) * LINE, text, bold=i == 0, colour=QUIET if i > 1 else INK, what="verdict"
            )
        top += group.height
    canvas.height = _draw_legend(canvas, [name for name, colour in LEGEND.items() if colour in colours], drawing, top)
    notes = list(NOTES if colours else NOTES[:1])
    if len(groups) < len(every):
        notes.append(f"Not shown: {len(every) - len(groups):,} of {len(every):,} mixers and numbers of layers.")
    return canvas.chart(title, notes, describe(groups, title))


def _way(group: Group) -> tuple[list[Arrow], dict[Place, float]]:
    """The way of the finding that is drawn; none where it is about layers that the model does not have."""
    finding = group.findings[0][0]
    known = (layer for layer in (finding.layer, finding.stored_by) if layer is not None)
    return way(finding, group.shares) if all(0 <= layer < group.n_layers for layer in known) else ([], {})


def _fitting(groups: Sequence[Group]) -> list[Group]:
    """The first groups, as many as a drawing can hold, and at least one."""
    heights = list(accumulate(group.height for group in groups))
    return [group for group, bottom in zip(groups, heights, strict=True) if bottom <= TALLEST] or [groups[0]]


def grouped(frame: pd.DataFrame) -> list[Group]:
    """The runs by mixer and number of layers, sorted by what is found and then by name."""
    missing = [name for name in COLUMNS if name not in frame]
    if missing:
        raise UserError(f"mechanisms: the table has no column {missing[0]!r}; it needs {', '.join(COLUMNS)}.")
    if frame.empty:
        raise UserError("mechanisms: there are no runs to show.")
    groups = [_group(str(mixer), int(n), part) for (mixer, n), part in frame.groupby(["mixer", "n_layers"])]
    return sorted(groups, key=lambda group: (group.findings[0][0].order[0], group.mixer, group.n_layers))


def _group(mixer: str, n_layers: int, part: pd.DataFrame) -> Group:
    found = [
        Finding(row["verdict"], _whole(row["layer"]), _whole(row["stored_by"]), _text(row["stored_at"]))
        for row in part.to_dict("records")
    ]
    counts = sorted(Counter(found).items(), key=lambda item: (item[0].verdict == "not_learnt", -item[1], item[0].order))
    drawn = part[[finding == counts[0][0] for finding in found]]
    means = {name: float(drawn[name].astype("float64").mean()) for name in SHARES}
    accuracy = drawn["test_accuracy"].astype("float64")
    return Group(
        mixer, n_layers, counts, means, sorted({int(each) for each in part["d_model"]}), part["seed"].nunique(),
        (float(accuracy.min()), float(accuracy.max())),
    )  # fmt: skip


def _whole(value: Any) -> int | None:
    import pandas as pd

    return None if pd.isna(value) else int(value)


def _text(value: Any) -> str | None:
    import pandas as pd

    return None if pd.isna(value) else str(value)


def _about(group: Group) -> list[str]:
    """Which runs these are, line by line, the mixer first."""
    layers = f"{group.n_layers} layer{'s' * (group.n_layers > 1)}"
    seeds = f"{group.seeds} seed{'s' * (group.seeds > 1)}"
    return [cut(group.mixer, LONGEST), layers, cut(f"d {', '.join(map(str, group.widths))}", LONGEST), seeds]


def _at(spot: Place, place: Mapping[str, float], floor: float) -> tuple[float, float]:
    return place[spot.role], floor - spot.level * BAND


def _draw_layers(canvas: Canvas, n_layers: int, place: Mapping[str, float], floor: float, passed: set[Place]) -> None:
    """The layers, and in them each position before and after every layer; those on the way are dark."""
    left, right = place[POSITIONS[0]] - STEP / 2, place[POSITIONS[-1]] + STEP / 2
    for layer in range(n_layers):
        y = floor - (layer + 0.5) * BAND
        canvas.box((left + right) / 2, y, right - left, BAND - 10, "#eef0f3", ground=True, what="layer")
        canvas.text(left - 6, y, f"layer {layer}", align="right", size=10, colour=QUIET, what="layer")
    spots = {Place(role, level) for role in POSITIONS for level in range(n_layers + 1)} | passed
    for spot in sorted(spots):
        x, y = _at(spot, place, floor)
        inside = spot.level % 1 > 0  # a layer; a square, because it is not the stream between layers
        size = 10.0 if spot in passed else 6.0
        canvas.box(
            x, y, size, size, INK if spot in passed else PALE, PAPER, radius=0 if inside else size / 2, what="spot"
        )


def _draw_way(
    canvas: Canvas, arrows: Sequence[Arrow], measured: Mapping[Place, float], place: Mapping[str, float], floor: float
) -> None:
    """Arrows as wide as their shares, and the shares themselves, where no arrow passes."""
    for arrow in arrows:
        (x0, y0), (x1, y1) = _at(arrow.start, place, floor), _at(arrow.end, place, floor)
        length = math.hypot(x1 - x0, y1 - y0)
        back = 6 / length  # the tip stops at the edge of the spot
        share = 0.5 if math.isnan(arrow.share) else min(1.0, max(0.0, arrow.share))
        tip = (x1 - back * (x1 - x0), y1 - back * (y1 - y0))
        canvas.arrow([(x0, y0), tip], arrow.colour, 1 + 2 * share, "way")
    for spot, share in measured.items():
        x, y = _at(spot, place, floor)
        if math.isnan(share):
            continue
        text = label(share)
        if spot.role == "query":
            canvas.text(x + 9, y, text, bold=True, what="share")
        elif spot.role == "key":
            canvas.text(x - 9, y, text, align="right", bold=True, what="share")
        elif spot.role == "next_key" and spot.level % 1:
            canvas.text(x, y + 12, text, align="center", bold=True, what="share")
        else:
            canvas.text(x - 4, y - 10, text, align="right", bold=True, what="share")


def _draw_legend(canvas: Canvas, names: Sequence[str], x: float, y: float) -> float:
    """What the colours of the arrows mean; the height at which that ends."""
    for name in names:
        canvas.arrow([(x, y), (x + 26, y)], LEGEND[name], 2.5, "legend")
        canvas.text(x + 33, y, name, what="legend")
        x += 33 + breadth(name) + 18
    return y + LINE if names else y - SPACE + 4


def describe(groups: Iterable[Group], title: str) -> str:
    """The figure in words, for those who do not see it."""
    said = [f"{group.mixer} ({group.n_layers} layers): {'; '.join(group.said)}." for group in groups]
    return " ".join([f"{title}. By mixer:", *said])
