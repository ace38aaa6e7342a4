"""Two pictures of the mixers of a store by mechanism: the way that a mechanism takes, and the shares that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mecheval.figures.canvas import QUIET, Canvas, breadth, cut
from mecheval.figures.heatmap import label
from mecheval.figures.mechanisms import (
    BAND,
    LINE,
    LONGEST,
    SHARES,
    VERDICTS,
    describe,
    draw_legend,
    draw_mechanism,
    grouped,
    short,
    words,
)
from mecheval.figures.vegalite import RAMP, WHITE_FROM, Chart, wrapped
from mecheval.studies.axes import is_custom, ordered
from mecheval.types import CARRIERS

if TYPE_CHECKING:  # slow to import
    import pandas as pd

WAY = ["verdict", "layer", "stored_by", "stored_at", "n_layers"]
"""Columns in which mixers with the same mechanism agree."""
HEADS = (*CARRIERS, "value", "next_key")
"""Positions of the columns `SHARES`."""
CELL, HEIGHT, BLOCK = (56.0, 20.0), 23.0, 8.0
"""Pixels of a cell, from a mixer to the next, and before a group of them."""
STEP, LEFT, GAP = 42.0, 40.0, 20.0
"""Pixels between two positions of a drawing, to its left, and between two drawings."""
ACROSS, MOST = 2, 40
"""Drawings that stand side by side, and the most that are drawn."""


def ways_figure(rows: pd.DataFrame, title: str) -> Chart:
    """One drawing for each mechanism below the mixers that have it, two in a row; `rows` as from `mechanism_rows`.

    Mixers whose short convolutions join key and value at different positions have drawings of their own. Those that
    did not learn have no drawing.
    """
    later = (rows["verdict"] == "conv_association") & (rows["conv_next_key"] > rows["conv_value"])
    alike = rows.assign(mixer=rows["mixer"].astype(str), later=later).groupby([*WAY, "later"], dropna=False)
    together = alike["mixer"].transform(lambda names: "\n".join(ordered("mixer", names)))
    groups = grouped(rows.assign(mixer=together))
    drawn, plain = (
        [group for group in groups if group.way()[0]][:MOST],
        [group for group in groups if not group.way()[0]],
    )
    wide = LEFT + STEP * len(CARRIERS)
    canvas, top, colours = Canvas(ACROSS * wide + (ACROSS - 1) * GAP, 0), 0.0, set[str]()
    for first in range(0, len(drawn), ACROSS):
        line = drawn[first : first + ACROSS]
        named = [wrapped(", ".join(group.names), wide, 6) for group in line]
        floor = top + LINE * (2.5 + max(map(len, named))) + BAND * max(group.n_layers for group in line)
        for i, (group, names) in enumerate(zip(line, named, strict=True)):
            left = i * (wide + GAP)
            _heading(canvas, left, top, short(group.findings[0][0]), names)
            place = {role: left + LEFT + STEP * (j + 0.5) for j, role in enumerate(CARRIERS)}
            for role, x in place.items():
                y = floor - BAND * group.n_layers - LINE
                canvas.text(x, y, role, align="center", size=10, colour=QUIET, what="position")
            colours |= draw_mechanism(canvas, group, place, floor)
        top = floor + GAP
    for group in plain[:MOST]:
        names = wrapped(", ".join(group.names), canvas.width, 6)
        _heading(canvas, 0, top, words(group.findings[0][0].label), names)
        top += LINE * (1 + len(names)) + BLOCK
    canvas.height = draw_legend(canvas, colours, 0, top + LINE) if colours else top
    notes = ["Arrows: the way from key to query. Number: the share restored there."]
    return canvas.chart(title, notes if colours else [], describe(groups, title))


def _heading(canvas: Canvas, x: float, y: float, verdict: str, names: list[str]) -> None:
    canvas.text(x, y + LINE / 2, verdict, bold=True, size=12, what="verdict")
    for i, text in enumerate(names):
        canvas.text(x, y + (i + 1.5) * LINE, text, size=12, what="mixer")


def shares_figure(rows: pd.DataFrame, title: str) -> Chart:
    """What each position restores, a line for each mixer, grouped by verdict."""
    known = [verdict for verdict in (*VERDICTS, *sorted(set(rows["verdict"]))) if (rows["verdict"] == verdict).any()]
    left = max(breadth(cut(name, LONGEST), 13) for name in map(str, rows["mixer"])) + 20
    shown = [name for name in SHARES if name in SHARES[: len(CARRIERS)] or rows[name].notna().any()]
    place = {name: left + (i + 0.5) * CELL[0] + 20 * (i >= len(CARRIERS)) for i, name in enumerate(shown)}
    canvas = Canvas(max(place.values()) + CELL[0] / 2 + 8, 0)
    canvas.text(left, 5, "before the layer that retrieves, or layer 1", colour=QUIET, size=10, what="head")
    if len(shown) > len(CARRIERS):
        canvas.text(place[SHARES[len(CARRIERS)]] - CELL[0] / 2, 5, "in its convolution", colour=QUIET, size=10,
                    what="head")  # fmt: skip
    for name, head in zip(SHARES, HEADS, strict=True):
        if name in place:
            canvas.text(place[name], 20, head, align="center", colour=QUIET, what="position")
    y, said = 38.0, []
    for verdict in dict.fromkeys(known):
        own = rows[rows["verdict"] == verdict].set_index("mixer")
        canvas.text(0, y, words(verdict), bold=True, what="verdict")
        if verdict == "not_learnt":  # a share of nothing says nothing
            for text in wrapped(", ".join(cut(name, LONGEST) for name in ordered("mixer", own.index)), canvas.width, 6):
                y += HEIGHT
                canvas.text(0, y, text, size=12, what="mixer")
            own = own.iloc[:0]
        for mixer in ordered("mixer", own.index):
            y += HEIGHT
            canvas.text(0, y, cut(mixer, LONGEST), size=12, bold=is_custom(mixer), what="mixer")
            row = own.loc[[mixer]].iloc[0]
            for name in shown:
                _cell(canvas, place[name], y, float(row[name]))
            shares = {role: float(row[f"share_{role}"]) for role in CARRIERS}
            top = max(shares, key=lambda role: (shares[role] == shares[role], shares[role]))  # NaN is the least
            said.append(f"{mixer} ({words(verdict)}): {label(shares[top])} at {top}")
        y += HEIGHT + BLOCK
    canvas.height = y - BLOCK
    notes = ["Share of the lost likelihood that one clean activation brings back."]
    return canvas.chart(title, notes, f"{title}. Most is restored: {'; '.join(said)}.")


def _cell(canvas: Canvas, x: float, y: float, share: Any) -> None:
    if share != share:
        canvas.text(x, y, "–", align="center", colour=QUIET, what="share")
        return
    step = round(min(1.0, max(0.0, share)) * (len(RAMP) - 1))
    canvas.box(x, y, CELL[0] - 3, CELL[1], RAMP[step], what="cell")
    canvas.text(x, y, label(share), align="center", colour="white" if step >= WHITE_FROM else "black", what="share")
