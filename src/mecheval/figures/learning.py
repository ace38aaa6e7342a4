"""Learning curves of the runs of a study."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures.cells import number, percent
from mecheval.figures.matrix import GAP, beside_each_other, heading
from mecheval.figures.style import DASHES, RAMP, chart_of, finish, mixer_marks
from mecheval.studies.axes import NAMES, named, option_axes, ordered, plain, say

if TYPE_CHECKING:  # both are slow to import
    import altair as alt
    import pandas as pd

DOWN = ("task", "positions", "n_layers")
"""Those of these axes that vary, and options, have a line of panels for each combination of their values."""
SIDES = {1: (420, 220), 2: (260, 160)}
SIDE = (170, 120)
"""Pixels of a panel across and down, by how many stand side by side."""
POINTS = 150
"""Of one curve; more cannot be seen."""

THOUSANDS = "datum.value < 1000 ? datum.value : format(datum.value, '~s')"

Curve = dict[str, Any]
"""A run: its axes, `hue` (text), `strong`, and `points`, a list of (step, accuracy)."""


def curves(history: pd.DataFrame, runs: pd.DataFrame, title: str) -> alt.VConcatChart:
    """Accuracy on dev along training, a line a run: a panel a width, a colour and dash a mixer (or what varies).

    `runs` are rows of a study with all learning rates; of runs that differ in the rate only, the one with the highest
    accuracy is strong and the others are faint. A run that diverged ends in a cross.
    """
    import altair as alt

    if runs.empty:
        raise UserError("there are no runs to show.")
    options = option_axes(runs)
    varying = [axis for axis in ("mixer", *options, "lr", *DOWN) if axis in runs and runs[axis].nunique() > 1]
    colour = next((axis for axis in ("mixer", *options, "lr") if axis in varying), "mixer")  # the first that varies
    down = [axis for axis in (*DOWN, *options) if axis in varying and axis != colour]
    drawn = arranged_curves(history, runs, colour, [*varying, "d_model", "seed"])
    axes = list(dict.fromkeys(("mixer", "d_model", *(axis for axis in varying if axis != "lr"))))
    legend = _colours(colour, ordered(colour, runs[colour]))
    levels = [ordered(axis, runs[axis]) for axis in down]
    widths = ordered("d_model", runs["d_model"])
    across, high = SIDES.get(len(widths), SIDE)
    lines = []
    for level in product(*levels):
        here = [curve for curve in drawn if all(curve[axis] == value for axis, value in zip(down, level, strict=True))]
        name = ", ".join(named(axis, say(axis, value)) for axis, value in zip(down, level, strict=True))
        parts = [(width, [curve for curve in here if curve["d_model"] == width]) for width in widths]
        there = [(width, part) for width, part in parts if part]  # tasks may have widths of their own
        panels = [
            _panel(part, colour, legend, name or "dev accuracy (%)" if width == there[0][0] else None, axes).properties(
                width=across, height=high, title=heading(named("d_model", say("d_model", width)), across)
            )
            for width, part in there
        ]
        if panels:
            lines.append(beside_each_other(panels, 2 * GAP))
    chart = alt.vconcat(*lines, spacing=GAP)
    return finish(chart, title, _notes(drawn), (across + 2 * GAP) * len(widths) + 150, _described(drawn, title, colour))


def arranged_curves(history: pd.DataFrame, runs: pd.DataFrame, colour: str, axes: Sequence[str]) -> list[Curve]:
    """The runs with their curves; those that have none too, with no points."""
    scores = history[["run", "step", "dev_accuracy"]].dropna()
    points: dict[str, list[tuple[int, float]]] = {}
    for run, step, score in scores.sort_values("step", kind="stable").itertuples(index=False):
        points.setdefault(run, []).append((int(step), float(score)))
    drawn = []
    for row in runs.to_dict("records"):
        curve = {name: plain(value) for name, value in row.items()}
        curve |= {"hue": say(colour, curve[colour]), "points": thinned(points.get(row["run"], []))}
        drawn.append(curve | {"score": number(row, "dev_accuracy")})
    best: dict[tuple[Any, ...], Curve] = {}
    for curve in drawn:
        place = tuple(curve[axis] for axis in axes if axis != "lr" or colour == "lr")
        if curve["score"] is not None and _rank(curve) > _rank(best.get(place)):
            best[place] = curve
    for curve in drawn:
        curve["strong"] = any(curve is strong for strong in best.values())
    return drawn


def _rank(curve: Curve | None) -> tuple[float, float]:
    """By accuracy, then by likelihood; of those that tie, the first counts, as in the tables."""
    return (-1.0, 0.0) if curve is None else (curve["score"], curve.get("dev_likelihood") or 0.0)


def thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Some of the points, evenly, and always the last."""
    stride = -(-len(points) // POINTS)
    return [point for index, point in enumerate(points) if index % stride == 0 or index == len(points) - 1]


def _dark(n: int) -> list[str]:
    """Colours of lines for n values in order, dark ones first; the lightest of the ramp would not be seen."""
    last = len(RAMP) - 1
    return [RAMP[last - round(index * (last - 3) / max(n - 1, 1))] for index in range(n)]


def _colours(colour: str, values: Sequence[Any]) -> tuple[alt.Color, alt.StrokeDash]:
    import altair as alt

    names = [say(colour, value) for value in values]
    if colour == "mixer":
        marks = mixer_marks(names)
        hues, dashes = [marks[name][0] for name in names], [marks[name][2] for name in names]
    else:
        hues, dashes = _dark(len(names)), [list(DASHES[index % len(DASHES)]) for index in range(len(names))]
    title = NAMES.get(colour, colour)
    legend = alt.Legend(symbolType="stroke", symbolSize=500, symbolStrokeWidth=2, symbolOpacity=1)
    scales = alt.Scale(domain=names, range=hues), alt.Scale(domain=names, range=dashes)
    return (
        alt.Color("hue:N", title=title, sort=names, legend=legend, scale=scales[0]),
        alt.StrokeDash("hue:N", title=title, sort=names, legend=legend, scale=scales[1]),
    )


def _panel(
    part: Sequence[Curve], axis: str, legend: tuple[alt.Color, alt.StrokeDash], name: str | None, axes: Sequence[str]
) -> alt.LayerChart:
    """The curves of one width; `name` stands beside the first panel of a line, `axes` are what pages filter by."""
    import altair as alt

    about = [
        {"run": curve["run"], "hue": curve["hue"], "rate": say("lr", curve["lr"]), "seed": curve["seed"]}
        | {"status": curve["status"], "strong": curve["strong"]}
        | {each: say(each, curve[each]) for each in axes}
        for curve in part
    ]
    rows = [
        said | {"step": [step for step, _ in points], "accuracy": [round(score, 4) for _, score in points]}
        for said, points in zip(about, (curve["points"] for curve in part), strict=True)
    ]  # a row a run and not a point: small files, checked fast
    ends = [
        said | {"step": curve["points"][-1][0], "accuracy": curve["points"][-1][1]}
        for said, curve in zip(about, part, strict=True)
        if curve["status"] == "diverged" and curve["points"]
    ]
    x = (
        alt.X("step:Q", title="step")
        .scale(zero=True, nice=False)
        .axis(labelExpr=THOUSANDS, tickCount=4, labelFlush=False)
    )
    y = alt.Y("accuracy:Q", title=name).scale(domain=[0, 1])
    y = y.axis(values=[0, 0.5, 1], labelExpr="100 * datum.value", grid=True, labelOpacity=float(name is not None))
    colour, dash = legend
    tips = [
        alt.Tooltip("run:N"), alt.Tooltip("hue:N", title=axis),
        alt.Tooltip("rate:N", title="learning rate"), alt.Tooltip("seed:N"), alt.Tooltip("status:N"),
        alt.Tooltip("step:Q"), alt.Tooltip("accuracy:Q", format=".1%"),
    ]  # fmt: skip
    base = (
        chart_of(rows)
        .transform_flatten(["step", "accuracy"])
        .encode(x=x, y=y, color=colour, strokeDash=dash, detail="run:N", tooltip=tips)
    )
    crosses = chart_of(ends).mark_point(shape="M-1,-1L1,1M-1,1L1,-1", size=40, strokeWidth=1.5, opacity=1)
    return alt.LayerChart(
        layer=[
            base.transform_filter("!datum.strong").mark_line(clip=True, strokeWidth=1, opacity=0.35),
            base.transform_filter("datum.strong").mark_line(clip=True, strokeWidth=1.8),
            crosses.encode(x=x, y=y, color=colour, tooltip=tips),
        ]
    )


def _notes(drawn: Sequence[Curve]) -> list[str]:
    there = [curve for curve in drawn if curve["points"]]
    said = ["accuracy on dev (%) by training step"]
    if any(curve["strong"] for curve in there) and any(not curve["strong"] for curve in there):
        said.append("strong: the learning rate with the highest; faint: the others")
    if any(curve["status"] == "diverged" for curve in there):
        said.append("cross: diverged")
    if len(there) < len(drawn):
        said.append(f"{len(drawn) - len(there)} of {len(drawn)} runs have no curve")
    return ["; ".join(said)]


def _described(drawn: Sequence[Curve], title: str, colour: str) -> str:
    """The best end of each colour, in words."""
    ends: dict[str, list[float]] = {}
    for curve in drawn:
        ends.setdefault(curve["hue"], []).extend([] if curve["score"] is None else [curve["score"]])
    told = [f"{named(colour, hue)} {percent(max(scores)) + ' %' if scores else 'none'}" for hue, scores in ends.items()]
    return (
        f"{title}. Curves of the accuracy on dev along training, {len(drawn)} runs. Best at the end: {', '.join(told)}."
    )
