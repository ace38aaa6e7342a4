"""Lines along training: the accuracy of the runs of a study, and the mechanism of single runs as it forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.canvas import cut
from mecheval.figures.cells import number, percent
from mecheval.figures.vegalite import DASHES, GAP, GREY, RAMP, mixer_marks
from mecheval.intervene.mechanism import Rule, depths_of
from mecheval.sites import Site, sites_in
from mecheval.studies import StudyTable, best_rows
from mecheval.studies.axes import NAMES, named, plain, say
from mecheval.types import carriers, is_on_maps

if TYPE_CHECKING:  # slow to import
    import pandas as pd

DOWN = ("task", "positions", "short_conv", "n_layers")
"""Axes that, like options, have a line of panels for each combination of their values, where they vary."""
SIDES = {1: (420, 220), 2: (260, 160)}
SIDE = (170, 120)
"""Pixels of a panel across and down, by how many stand side by side."""
POINTS = 150
"""Most points of one curve; more cannot be seen."""
DIGITS = 4
"""Decimals of the numbers in a line."""
THOUSANDS = "datum.value < 1000 ? datum.value : format(datum.value, '~s')"
STEP = vl.field(
    "step:Q", title="step", scale={"type": "log", "nice": False},
    axis={
        "labelExpr": THOUSANDS, "values": [digit * 10**power for power in range(8) for digit in (1, 2, 5)],
        "labelFlush": False, "labelOverlap": True,
    },
)  # fmt: skip
"""The axis of training steps, by orders of magnitude: what is learnt soon is seen as well as what is learnt late."""
MOST_LABELS = 10
"""Most colours whose names stand at the ends of their curves; more have a legend."""
APART = 15.0
"""Pixels between two names."""
LABEL: dict[str, Any] = {"angle": 315, "align": "left", "baseline": "middle", "dx": 4, "dy": -4, "fontSize": 11}
CROSS: dict[str, Any] = {"shape": "M-1,-1L1,1M-1,1L1,-1", "size": 40, "strokeWidth": 1.5, "opacity": 1}

MARKS = {
    "key": ("#e69f00", (6, 2)), "value": ("#d55e00", (1, 0)), "next_key": ("#009e73", (2, 2)),
    "query": ("#0072b2", (8, 2, 2, 2)),
}  # fmt: skip
"""Role -> colour and dash of its line; those of other roles are in OTHERS, in their order."""
OTHERS = (*MARKS.values(), ("#cc79a7", (4, 4)), ("#56b4e9", (1, 3)))
ACCURACY = "dev accuracy"
SMALL = (220, 130)
"""Pixels of a panel in the figure of mechanisms."""
LONGEST = 40
"""Most characters of the title of a panel."""
MOST_SITES = 12
"""Most panels of one run; the built-in mixers need at most six."""
AXES = ("task", "mixer", "d_model", "n_layers", "lr", "seed")
"""Columns of table runs that tooltips show."""
COLUMNS = {"share": "share", "low": "share_low", "high": "share_high"}
"""Field of a line -> column of table effects: the share, and the ends of its 95 % interval."""

T = TypeVar("T")
Curve = dict[str, Any]
"""A run: its axes, `hue` (text), `strong`, `score`, and `points`, a list of (step, accuracy)."""
Points = Sequence[tuple[int, float]]
Line = dict[str, Any]
"""A role at a site of a run: `step` and `share` as lists, and texts about the run."""
Panel = tuple[dict[str, str], Site, list[Line], Points]
"""Texts about the run, the site, its lines, and the accuracy behind them."""


def strokes(
    name: str, title: str | None, texts: Sequence[str], hues: Sequence[str], dashes: Sequence[Any], *,
    shown: bool = True,
) -> vl.Spec:  # fmt: skip
    """Colours and dashes of lines by the texts in a field, with one legend for both where it is `shown`."""
    stroke = {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 2, "symbolOpacity": 1}
    legend = stroke if shown else None
    ranges = {"color": list(hues), "strokeDash": [list(dash) for dash in dashes]}
    return {
        channel: vl.field(f"{name}:N", title=title, sort=texts, legend=legend, scale={"domain": texts, "range": values})
        for channel, values in ranges.items()
    }


def thinned(points: Sequence[T], most: int = POINTS) -> list[T]:
    """About so many of the points at most, evenly, and always the last."""
    stride = -(-len(points) // most)
    return [point for index, point in enumerate(points) if index % stride == 0 or index == len(points) - 1]


def points_of(history: pd.DataFrame) -> dict[str, Points]:
    """The accuracy on dev by step of each run."""
    scores = history[["run", "step", "dev_accuracy"]].dropna().sort_values("step", kind="stable")
    scores = scores[scores["step"] > 0]  # the axis has no zero
    points: dict[str, list[tuple[int, float]]] = {}
    for run, step, score in scores.itertuples(index=False):
        points.setdefault(run, []).append((int(step), float(score)))
    return {run: thinned(own) for run, own in points.items()}


def curves(table: StudyTable, history: pd.DataFrame, title: str) -> vl.Chart:
    """Accuracy on dev along training, a line a run: a panel a width, a colour and dash a mixer (or what varies).

    `table` has all learning rates; of runs that differ only in the rate, the one with the highest accuracy is strong
    and the others are faint. A run that diverged ends in a cross.
    """
    if table.frame.empty:
        raise UserError("there are no runs to show.")
    there = table.varying()
    varying = [axis for axis in ("mixer", *table.options, "lr", *DOWN) if axis in there]
    colour = next((axis for axis in varying if axis not in DOWN), "mixer")
    down = [axis for axis in (*DOWN, *table.options) if axis in varying and axis != colour]
    axes = list(dict.fromkeys(("mixer", "d_model", *(axis for axis in varying if axis != "lr"))))
    drawn = arranged_curves(table, history, colour)
    texts = [say(colour, value) for value in table.axis(colour)]
    labelled = len(texts) <= MOST_LABELS
    legend = strokes("hue", NAMES.get(colour, colour), texts, *_looks(colour, texts), shown=not labelled)
    steps = [step for curve in drawn for step, _ in curve["points"]] or [1]
    widths = table.axis("d_model")
    across, high = SIDES.get(len(widths), SIDE)
    lines = []
    for level in product(*map(table.axis, down)):
        place = dict(zip(down, level, strict=True))
        here = [curve for curve in drawn if all(curve[axis] == value for axis, value in place.items())]
        name = ", ".join(named(axis, say(axis, value)) for axis, value in place.items()) or "dev accuracy (%)"
        panels: list[vl.Spec] = []
        for width in widths:
            part = [curve for curve in here if curve["d_model"] == width]
            if part:  # tasks may differ in their widths
                layers = _curve_layers(part, colour, legend, None if panels else name, axes)
                if labelled:
                    labels = _labels(part, (min(steps), max(steps)), (across, high))
                    layers.append(vl.layer("text", _at_pixels(legend), rows=labels, **LABEL))
                head = vl.heading(named("d_model", say("d_model", width)), across)
                panels.append(vl.panel(layers, across, high, title=head))
        if panels:
            lines.append(vl.beside(panels, 4 * GAP))
    pixels = (across + 4 * GAP) * len(widths) + 90
    return vl.finish(vl.below(lines, GAP), title, _curve_notes(drawn), pixels, _curves_described(drawn, title, colour))


def _labels(part: Sequence[Curve], ends: tuple[int, int], sides: tuple[int, int]) -> list[dict[str, Any]]:
    """The name of each colour at the end of its best curve, in pixels; names that would touch move to the right."""
    (first, last), (across, high) = ends, sides
    whole = math.log(last / first) or 1.0
    best: dict[str, Curve] = {}
    for curve in part:
        if (
            curve["strong"]
            and curve["points"]
            and (curve["score"] or 0) >= (best.get(curve["hue"], {}).get("score") or 0)
        ):
            best[curve["hue"]] = curve
    placed: list[dict[str, Any]] = []
    for curve in sorted(best.values(), key=lambda curve: curve["points"][-1][0]):
        step, score = curve["points"][-1]
        x, y = math.log(step / first) / whole * across, (1 - score) * high
        for other in placed:
            if abs(other["y"] - y) < APART and x - other["x"] < APART:
                x = other["x"] + APART
        placed.append({"hue": curve["hue"], "x": round(x, 1), "y": round(y, 1)})
    return placed


def _at_pixels(legend: vl.Spec) -> vl.Spec:
    """Names at places in pixels, in the colours of their curves."""
    return {
        **{axis: vl.field(f"{axis}:Q", scale=None, axis=None) for axis in ("x", "y")}, "text": vl.field("hue:N"),
        "color": legend["color"],
    }  # fmt: skip


def arranged_curves(table: StudyTable, history: pd.DataFrame, colour: str) -> list[Curve]:
    """The runs with their curves; those without one have no points."""
    setting = [axis for axis in table.axes if axis != "lr" or colour == "lr"]
    best, points = set(best_rows(table.frame, setting)["run"]), points_of(history)
    drawn = []
    for row in table.frame.to_dict("records"):
        curve: Curve = {name: plain(row[name]) for name in (*table.axes, "run", "status")}
        score = number(row, "dev_accuracy")
        strong = score is not None and row["run"] in best
        hue = say(colour, curve[colour])
        drawn.append(curve | {"hue": hue, "points": points.get(row["run"], []), "score": score, "strong": strong})
    return drawn


def _looks(colour: str, texts: Sequence[str]) -> tuple[list[str], list[Sequence[int]]]:
    """Colours and dashes of the lines: those of the mixers, or for values in order the ramp from its dark end."""
    if colour == "mixer":
        marks = mixer_marks(texts).values()
        return [hue for hue, _, _ in marks], [dash for _, _, dash in marks]
    last = len(RAMP) - 1  # the lightest colours would not be seen
    hues = [RAMP[last - round(index * (last - 3) / max(len(texts) - 1, 1))] for index in range(len(texts))]
    return hues, [DASHES[index % len(DASHES)] for index in range(len(texts))]


def _curve_layers(
    part: Sequence[Curve], axis: str, legend: vl.Spec, name: str | None, axes: Sequence[str]
) -> list[vl.Spec]:
    """The curves of one width; `name` stands beside the first panel of a line, and pages filter by the `axes`."""
    rows, ends = [], []
    for curve in part:
        about = {each: curve[each] for each in ("run", "hue", "seed", "status", "strong")}
        about |= {"rate": say("lr", curve["lr"]), **{each: say(each, curve[each]) for each in axes}}
        steps, scores = ([point[i] for point in curve["points"]] for i in (0, 1))
        rows.append({**about, "step": steps, "accuracy": [round(score, DIGITS) for score in scores]})
        if curve["status"] == "diverged" and steps:
            ends.append({**about, "step": steps[-1], "accuracy": scores[-1]})
    axis_y = {**vl.PERCENT, "labelOpacity": float(name is not None)}
    tips = vl.tooltips(["run", "hue", "rate", "seed", "status"], {"hue": axis, "rate": "learning rate"})
    at = {
        "x": STEP, "y": vl.field("accuracy:Q", title=name, scale={"domain": [0, 1]}, axis=axis_y),
        "tooltip": [*tips, vl.field("step:Q"), vl.field("accuracy:Q", format=".1%")],
    }  # fmt: skip
    line = {**at, **legend, "detail": vl.field("run:N")}
    lists = ("step", "accuracy")
    return [
        vl.layer("line", line, rows=rows, flatten=lists, where="!datum.strong", clip=True, strokeWidth=1, opacity=0.35),
        vl.layer("line", line, rows=rows, flatten=lists, where="datum.strong", clip=True, strokeWidth=1.8),
        vl.layer("point", {**at, "color": legend["color"]}, rows=ends, **CROSS),
    ]


def _curve_notes(drawn: Sequence[Curve]) -> list[str]:
    there = [curve for curve in drawn if curve["points"]]
    said = ["accuracy on dev (%) by training step"]
    if len({curve["strong"] for curve in there}) > 1:
        said.append("strong: the learning rate with the highest; faint: the others")
    if any(curve["status"] == "diverged" for curve in there):
        said.append("cross: diverged")
    if len(there) < len(drawn):
        said.append(f"{len(drawn) - len(there)} of {len(drawn)} runs have no curve")
    return ["; ".join(said)]


def _curves_described(drawn: Sequence[Curve], title: str, colour: str) -> str:
    """The best end of each colour, in words."""
    ends: dict[str, list[float]] = {}
    for curve in drawn:
        ends.setdefault(curve["hue"], []).extend([] if curve["score"] is None else [curve["score"]])
    best = [f"{named(colour, hue)} {percent(max(scores)) + ' %' if scores else 'none'}" for hue, scores in ends.items()]
    about = f"{title}. Curves of the accuracy on dev along training, {len(drawn)} runs."
    return f"{about} Best at the end: {', '.join(best)}."


def mechanism_over_time(
    effects: pd.DataFrame, history: pd.DataFrame, title: str, runs: pd.DataFrame | None = None
) -> vl.Chart:
    """Restored shares by role along training, and the accuracy on dev behind them: a line of panels for each run.

    `effects` are rows of that table with state `training`, `history` the rows of the same runs. Panels take their names
    from `runs`, rows of that table, or else have the ids. Sites are those that decide a verdict: the inputs of later
    layers, and short convolutions that ever restore something. Lines begin where the task begins to be learnt.
    """
    effects = effects[effects["state"] == "training"]
    if effects.empty:
        raise UserError("no run was intervened on while it was trained; `--interchange-every 100` does that.")
    about = {} if runs is None else {row["run"]: row for row in runs.to_dict("records")}
    ids, points = list(dict.fromkeys(effects["run"])), points_of(history)
    panels: list[Panel] = []
    for run, texts in zip(ids, _named([_texts(run, about.get(run, {})) for run in ids]), strict=True):
        own = effects[effects["run"] == run]
        for site in _sites(own):
            panels.append((texts, site, _lines(own[own["site"] == site], texts), points.get(run, [])))
    rows = [list(own) for _, own in itertools.groupby(panels, key=lambda panel: panel[0]["run"])]
    chart = vl.below([vl.beside([_panel(*each) for each in row], 3 * GAP) for row in rows], 2 * GAP)
    pixels = (SMALL[0] + 3 * GAP) * max(map(len, rows)) + 110
    notes = "restored share (%) at each position along training; lines begin where the task begins to be learnt"
    if any(_has_interval(line) for _, _, lines, _ in panels for line in lines):
        notes += "; shaded: 95 % intervals"
    return vl.finish(chart, title, [notes], pixels, _panels_described(panels, title))


def _texts(run: str, row: dict[str, Any]) -> dict[str, str]:
    """What titles, tooltips and filters say about a run."""
    known = {"rate" if axis == "lr" else axis: say(axis, plain(row[axis])) for axis in AXES if axis in row}
    return {"run": run, **known}


def _named(every: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The same with a `name` that no other run has and that is as short as possible."""
    parts = [[texts[axis] for axis in ("task", "mixer") if axis in texts] for texts in every]
    for axis, before in (("d_model", "d "), ("n_layers", ""), ("rate", "lr "), ("seed", "seed "), ("run", "")):
        if axis == "d_model" or len(set(map(tuple, parts))) < len(parts) or not all(parts):
            for part, texts in zip(parts, every, strict=True):
                part += [f"{before}{texts[axis]}"] if axis in texts else []
    return [{**texts, "name": " · ".join(part)} for part, texts in zip(parts, every, strict=True)]


