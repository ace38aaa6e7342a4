"""Dev against test: how a model scores on combinations that training never asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mecheval.figures import vegalite as vl
from mecheval.figures.cells import Cell, cells, percent, texts_of
from mecheval.figures.style import GREY, mixer_marks
from mecheval.figures.vegalite import GAP
from mecheval.studies import StudyTable
from mecheval.studies.axes import named

ACCURACY = "accuracy"
SIDE, FEW = 180, 6
"""Pixels of a panel, and how many of the points that are missing a note names."""
AXES = ["mixer", "d_model"]
ABOUT = ("mixer", "d_model", "seeds", "rate", "verdict", "runs")
"""Fields of a cell that its point keeps."""

Point = dict[str, Any]
"""A mixer and width: `x`, `y`, their ranges (x_low, x_high, y_low, y_high), `quantity` and fields of the tooltip."""


def pairs(table: StudyTable) -> dict[str, tuple[str, str]]:
    """Title of a panel -> its columns across and up: accuracy, then readings that the study has on dev and on test."""
    dev = {(each.site, each.role, each.column): each.name for each in table.readings if each.split == "dev"}
    test = [(each, (each.site, each.role, each.column)) for each in table.readings if each.split == "test"]
    found = {each.title: (dev[place], each.name) for each, place in test if place in dev}
    return {ACCURACY: ("dev_accuracy", "test_accuracy"), **found}


def holdout(table: StudyTable, title: str) -> vl.Chart:
    """Scores on dev across and on test up, a point for each mixer and width: accuracy, then the paired readings."""
    made = {}
    for name, columns in pairs(table).items():
        xs, ys = (cells(table, {column: name}, AXES) for column in columns)
        both = [(x, y) for x, y in zip(xs, ys, strict=True) if x["value"] is not None and y["value"] is not None]
        made[name] = [_point(x, y) for x, y in both]
    first, order = made[ACCURACY], cells(table, {"dev_accuracy": ""}, AXES)  # with those that have no point
    low = min([0.0, *(point[end] for points in made.values() for point in points for end in ("x_low", "y_low"))])
    mixers, widths = texts_of(order, "mixer"), texts_of(order, "d_model")
    panels = [_panel(name, points, low, mixers, widths) for name, points in made.items()]
    notes = ["below the line: less on held-out pairs than on those of training"]
    if any(point[f"{axis}_low"] < point[f"{axis}_high"] for point in first for axis in "xy"):
        notes[0] += "; means over seeds, with lines from the lowest to the highest"
    there = {(point["mixer"], point["d_model"]) for point in first}
    gone = [f"{c['mixer']} {c['d_model']} ({c['status']})" for c in order if (c["mixer"], c["d_model"]) not in there]
    if gone:
        notes.append(f"not shown: {', '.join(gone[:FEW])}{f' and {len(gone) - FEW} more' if len(gone) > FEW else ''}")
    said = f"{title}. Scatter plots of dev against test, {len(first)} points. {_described(made)}"
    return vl.finish(vl.beside(panels, 2 * GAP), title, notes, (SIDE + 3 * GAP) * len(panels), said)


def _point(x: Cell, y: Cell) -> Point:
    ends = {f"{axis}_{end}": cell[end] for axis, cell in (("x", x), ("y", y)) for end in ("low", "high")}
    scores = {"x": x["value"], "y": y["value"], "dev": x["shown"], "test": y["shown"], "quantity": x["quantity"]}
    return {**{name: x[name] for name in ABOUT}, **ends, **scores}


def _panel(name: str, points: Sequence[Point], low: float, mixers: Sequence[str], widths: Sequence[str]) -> vl.Spec:
    scale = {"domain": [low, 1], "nice": False}
    axis = {**vl.PERCENT, "values": [0, 0.25, 0.5, 0.75, 1], "labelFlush": False}
    first = name == ACCURACY
    x = vl.field("x:Q", title="dev (%)", scale=scale, axis=axis)
    y = vl.field("y:Q", title="test, held out (%)" if first else None, scale=scale,
              axis={**axis, "labelOpacity": float(first)})  # fmt: skip
    hues, shapes, _ = zip(*mixer_marks(mixers).values(), strict=True)
    dots = {
        "x": vl.field("x:Q"), "y": vl.field("y:Q"),
        "color": vl.field("mixer:N", sort=mixers, scale={"domain": mixers, "range": list(hues)}),
        "shape": vl.field("mixer:N", sort=mixers, scale={"domain": mixers, "range": list(shapes)}),
        "tooltip": vl.tooltips([*ABOUT[:2], "dev", "test", *ABOUT[2:]], {"rate": "learning rate"}),
    }  # fmt: skip
    if len(widths) > 1:
        sizes = [25 + 115 * n / (len(widths) - 1) for n in range(len(widths))]
        dots["size"] = vl.field("d_model:O", sort=widths, scale={"domain": widths, "range": sizes})
    across, up = ({axis: vl.field(f"{axis}_low:Q"), f"{axis}2": {"field": f"{axis}_high"}} for axis in "xy")
    level = [{"x": end, "y": end} for end in (low, 1.0)]
    layers = [
        vl.layer("line", {"x": x, "y": y}, rows=level, color=GREY, strokeDash=[3, 3], strokeWidth=1),
        vl.layer("rule", {"y": vl.field("y:Q"), **across}, color=GREY, opacity=0.6),
        vl.layer("rule", {"x": vl.field("x:Q"), **up}, color=GREY, opacity=0.6),
        vl.layer("point", dots, filled=True, opacity=0.9, size=70),
    ]
    return vl.panel(layers, SIDE, SIDE, points, title=vl.heading(name, SIDE))


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
