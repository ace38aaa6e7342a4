"""The figures of a study: heat maps and bars by mixer and width, and scatter plots of dev against test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.cells import DETAILS, UNLEARNT, Cell, cells, described, notes, percent, texts_of
from mecheval.figures.vegalite import FAINT, GAP, GREY, LETTER, mixer_marks, shades, wrapped
from mecheval.sites import Site
from mecheval.studies import StudyTable
from mecheval.studies.axes import NAMES, TASK_AXES, named, plain, say

ACCURACY, SCORE = {"test_accuracy": "test accuracy"}, "accuracy (%)"
"""The column of an accuracy chart with its title, and what its numbers are."""
MEASURES = {
    "restored": "likelihood of the answer (%)", "attribution": "attribution (points)", "share": "restored share (%)",
}  # fmt: skip
"""What a reading is, by its column of table effects."""
ATTRIBUTION = "attribution to each layer's mixer at the query (points)"
ATTRIBUTABLE = 0.01
"""Likelihood of the answer above which there is something to attribute, as in the paper."""
OVER = ("positions", "n_layers", "short_conv", "recipe", *TASK_AXES)
"""The axes of which an accuracy chart shows each value in a panel of its own."""
DEPTH = ["n_layers", "mixer", "d_model"]
"""The axes of the depth figure."""
RANGES = "with lines from the lowest to the highest"

CELL = 36, 21
"""Pixels of a cell, across and down; across is more where there are few columns, for the titles of the panels."""
CORNER = "M-0.4,0.4L-1.3,0.4L-0.4,1.3Z"
"""Mark of a cell whose seeds disagree: a triangle, from the top right corner of the cell to the left and down."""
BAR, SPACE = 10, 8
"""Height of a bar, and space between the bars of two mixers, in pixels."""
ROOM = 0.32
"""Space to the right of a full bar for its number, as a share of that bar."""
LEGEND = 110
"""Width of the legend, in pixels."""
NAME = 6.5
"""Width in pixels of one letter of the name of a row."""

FIRST, POINT = "accuracy", ["mixer", "d_model"]
"""The first panel of the scatter plots, and the axes of their points."""
SIDE, FEW = 180, 6
"""Pixels of a scatter plot, and how many of the points that are missing a note names."""
ABOUT = ("mixer", "d_model", "seeds", "rate", "verdict", "runs")
"""Fields of a cell that its point keeps."""

Point = dict[str, Any]
"""A mixer and width: `x`, `y`, their ranges (x_low, x_high, y_low, y_high), `quantity` and fields of the tooltip."""


def panels(table: StudyTable, title: str) -> vl.Chart:
    """The likelihoods without an intervention and every reading of the study: a heat map for each."""
    kinds = dict.fromkeys(["restored", *(reading.column for reading in table.readings)])
    return _maps(table, title, table.titles, None, ", ".join(MEASURES.get(kind, kind) for kind in kinds))


def accuracy(table: StudyTable, title: str) -> vl.Chart:
    """Test accuracy: a heat map for each value of an axis of `OVER`, or bars where tasks are compared."""
    over = next((axis for axis in OVER if axis in table.axes), "task" if "task" in table.axes else None)
    if over in (None, "task") or "task" not in table.axes or table.frame.empty:
        return _maps(table, title, ACCURACY, over, SCORE)
    tasks = [table.where(task=task) for task in table.axis("task")]  # they may differ in their widths
    shown = [cells(task, ACCURACY, ["task", "mixer", over, "d_model"]) for task in tasks]
    lines = [_bars(part, over, part[0]["task"]) for part in shown]
    every = [cell for part in shown for cell in part]
    said = f"{title}. Bars of the {SCORE}. {described(every, 'task', ['mixer', over, 'd_model'])}"
    chart = vl.below([line for line, _ in lines], 2 * GAP)
    return vl.finish(chart, title, notes(every, ranges=RANGES), max(pixels for _, pixels in lines), said)


def depth(table: StudyTable, title: str) -> vl.Chart:
    """Accuracy as bars for each number of layers; below, the attribution to each layer: a panel a depth and width."""
    scores, effects = cells(table, ACCURACY, DEPTH), attributions(table)
    layers, widths = (len(texts_of(effects, axis)) for axis in ("layer", "d_model"))
    wide = max(_panel_width(widths), layers * _column_width(layers))
    bars, _ = _bars(scores, "n_layers", "accuracy", wide)
    maps, pixels = _grid(effects, "mixer", "layer", "d_model", "n_layers", ATTRIBUTION, wide)
    said = f"{title}. Bars of the {SCORE}. {described(scores, 'n_layers', ['mixer', 'd_model'])}"
    said += f" Heat maps of the {ATTRIBUTION}. {described(effects, 'layer', DEPTH)}"
    about = notes([*scores, *effects], ranges=RANGES, corners=True)
    return vl.finish(vl.below([bars, maps], 2 * GAP), title, about, pixels, said)


def attributions(table: StudyTable) -> list[Cell]:
    """Cells of the readings at outputs of mixers, for each layer that a model has, of runs that learnt something."""
    columns = {}
    for reading in table.readings:
        if not isinstance(reading.site, Site):
            raise UserError(f"depth: give the site of reading {reading.name} as Site(block, part).")
        if reading.site.part == "mixer.output":
            columns[reading.name] = str(reading.site.block)
    learnt = [plain(value) is None or value > ATTRIBUTABLE for value in table.frame["original"]]
    frame = table.frame.assign(status=table.frame["status"].where(learnt, UNLEARNT))
    made = cells(replace(table, frame=frame), columns, DEPTH)
    has = {say("n_layers", number): number for number in table.axis("n_layers")}
    return [cell | {"layer": cell["quantity"]} for cell in made if int(cell["quantity"]) < has[cell["n_layers"]]]


def row_axis(table: StudyTable) -> str:
    """What varies besides the width: an option of one mixer, the learning rate where all are there, or the mixer."""
    setting = [axis for axis in table.axes if axis not in ("mixer", "lr", *table.options)]
    every_rate = table.frame["mixer"].nunique() == 1 and table.frame.duplicated(setting).any()
    return table.options[0] if table.options else "lr" if every_rate else "mixer"


def _maps(table: StudyTable, title: str, columns: Mapping[str, str], by: str | None, measure: str) -> vl.Chart:
    """Heat maps of columns (name -> title): a panel for each of them, or for each value of axis `by`."""
    rows = row_axis(table)
    axes = [*([by] if by else []), rows, "d_model"]
    shown = cells(table, columns, axes)
    chart, pixels = _grid(shown, rows, "d_model", by or "quantity", None, measure)
    said = f"{title}. Heat maps of the {measure} by {rows} and d_model. {described(shown, by or 'quantity', axes)}"
    return vl.finish(chart, title, notes(shown, corners=True), pixels, said)


def _column_width(columns: int) -> int:
    """Width in pixels of a column of a heat map with this number of columns."""
    return max(CELL[0], 84 // columns)


def _panel_width(panels: int) -> int:
    """Width in pixels of a panel of bars, by the number of panels side by side."""
    return {1: 260, 2: 180}.get(panels, 112)


def _grid(
    shown: Sequence[Cell], rows: str, across: str, by: str, down: str | None, measure: str, wide: int = 0
) -> tuple[vl.Spec, float]:
    """Heat maps side by side for each text of field `by`, and below each other for `down`; and about how wide that is.

    Panels are at least `wide`; where that is given, they stand below others of that width, and have no titles.
    """
    names, columns, panels = (texts_of(shown, axis) for axis in (rows, across, by))
    levels = [""] if down is None else texts_of(shown, down)
    heads, wide = not wide, max(wide, _column_width(len(columns)) * len(columns))
    legend = {
        "title": wrapped(measure, LEGEND - 10, LETTER - 1), "values": [0, 0.5, 1], "labelExpr": "100 * datum.value",
        "gradientLength": 100,
    }  # fmt: skip
    lines = []
    for level in levels:
        line = []
        for name in panels:
            part = [cell for cell in shown if cell[by] == name and (down is None or cell[down] == level)]
            bottom = level == levels[-1]
            ticks = {"orient": "bottom", "labelAngle": 0, "labels": bottom}
            under = NAMES.get(across) if bottom else None
            x = vl.field(f"{across}:N", sort=columns, title=under, scale={"domain": columns}, axis=ticks)
            y = _row_names(rows, names, level or NAMES.get(rows, rows if rows != "mixer" else None), name == panels[0])
            tips = vl.tooltips([*([down] if down else []), by, rows, across, *DETAILS], TIPS)
            rest: dict[str, Any] = {"title": vl.heading(name, wide)} if heads and level == levels[0] else {}
            layers, high = _cell_layers(x, y, legend), CELL[1] * len(names)
            line.append(vl.panel(layers, wide, high, part, encoding={"tooltip": tips}, **rest))
        lines.append(vl.beside(line, GAP))
    return vl.below(lines, GAP), (wide + GAP) * len(panels) + NAME * max(map(len, names)) + LEGEND


TIPS = {"shown": "mean", "rate": "learning rate"}
"""Titles of the fields of a tooltip that have another name there."""


def _row_names(rows: str, names: Sequence[str], title: str | None, first: bool, **scale: Any) -> vl.Spec:
    """The axis of rows, whose names and title are seen beside the first panel only."""
    shown, axis = title if first else None, {"labelOpacity": float(first)}
    return vl.field(f"{rows}:N", sort=names, title=shown, scale={"domain": names, **scale}, axis=axis)


def _cell_layers(x: vl.Spec, y: vl.Spec, legend: vl.Spec) -> list[vl.Spec]:
    """Coloured cells with numbers, empty cells with words, and marks where seeds disagree."""
    full, empty, at = "isValid(datum.value)", "!isValid(datum.value)", {"x": x, "y": y}
    text, corner = vl.field("label:N"), {"x": {**x, "bandPosition": 1}, "y": {**y, "bandPosition": 0}}
    colour = vl.field("value:Q", scale=vl.FILL, legend=legend)
    mark: dict[str, Any] = {"shape": CORNER, "filled": True, "size": 110, "opacity": 1}
    return [
        vl.layer("rect", {**at, "color": colour}, where=full, stroke="white"),
        vl.layer("rect", at, where=empty, fill="white", stroke=FAINT, strokeDash=[2, 2]),
        vl.layer("text", {**at, "text": text}, where=empty, fontSize=10, color=GREY),
        vl.layer("text", {**at, "text": text, "color": vl.ink("value")}, where=full, fontSize=10),
        vl.layer("point", {**corner, "color": vl.ink("value")}, where="datum.apart", **mark),
    ]


def _bars(shown: Sequence[Cell], over: str, name: str, wide: int = 0) -> tuple[vl.Spec, float]:
    """A panel for each width, in it bars for each mixer and value of axis `over`; and about how wide that is."""
    mixers, values, widths = (texts_of(shown, axis) for axis in ("mixer", over, "d_model"))
    wide = wide or _panel_width(len(widths))
    line = []
    for width in widths:
        part = [cell | {"end": cell["high"] or 0} for cell in shown if cell["d_model"] == width]
        offset = {"domain": values, "paddingOuter": SPACE / BAR / 2, "paddingInner": 0}
        shared = {
            "y": _row_names("mixer", mixers, name, width == widths[0], paddingInner=0, paddingOuter=0),
            "yOffset": vl.field(f"{over}:N", sort=values, scale=offset),
            "tooltip": vl.tooltips(["mixer", over, "d_model", *DETAILS], TIPS),
        }
        high, head = len(mixers) * (BAR * len(values) + SPACE), vl.heading(named("d_model", width), wide)
        line.append(vl.panel(_bar_layers(over, values), wide, high, part, encoding=shared, title=head))
    return vl.beside(line, GAP), (wide + GAP) * len(widths) + NAME * max(map(len, mixers)) + 30


def _bar_layers(over: str, values: Sequence[str]) -> list[vl.Spec]:
    """Bars, the range of their seeds, and their numbers or the words for those that have none."""
    x = vl.field("value:Q", title=SCORE, scale={"domain": [0, 1 + ROOM], "nice": False},
              axis={**vl.PERCENT, "labelFlush": False, "titleAnchor": "start"})  # fmt: skip
    legend = {"title": None, "orient": "top", "symbolType": "square", "offset": 10}
    scale = {"domain": values, "range": shades(len(values))}
    text = {"x": vl.field("end:Q"), "text": vl.field("label:N")}
    spread = {"x": vl.field("low:Q"), "x2": {"field": "high"}}
    look: dict[str, Any] = {"fontSize": 9, "align": "left", "dx": 3}
    full, empty = "isValid(datum.value)", "!isValid(datum.value)"
    return [
        vl.layer("bar", {"x": x, "color": vl.field(f"{over}:N", sort=values, scale=scale, legend=legend)}, where=full),
        vl.layer("rule", spread, where="datum.low < datum.high", color="black"),
        vl.layer("text", text, where=full, **look),
        vl.layer("text", text, where=empty, **look, color=GREY),
    ]


def pairs(table: StudyTable) -> dict[str, tuple[str, str]]:
    """Title of a panel -> its columns across and up: accuracy, then readings that the study has on dev and on test."""
    dev = {(each.site, each.role, each.column): each.name for each in table.readings if each.split == "dev"}
    test = [(each, (each.site, each.role, each.column)) for each in table.readings if each.split == "test"]
    found = {each.title: (dev[place], each.name) for each, place in test if place in dev}
    return {FIRST: ("dev_accuracy", "test_accuracy"), **found}


def holdout(table: StudyTable, title: str) -> vl.Chart:
    """Scores on dev across and on test up, a point for each mixer and width: accuracy, then the paired readings."""
    made = {}
    for name, columns in pairs(table).items():
        xs, ys = (cells(table, {column: name}, POINT) for column in columns)
        both = [(x, y) for x, y in zip(xs, ys, strict=True) if x["value"] is not None and y["value"] is not None]
        made[name] = [_point(x, y) for x, y in both]
    first, order = made[FIRST], cells(table, {"dev_accuracy": ""}, POINT)  # with those that have no point
    low = min([0.0, *(point[end] for points in made.values() for point in points for end in ("x_low", "y_low"))])
    mixers, widths = texts_of(order, "mixer"), texts_of(order, "d_model")
    panels = [_scatter(name, points, low, mixers, widths) for name, points in made.items()]
    notes = ["below the line: less on held-out pairs than on those of training"]
    if any(point[f"{axis}_low"] < point[f"{axis}_high"] for point in first for axis in "xy"):
        notes[0] += "; means over seeds, with lines from the lowest to the highest"
    there = {(point["mixer"], point["d_model"]) for point in first}
    gone = [f"{c['mixer']} {c['d_model']} ({c['status']})" for c in order if (c["mixer"], c["d_model"]) not in there]
    if gone:
        notes.append(f"not shown: {', '.join(gone[:FEW])}{f' and {len(gone) - FEW} more' if len(gone) > FEW else ''}")
    said = f"{title}. Scatter plots of dev against test, {len(first)} points. {_pairs_described(made)}"
    return vl.finish(vl.beside(panels, 2 * GAP), title, notes, (SIDE + 3 * GAP) * len(panels), said)


def _point(x: Cell, y: Cell) -> Point:
    ends = {f"{axis}_{end}": cell[end] for axis, cell in (("x", x), ("y", y)) for end in ("low", "high")}
    scores = {"x": x["value"], "y": y["value"], "dev": x["shown"], "test": y["shown"], "quantity": x["quantity"]}
    return {**{name: x[name] for name in ABOUT}, **ends, **scores}


def _scatter(name: str, points: Sequence[Point], low: float, mixers: Sequence[str], widths: Sequence[str]) -> vl.Spec:
    scale = {"domain": [low, 1], "nice": False}
    axis = {**vl.PERCENT, "values": [0, 0.25, 0.5, 0.75, 1], "labelFlush": False}
    first = name == FIRST
    x = vl.field("x:Q", title="dev (%)", scale=scale, axis=axis)
    y = vl.field("y:Q", title="test, held out (%)" if first else None, scale=scale,
              axis={**axis, "labelOpacity": float(first)})  # fmt: skip
    hues, shapes, _ = zip(*mixer_marks(mixers).values(), strict=True)
    dots = {
        "x": vl.field("x:Q"), "y": vl.field("y:Q"),
        **vl.marks("mixer", mixers, color=hues, shape=shapes),
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


def _pairs_described(made: dict[str, list[Point]]) -> str:
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
