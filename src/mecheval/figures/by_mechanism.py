"""Two pictures of the mixers of a store by mechanism: the way that a mechanism takes, and the shares that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mecheval.figures.canvas import QUIET, Canvas, breadth, cut
from mecheval.figures.heatmap import label
from mecheval.figures.mechanisms import LONGEST, SHARES, VERDICTS, mechanisms_figure, words
from mecheval.figures.vegalite import RAMP, WHITE_FROM, Chart
from mecheval.studies.axes import ordered
from mecheval.types import CARRIERS

if TYPE_CHECKING:  # slow to import
    import pandas as pd

WAY = ["verdict", "layer", "stored_by", "stored_at", "n_layers"]
"""Columns in which mixers with the same mechanism agree."""
HEADS = (*CARRIERS, "value", "next_key")
"""Positions of the columns `SHARES`."""
CELL, HEIGHT, BLOCK = (60.0, 22.0), 26.0, 18.0
"""Pixels of a cell, from a mixer to the next, and before a group of them."""


def ways_figure(rows: pd.DataFrame, title: str) -> Chart:
    """One drawing for each mechanism, with the mixers that have it; `rows` are those of `mechanism_rows`.

    Mixers whose short convolutions join key and value at different positions have drawings of their own.
    """
    later = (rows["verdict"] == "conv_association") & (rows["conv_next_key"] > rows["conv_value"])
    groups = rows.assign(mixer=rows["mixer"].astype(str), later=later).groupby([*WAY, "later"], dropna=False)
    together = groups["mixer"].transform(lambda names: "\n".join(ordered("mixer", names)))
    return mechanisms_figure(rows.assign(mixer=together), title, narrow=True)


def shares_figure(rows: pd.DataFrame, title: str) -> Chart:
    """What each position restores, a line for each mixer, grouped by verdict."""
    known = [verdict for verdict in (*VERDICTS, *sorted(set(rows["verdict"]))) if (rows["verdict"] == verdict).any()]
    left = max(breadth(cut(name, LONGEST), 12) for name in map(str, rows["mixer"])) + 16
    shown = [name for name in SHARES if name in SHARES[: len(CARRIERS)] or rows[name].notna().any()]
    place = {name: left + (i + 0.5) * CELL[0] + 20 * (i >= len(CARRIERS)) for i, name in enumerate(shown)}
    canvas = Canvas(max(place.values()) + CELL[0] / 2 + 8, 0)
    canvas.text(left, 6, "before the layer that retrieves, or layer 1", colour=QUIET, size=10, what="head")
    if len(shown) > len(CARRIERS):
        canvas.text(place[SHARES[len(CARRIERS)]] - CELL[0] / 2, 6, "in its convolution", colour=QUIET, size=10,
                    what="head")  # fmt: skip
    for name, head in zip(SHARES, HEADS, strict=True):
        if name in place:
            canvas.text(place[name], 22, head, align="center", colour=QUIET, what="position")
    y, said = 44.0, []
    for verdict in dict.fromkeys(known):
        own = rows[rows["verdict"] == verdict].set_index("mixer")
        canvas.text(0, y, words(verdict), bold=True, what="verdict")
        for mixer in ordered("mixer", own.index):
            y += HEIGHT
            canvas.text(0, y, cut(mixer, LONGEST), size=12, what="mixer")
            row = own.loc[[mixer]].iloc[0]
            for name in shown:
                _cell(canvas, place[name], y, float(row[name]))
            shares = {role: float(row[f"share_{role}"]) for role in CARRIERS}
            top = max(shares, key=lambda role: (shares[role] == shares[role], shares[role]))  # NaN is the least
            said.append(f"{mixer} ({words(verdict)}): {label(shares[top])} at {top}")
        y += HEIGHT + BLOCK
    canvas.height = y - BLOCK
    notes = [
        "Share of the lost likelihood that one clean activation brings back: 0 nothing, 1 all (best run per mixer)."
    ]
    return canvas.chart(title, notes, f"{title}. Most is restored: {'; '.join(said)}.")


def _cell(canvas: Canvas, x: float, y: float, share: Any) -> None:
    if share != share:
        canvas.text(x, y, "–", align="center", colour=QUIET, what="share")
        return
    step = round(min(1.0, max(0.0, share)) * (len(RAMP) - 1))
    canvas.box(x, y, CELL[0] - 3, CELL[1], RAMP[step], what="cell")
    canvas.text(x, y, label(share), align="center", colour="white" if step >= WHITE_FROM else "black", what="share")