def _sites(own: pd.DataFrame) -> list[Site]:
    """The sites that decide the verdict on this run and have something to show."""
    there, trace = {str(site): site for site in sites_in(own)}, set(own.loc[own["share"] >= Rule().trace, "site"])
    depths = depths_of(there.values())
    inside = [there[site] for layer in depths.inside for site in layer if there[site].kind == "short_conv"]
    chosen = [there[site] for site in depths.boundaries if site in there] + [site for site in inside if site in trace]
    return (chosen or inside or [Site(0, "mixer.output", "mixer")])[:MOST_SITES]


def _lines(here: pd.DataFrame, texts: dict[str, str]) -> list[Line]:
    made = []
    for role in carriers(filter(is_on_maps, here["role"].unique())):
        part = here[here["role"] == role].sort_values("step")
        if len(part):
            shown = {name: _numbers(part[column]) for name, column in COLUMNS.items() if column in part}
            made.append({**texts, "line": role, "step": [int(step) for step in part["step"]], **shown})
    return made


def _numbers(column: pd.Series) -> list[float | None]:
    return [None if (value := plain(each)) is None else round(float(value), DIGITS) for each in column]


def _has_interval(line: Line) -> bool:
    return any(each is not None for each in line.get("low", []))


def _name(texts: dict[str, str], site: Site) -> list[str]:
    """Which run, and where in it."""
    return [cut(texts["name"], LONGEST), f"{site.part.removeprefix('mixer.')} of layer {site.block}"]


