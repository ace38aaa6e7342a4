"""Figures of lines: accuracy along training, circuits by size, documents by difficulty; and what others share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.cells import number, percent
from mecheval.figures.vegalite import DASHES, GAP, RAMP, mixer_marks
from mecheval.studies import StudyTable, best_rows
from mecheval.studies.axes import NAMES, named, plain, say

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.intervene import Circuit

DOWN = ("task", "positions", "short_conv", "recipe", "n_layers")
"""Axes that, like options, have a line of panels for each combination of their values, where they vary."""
SIDES = {1: (420, 220), 2: (260, 160)}
SIDE = (170, 120)
"""Width and height of a panel in pixels."""
LARGE = (460, 260)
"""Width and height in pixels of a figure with one panel."""
COLOURS = (*reversed(vl.HUES.values()), *vl.OTHER_HUES)
"""Colours of lines that do not represent mixers."""
POINTS = 150
"""Largest number of points of one curve; more could not be seen."""
DIGITS = 4
"""Decimal places of the numbers in a line."""
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
"""Largest number of colours whose names are written at the ends of their curves; more have a legend."""
APART = 15.0
"""Smallest distance between two names, in pixels."""
LABEL: dict[str, Any] = {"angle": 315, "align": "left", "baseline": "middle", "dx": 4, "dy": -4, "fontSize": 11}
CROSS: dict[str, Any] = {"shape": "M-1,-1L1,1M-1,1L1,-1", "size": 40, "strokeWidth": 1.5, "opacity": 1}

T = TypeVar("T")
Curve = dict[str, Any]
"""A run: its axes, `hue` (text), `strong`, `score`, and `points`, a list of (step, accuracy)."""
Points = Sequence[tuple[int, float]]


def strokes(
    name: str, title: str | None, texts: Sequence[str], hues: Sequence[str], dashes: Sequence[Any], *,
    shown: bool = True,
) -> vl.Spec:  # fmt: skip
    """Colours and dashes of lines by the texts in a field, with one legend for both where it is `shown`."""
    stroke = {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 2, "symbolOpacity": 1}
    options = {"title": title, "legend": stroke if shown else None}
    return vl.marks(name, texts, options, color=hues, strokeDash=[list(dash) for dash in dashes])


def thinned(points: Sequence[T], most: int = POINTS) -> list[T]:
    """About `most` of the points at most, evenly spaced, and always the last."""
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


def faithfulness(circuit: Circuit, title: str) -> vl.Chart:
    """Faithfulness over the size of circuits, best nodes or edges first, and its mean over random ones."""
    rows = [
        {"size": size, "kept": int(kept), "faithfulness": float(value), "order": order}
        for size, kept, *values in circuit.curve[["size", "kept", "faithfulness", "random"]].to_numpy()
        for order, value in zip(("by score", "random"), values, strict=True)
        if value == value  # there may be no random circuits
    ]
    at = {
        "x": vl.field("size:Q", title="share of nodes or edges", scale={"type": "log"}, axis={"grid": True}),
        "y": vl.field("faithfulness:Q", title="faithfulness", axis={"grid": True}),
        **vl.marks("order", ["by score", "random"], color=[vl.HUES["attention"], vl.OTHER_HUES[2]]),
        "tooltip": vl.tooltips(["order", "size", "kept", "faithfulness"]),
    }
    chart = vl.panel([vl.layer("line", at, point=True)], *LARGE, rows)
    note = f"CPR {circuit.cpr:.3f}, CMD {circuit.cmd:.3f}, p {circuit.p:.2g} against random circuits"
    return vl.finish(chart, title, [note], LARGE[0] + 100, f"{title}. Faithfulness by size of the circuit; {note}.")


def ladder_figure(steps: Mapping[str, pd.DataFrame], fact: str, title: str) -> vl.Chart:
    """Accuracy by a fact of the documents, with its 95 % interval: a line for each run.

    `steps` has what `analysis.ladder` returns, by the name of each run.
    """
    if not steps or all(frame.empty for frame in steps.values()):
        raise UserError("ladder: there are no documents to draw.")
    if len(steps) > len(COLOURS):
        raise UserError(f"ladder: one chart shows at most {len(COLOURS)} runs (got {len(steps)}).")
    names = list(steps)
    rows = [
        row for name, frame in steps.items()
        for row in json.loads(frame.assign(run=name).to_json(orient="records", double_precision=6))
    ]  # fmt: skip
    said = fact.replace("_", " ")
    x = vl.field(f"{fact}:Q", title=said, axis={"tickMinStep": 1}, scale={"zero": False})
    y = vl.field("accuracy:Q", title="test accuracy, %", scale={"domain": [0, 1]}, axis=vl.PERCENT)
    look = strokes("run", None, names, COLOURS[: len(names)], [DASHES[i % len(DASHES)] for i in range(len(names))])
    tips = {"tooltip": vl.tooltips(("run", fact, "accuracy", "low", "high", "likelihood", "n"))}
    ends = {"y": vl.field("low:Q", title="test accuracy, %"), "y2": {"field": "high"}}
    layers = [
        vl.layer("area", {"x": x, **ends, "color": look["color"]}, opacity=0.12),
        vl.layer("line", {"x": x, "y": y, **look}, strokeWidth=2),
        vl.layer("point", {"x": x, "y": y, "color": look["color"], **tips}, filled=True, size=35, opacity=1),
    ]
    described = "; ".join(
        f"{name}: {frame['accuracy'].iloc[0]:.2f} at {said} {frame[fact].iloc[0]}, {frame['accuracy'].iloc[-1]:.2f} at "
        f"{frame[fact].iloc[-1]}"
        for name, frame in steps.items() if len(frame)
    )  # fmt: skip
    note = "Bands are 95 % intervals over the documents of each kind."
    return vl.finish(vl.panel(layers, *LARGE, rows), title, [note], LARGE[0] + 150, f"{title}. {note} {described}.")
