"""Accuracy, and what a change does to it: bars side by side for each mixer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mecheval.figures.cells import Cell, cells, notes
from mecheval.figures.matrix import GAP, NAME, beside_each_other, described, heading, panels, row_axis, texts, tooltips
from mecheval.figures.style import GREY, chart_of, finish, shades
from mecheval.studies.axes import named, ordered, plain, say

if TYPE_CHECKING:  # both are slow to import
    import altair as alt
    import pandas as pd
    from altair.typing import ChartType

ACCURACY = {"test_accuracy": "test accuracy"}
MEASURE = "accuracy (%)"
BAR, SPACE = 10, 8
"""Pixels of a bar, and between the bars of two mixers."""
RANGES = "with lines from the lowest to the highest"
ROOM = 0.32
"""To the right of a full bar, for its number."""


def accuracy(frame: pd.DataFrame, title: str) -> ChartType:
    """Test accuracy: heat maps, a panel for each number of layers; or bars where tasks are compared."""
    over = next((axis for axis in ("positions", "n_layers") if axis in frame), None)
    if over is not None and "task" in frame:
        return compare(frame, title, over)
    return panels(frame, title, ACCURACY, row_axis(frame), over, MEASURE)


def compare(frame: pd.DataFrame, title: str, over: str) -> alt.VConcatChart:
    """Test accuracy with each value of axis `over`: a line of panels for each task, a panel a width, bars by mixer."""
    import altair as alt

    lines, shown = [], []
    for task in ordered("task", frame["task"]):
        part = frame[[plain(value) == task for value in frame["task"]]]  # tasks may have widths of their own
        shown.append(cells(part, ACCURACY, ["task", "mixer", over, "d_model"]))
        lines.append(bar_panels(shown[-1], over, say("task", task)))
    every = [cell for part in shown for cell in part]
    pixels = max(pixel for _, pixel in lines)
    said = f"{title}. Bars of the {MEASURE}. {described(every, 'task', ['mixer', over, 'd_model'])}"
    chart = alt.vconcat(*(line for line, _ in lines), spacing=2 * GAP)
    return finish(chart, title, notes(every, ranges=RANGES), pixels, said)


def panel_width(panels: int) -> int:
    """Pixels of a panel, by how many stand side by side."""
    return {1: 260, 2: 180}.get(panels, 112)


def bar_panels(shown: Sequence[Cell], over: str, name: str, wide: int | None = None) -> tuple[alt.HConcatChart, float]:
    """A panel for each width, in it bars for each mixer and value of axis `over`; and about how wide that is."""
    import altair as alt

    mixers, values, widths = texts(shown, "mixer"), texts(shown, over), texts(shown, "d_model")
    wide = panel_width(len(widths)) if wide is None else wide
    high = len(mixers) * (BAR * len(values) + SPACE)
    line = []
    for width in widths:
        first = width == widths[0]
        part = [cell | {"end": cell["high"] or 0} for cell in shown if cell["d_model"] == width]
        y = alt.Y("mixer:N", sort=mixers, title=name if first else None)
        y = y.scale(domain=mixers, paddingInner=0, paddingOuter=0).axis(labelOpacity=float(first))
        base = chart_of(part).encode(
            y=y,
            yOffset=alt.YOffset(f"{over}:N", sort=values).scale(
                domain=values, paddingOuter=SPACE / BAR / 2, paddingInner=0
            ),
            tooltip=tooltips(["mixer", over, "d_model"]),
        )
        line.append(
            alt.LayerChart(layer=_layers(base, over, values), width=wide, height=high)
            .properties(title=heading(named("d_model", width), wide))
        )  # fmt: skip
    return beside_each_other(line), (wide + GAP) * len(widths) + NAME * max(map(len, mixers)) + 30


def _layers(base: alt.Chart, over: str, values: Sequence[str]) -> list[alt.Chart]:
    """Bars, the range of their seeds, and their numbers or the words for those that have none."""
    import altair as alt

    x = alt.X("value:Q", title=MEASURE).scale(domain=[0, 1 + ROOM], nice=False)
    x = x.axis(values=[0, 0.5, 1], labelExpr="100 * datum.value", grid=True, labelFlush=False, titleAnchor="start")
    legend = alt.Legend(title=None, orient="top", symbolType="square", offset=10)
    colour = alt.Color(f"{over}:N", sort=list(values), legend=legend)
    full, empty = (base.transform_filter(f"{no}isValid(datum.value)") for no in ("", "!"))
    ranges = base.transform_filter("datum.low < datum.high")
    return [
        full.mark_bar().encode(x=x, color=colour.scale(domain=list(values), range=shades(len(values)))),
        ranges.mark_rule(color="black").encode(x="low:Q", x2="high:Q"),
        full.mark_text(fontSize=9, align="left", dx=3).encode(x="end:Q", text="label:N"),
        empty.mark_text(fontSize=9, align="left", dx=3, color=GREY).encode(x="end:Q", text="label:N"),
    ]
