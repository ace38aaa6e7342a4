"""Panels of cells with a colour and a number, as the paper's: a row for each mixer, a column for each width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mecheval.figures.cells import DETAILS, Cell, cells, extremes, notes
from mecheval.figures.style import FAINT, GREY, LETTER, chart_of, fill, finish, ink, wrapped
from mecheval.studies.axes import NAMES, named, option_axes

if TYPE_CHECKING:  # both are slow to import
    import altair as alt
    import pandas as pd

QUANTITIES = {
    "original": "original", "corrupted": "corrupted",
    "restored_key": "restored at key", "restored_value": "restored at value", "restored_query": "restored at query",
    "conv0_at_value": "conv 0 at value", "conv0_at_next_key": "conv 0 at next key", "conv1_at_value": "conv 1 at value",
}  # fmt: skip
"""Columns of a study that are likelihoods -> titles of their panels, from left to right."""
LIKELIHOOD = "likelihood of the answer (%)"
CELL = 36, 21
"""Pixels of a cell, across and down; across is more where there are few columns, for the panels' titles."""
CORNER = "M-0.4,0.4L-1.3,0.4L-0.4,1.3Z"
"""Mark of a cell whose seeds disagree: a triangle, from the cell's top right corner to the left and down."""
GAP = 14
LEGEND = 110
NAME = 6.5
"""Pixels of one letter of a row's name."""


def panels(
    frame: pd.DataFrame,
    title: str,
    columns: Mapping[str, str] | None = None,
    rows: str | None = None,
    by: str | None = None,
    measure: str = LIKELIHOOD,
) -> alt.VConcatChart:
    """The table of a study: a panel for each quantity, in it a row for each mixer (or what varies), a column a width.

    `columns` (name -> title) are those of `QUANTITIES` unless given. With axis `by` there is a panel for each of its
    values: side by side for one quantity, below each other for several.
    """
    columns = {name: text for name, text in QUANTITIES.items() if name in frame} if columns is None else columns
    rows = rows or row_axis(frame)
    axes = [rows, "d_model"] if by is None else [by, rows, "d_model"]
    shown = cells(frame, columns, axes)
    beside, down = (by, None) if by is not None and len(columns) == 1 else ("quantity", by)
    chart, pixels = grid(shown, rows, "d_model", beside, down, measure)
    said = f"{title}. Heat maps of the {measure} by {rows} and d_model. {described(shown, beside, axes)}"
    return finish(chart, title, notes(shown, corners=True), pixels, said)


def row_axis(frame: pd.DataFrame) -> str:
    """What varies besides the width: an option of one mixer, the learning rate where all are there, or the mixer."""
    options = option_axes(frame)
    others = [axis for axis in ("task", "positions", "n_layers", "d_model", "seed") if axis in frame]
    every_rate = frame["mixer"].nunique() == 1 and frame.duplicated(others).any()
    return options[0] if options else "lr" if every_rate else "mixer"


def described(shown: Sequence[Cell], field: str, axes: Sequence[str]) -> str:
    """The main numbers of each panel, in words."""
    of = {name: [cell for cell in shown if cell[field] == name] for name in texts(shown, field)}
    return "; ".join(f"{named(field, name)}: {extremes(part, axes)}" for name, part in of.items()) + "."


def texts(shown: Sequence[Cell], field: str) -> list[str]:
    """What stands in a field, in the order of the cells."""
    return list(dict.fromkeys(cell[field] for cell in shown))


def column_width(columns: int) -> int:
    """Pixels of a column where a panel has so many."""
    return max(CELL[0], 84 // columns)


def grid(
    shown: Sequence[Cell], rows: str, across: str, panel: str, down: str | None, measure: str, wide: int = 0
) -> tuple[alt.VConcatChart, float]:
    """The cells in panels side by side by field `panel`, and below each other by `down`; and about how wide that is.

    Panels are at least `wide`; where that is given, they stand below others of that width, and have no titles.
    """
    import altair as alt

    names, columns, beside = texts(shown, rows), texts(shown, across), texts(shown, panel)
    levels = [None] if down is None else texts(shown, down)
    heads, wide = not wide, max(wide, column_width(len(columns)) * len(columns))
    lines = []
    for level in levels:
        line = []
        for name in beside:
            first, top, bottom = name == beside[0], level == levels[0], level == levels[-1]
            part = [cell for cell in shown if cell[panel] == name and (down is None or cell[down] == level)]
            x = alt.X(f"{across}:N", sort=columns, title=NAMES.get(across) if bottom else None)
            y = alt.Y(
                f"{rows}:N",
                sort=names,
                title=(level or NAMES.get(rows, rows if rows != "mixer" else None)) if first else None,
            )
            layers = _layers(
                chart_of(part).encode(tooltip=tooltips([down, panel, rows, across])),
                x.scale(domain=columns).axis(orient="bottom", labelAngle=0, labels=bottom),
                y.scale(domain=names).axis(labelOpacity=float(first)),
                measure,
            )
            head = heading(name, wide) if heads and top else alt.Undefined
            line.append(alt.LayerChart(layer=layers, width=wide, height=CELL[1] * len(names), title=head))
        lines.append(beside_each_other(line))
    return alt.vconcat(*lines, spacing=GAP), (wide + GAP) * len(beside) + NAME * max(map(len, names)) + LEGEND


def beside_each_other(line: Sequence[alt.LayerChart], gap: int = GAP) -> alt.HConcatChart:
    """Panels at equal distances whatever their axes say: those in lines below each other stand in columns.

    Only the first shows the names of its rows; the others have them unseen, so that all titles stand at one height.
    """
    import altair as alt

    return alt.hconcat(*line, spacing=gap, bounds="flush")


def heading(name: str, pixels: float) -> alt.TitleParams:
    """The title of a panel of this width."""
    import altair as alt

    return alt.TitleParams(wrapped(name, pixels + GAP), fontSize=11, anchor="middle", offset=6)


def tooltips(fields: Sequence[str | None]) -> list[alt.Tooltip]:
    """The place of a cell and what is known about it."""
    import altair as alt

    titles = {"shown": "mean", "rate": "learning rate"}
    return [alt.Tooltip(f"{name}:N", title=titles.get(name, name)) for name in (*fields, *DETAILS) if name is not None]


def _layers(base: alt.Chart, x: alt.X, y: alt.Y, measure: str) -> list[alt.Chart]:
    """Coloured cells and their numbers, empty cells and their words, and marks where seeds disagree."""
    import altair as alt

    placed = base.encode(x=x, y=y)
    full, empty = (placed.transform_filter(f"{no}isValid(datum.value)") for no in ("", "!"))
    legend = alt.Legend(
        title=wrapped(measure, LEGEND - 10, LETTER - 1), values=[0, 0.5, 1], labelExpr="100 * datum.value",
        gradientLength=100,
    )  # fmt: skip
    return [
        full.mark_rect(stroke="white").encode(color=alt.Color("value:Q", scale=fill(), legend=legend)),
        empty.mark_rect(fill="white", stroke=FAINT, strokeDash=[2, 2]),
        empty.mark_text(fontSize=10, color=GREY).encode(text="label:N"),
        full.mark_text(fontSize=10).encode(text="label:N", color=ink("value")),
        base.transform_filter("datum.apart")
        .mark_point(shape=CORNER, filled=True, size=110, opacity=1)
        .encode(x=x.bandPosition(1), y=y.bandPosition(0), color=ink("value")),
    ]