def _panel(texts: dict[str, str], site: Site, lines: list[Line], accuracy: Points) -> vl.Spec:
    names = [line["line"] for line in lines]
    others = dict(zip((name for name in names if name not in MARKS), itertools.cycle(OTHERS), strict=False))
    usual = {name: mark for name, mark in MARKS.items() if name in names or not others}
    marks = {ACCURACY: (GREY, DASHES[0]), **usual, **others}
    hues, dashes = zip(*marks.values(), strict=True)
    behind = {**texts, "line": ACCURACY, "step": [step for step, _ in accuracy]}
    behind |= {"share": [round(score, DIGITS) for _, score in accuracy]}
    y = vl.field("share:Q", title=None, scale={"domain": [-0.1, 1.1], "nice": False}, axis=vl.PERCENT)
    tips = vl.tooltips([*(name for name in texts if name != "name"), "line"], {"line": "shown"})
    at = {
        "x": STEP, "y": y, "detail": vl.field("line:N"), **strokes("line", None, list(marks), hues, dashes),
        "tooltip": [*tips, vl.field("step:Q"), vl.field("share:Q", format=".1%")],
    }  # fmt: skip
    lists, known = ["step", "share"], [line for line in lines if _has_interval(line)]
    interval = {**at, "y": vl.field("low:Q", title=None), "y2": {"field": "high"}}
    del interval["strokeDash"]  # areas have no dashes
    layers = [vl.layer("line", at, rows=[behind], flatten=lists, clip=True, strokeWidth=4, opacity=0.35)]
    if known:
        layers.append(vl.layer("area", interval, rows=known, flatten=[*lists, "low", "high"], clip=True, opacity=0.15))
    dots: dict[str, Any] = {"point": {"size": 12, "filled": True}}  # a single measurement is no line
    layers.append(vl.layer("line", at, rows=lines, flatten=lists, clip=True, strokeWidth=1.8, **dots))
    return vl.panel(layers, *SMALL, title=vl.heading(_name(texts, site)))


def _panels_described(panels: Sequence[Panel], title: str) -> str:
    """The end of each panel, in words."""
    said = []
    for texts, site, lines, accuracy in panels:
        ends = {line["line"]: next((v for v in reversed(line["share"]) if v is not None), None) for line in lines}
        known = {role: value for role, value in ends.items() if value is not None}
        top = max(known, key=lambda role: known[role], default="")
        end = f"at the end {100 * known[top]:.0f} % restored at {top}" if known else "never learnt"
        score = f", accuracy {100 * accuracy[-1][1]:.0f} %" if accuracy else ""
        said.append(f"{', '.join(_name(texts, site))}: {end}{score}")
    return f"{title}. Restored shares along training. {'; '.join(said)}."
