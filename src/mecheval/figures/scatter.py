"""Dev against test: what a model makes of combinations that training never asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mecheval.figures.cells import Cell, cells, percent
from mecheval.figures.matrix import GAP, beside_each_other, heading, texts
from mecheval.figures.style import GREY, chart_of, finish, mixer_marks
from mecheval.studies.axes import named

if TYPE_CHECKING:  # both are slow to import
    import altair as alt
    import pandas as pd

PAIRS = {
    "accuracy": ("dev_accuracy", "test_accuracy"),
    "attribution at key": ("dev_attribution_key", "attribution_key"),
    "attribution at value": ("dev_attribution_value", "attribution_value"),
    "attribution at query": ("dev_attribution_query", "attribution_query"),
}
"""Title of a panel -> its columns: across, and up."""
SIDE, FEW = 180, 6
"""Pixels of a panel, and how many points that are not there are named."""
AXES = ["mixer", "d_model"]
TIPS, SAID = ("mixer", "d_model", "dev", "test", "seeds", "rate", "verdict", "runs"), {"rate": "learning rate"}
"""What a tooltip shows, and what fields are called there."""

Point = dict[str, Any]
"""A mixer and width with `x`, `y`, their ranges (x_low, x_high, y_low, y_high), `quantity` and what a tooltip says."""


def holdout(frame: pd.DataFrame, title: str) -> alt.HConcatChart:
    """Scores on dev across and on test up, a point for each mixer and width: accuracy, then attributions."""
    made = {name: [point | {"quantity": name} for point in _points(frame, *columns)] for name, columns in PAIRS.items()}
    first = made["accuracy"]
    low = min([0.0, *(point[end] for points in made.values() for point in points for end in ("x_low", "y_low"))])
    order = cells(frame, {"dev_accuracy": ""}, AXES)  # with those that have no point
    mixers, widths = texts(order, "mixer"), texts(order, "d_model")
    panels = [_panel(name, points, low, mixers, widths) for name, points in made.items()]
    chart = beside_each_other(panels, 2 * GAP)
    notes = ["below the line: less on held-out pairs than on those of training"]
    if any(point[f"{axis}_low"] < point[f"{axis}_high"] for point in first for axis in "xy"):
        notes[0] += "; means over seeds, with lines from the lowest to the highest"
    there = {(point["mixer"], point["d_model"]) for point in first}
    gone = [f"{c['mixer']} {c['d_model']} ({c['status']})" for c in order if (c["mixer"], c["d_model"]) not in there]
    if gone:
        notes.append(f"not shown: {', '.join(gone[:FEW])}{f' and {len(gone) - FEW} more' if len(gone) > FEW else ''}")
    said = f"{title}. Scatter plots of dev against test, {len(first)} points. {_described(made)}"
    return finish(chart, title, notes, (SIDE + 3 * GAP) * len(panels), said)


def _points(frame: pd.DataFrame, across: str, up: str) -> list[Point]:
    """Mixers and widths that have both scores."""
    xs, ys = (cells(frame, {column: column}, AXES) for column in (across, up))
    return [_point(x, y) for x, y in zip(xs, ys, strict=True) if x["value"] is not None and y["value"] is not None]


def _point(x: Cell, y: Cell) -> Point:
    ends = {f"{axis}_{end}": cell[end] for axis, cell in (("x", x), ("y", y)) for end in ("low", "high")}
    same = {name: x[name] for name in ("mixer", "d_model", "seeds", "rate", "verdict", "runs")}
    return {**same, "x": x["value"], "y": y["value"], **ends, "dev": x["shown"], "test": y["shown"]}


def _panel(
    name: str, points: Sequence[Point], low: float, mixers: Sequence[str], widths: Sequence[str]
) -> alt.LayerChart:
    import altair as alt

    marks = mixer_marks(mixers)
    scale = alt.Scale(domain=[low, 1], nice=False)
    axis: dict[str, Any] = {
        "values": [0, 0.25, 0.5, 0.75, 1],
        "labelExpr": "100 * datum.value",
        "grid": True,
        "labelFlush": False,
    }
    x = alt.X("x:Q", title="dev (%)", scale=scale).axis(**axis)
    first = name == "accuracy"
    y = alt.Y("y:Q", title="test, held out (%)" if first else None, scale=scale)
    y = y.axis(**axis, labelOpacity=float(first))
    base = chart_of(points).encode(x="x:Q", y="y:Q")
    line = chart_of([{"x": end, "y": end} for end in (low, 1.0)])
    hues = alt.Scale(domain=list(mixers), range=[marks[mixer][0] for mixer in mixers])
    shapes = alt.Scale(domain=list(mixers), range=[marks[mixer][1] for mixer in mixers])
    dots = base.mark_point(filled=True, opacity=0.9, size=70).encode(
        color=alt.Color("mixer:N", sort=list(mixers), scale=hues),
        shape=alt.Shape("mixer:N", sort=list(mixers), scale=shapes),
        tooltip=[alt.Tooltip(f"{field}:N", title=SAID.get(field, field)) for field in TIPS],
    )
    if len(widths) > 1:
        sizes = alt.Scale(domain=list(widths), range=[25 + 115 * n / (len(widths) - 1) for n in range(len(widths))])
        dots = dots.encode(size=alt.Size("d_model:O", sort=list(widths), scale=sizes))
    return alt.LayerChart(
        layer=[
            line.mark_line(color=GREY, strokeDash=[3, 3], strokeWidth=1).encode(x=x, y=y),
            base.mark_rule(color=GREY, opacity=0.6).encode(x="x_low:Q", x2="x_high:Q"),
            base.mark_rule(color=GREY, opacity=0.6).encode(y="y_low:Q", y2="y_high:Q"),
            dots,
        ],
        width=SIDE,
        height=SIDE,
        title=heading(name, SIDE),
    )


def _described(made: dict[str, list[Point]]) -> str:
    """For each panel, the point that is best on test and the one that loses most."""
    said = []
    for name, points in made.items():
        if not points:
            said.append(f"{name}: no results")
            continue
        best, worst = max(points, key=lambda p: float(p["y"])), max(points, key=lambda p: float(p["x"] - p["y"]))
        said.append(
            f"{name}: highest on test {percent(best['y'])} % ({_who(best)}; dev {percent(best['x'])} %), "
            f"largest fall {percent(worst['x'])} to {percent(worst['y'])} % ({_who(worst)})"
        )
    return "; ".join(said) + "."


def _who(point: Point) -> str:
    return f"{point['mixer']}, {named('d_model', point['d_model'])}"
