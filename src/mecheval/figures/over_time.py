"""The mechanism as it forms: where a clean activation restores the answer, along training, beside the accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures.canvas import cut
from mecheval.figures.heatmap import split_site
from mecheval.figures.learning import THOUSANDS, thinned
from mecheval.figures.matrix import GAP, beside_each_other
from mecheval.figures.style import GREY, chart_of, finish
from mecheval.intervene.mechanism import depths_of
from mecheval.studies.axes import plain, say
from mecheval.types import CARRIERS

if TYPE_CHECKING:  # both are slow to import
    import altair as alt
    import pandas as pd

MARKS = {
    "key": ("#e69f00", (6, 2)), "value": ("#d55e00", (1, 0)), "next_key": ("#009e73", (2, 2)),
    "query": ("#0072b2", (8, 2, 2, 2)),
}  # fmt: skip
"""Role -> colour and dash of its line."""
ACCURACY = "dev accuracy"
ACROSS, SIDES = 3, (220, 130)
"""Panels side by side, and their pixels."""
LONGEST = 40
"""Characters of a panel's title; the rest is cut off."""
TRACE = 0.2
"""Share from which a place inside a mixer takes part; those where it never gets there are left out."""
MOST_SITES = 12
"""Panels of a run; ours have at most six."""
AXES = ("task", "mixer", "d_model", "n_layers", "lr", "seed")
"""Columns of table runs that a panel's tooltips show."""

COLUMNS = {"share": "share", "low": "share_low", "high": "share_high"}
"""What a line holds, by the columns of table effects: the share, and the ends of its 95 % interval."""

Accuracy = Sequence[tuple[int, float]]
Line = dict[str, Any]
"""A role at a site of a run: `step` and `share` as lists, and what the run is, as text."""
Panel = tuple[dict[str, str], str, list[Line], Accuracy]
"""What the run is, the site, its lines, and the accuracy behind them."""


def mechanism_over_time(
    effects: pd.DataFrame, history: pd.DataFrame, title: str, runs: pd.DataFrame | None = None
) -> alt.VConcatChart:
    """Restored shares by role along training, and the accuracy on dev behind them: a panel for each run and site.

    `effects` are rows of that table with state `training`, `history` the rows of the same runs; of `runs`, rows of that
    table, panels take their names (else they have the run's id). Sites are those that decide a verdict: the inputs of
    later layers, and short convolutions that ever restore something. Lines begin where the task begins to be learnt.
    """
    import altair as alt

    effects = effects[effects["state"] == "training"]
    if effects.empty:
        raise UserError("no run was intervened on while it was trained; `--interchange-every 100` does that.")
    about = {} if runs is None else {row["run"]: row for row in runs.to_dict("records")}
    ids = list(dict.fromkeys(effects["run"]))
    every = _named([_fields(run, about.get(run, {})) for run in ids])
    panels = []
    for run, fields in zip(ids, every, strict=True):
        own = effects[effects["run"] == run]
        scores = history[history["run"] == run].sort_values("step").dropna(subset=["dev_accuracy"])
        accuracy = thinned(list(zip(scores["step"].astype(int), scores["dev_accuracy"].astype(float), strict=True)))
        for site in _sites(own):
            panels.append((fields, site, _lines(own[own["site"] == site], fields), accuracy))
    rows = [panels[first : first + ACROSS] for first in range(0, len(panels), ACROSS)]
    drawn = [beside_each_other([_panel(*panel) for panel in row], 3 * GAP) for row in rows]
    pixels = (SIDES[0] + 3 * GAP) * min(ACROSS, len(panels)) + 110
    notes = ["restored share (%) at each position along training; lines begin where the task begins to be learnt"]
    if any(_is_sure(line) for _, _, lines, _ in panels for line in lines):
        notes[0] += "; shaded: 95 % intervals"
    return finish(alt.vconcat(*drawn, spacing=2 * GAP), title, notes, pixels, _described(panels, title))


def _fields(run: str, row: dict[str, Any]) -> dict[str, str]:
    """What the run is, for titles, tooltips and filters."""
    known = {axis: say(axis, plain(row[axis])) for axis in AXES if axis in row}
    known |= {"rate": known.pop("lr")} if "lr" in known else {}
    return {"run": run, **known}


def _named(every: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The same with a `name` that no other run has: as short as that can be."""
    parts = [[fields[axis] for axis in ("task", "mixer") if axis in fields] for fields in every]
    for axis, before in (("d_model", "d "), ("n_layers", ""), ("rate", "lr "), ("seed", "seed "), ("run", "")):
        alone = axis != "d_model" and len(set(map(tuple, parts))) == len(parts) and all(parts)
        if not alone:
            parts = [
                [*part, f"{before}{fields[axis]}"] if axis in fields else part
                for part, fields in zip(parts, every, strict=True)
            ]
    return [{**fields, "name": " · ".join(part)} for part, fields in zip(parts, every, strict=True)]


def _sites(own: pd.DataFrame) -> list[str]:
    """The sites that decide this run's verdict and have something to show."""
    depths = depths_of(list(own["site"].unique()))
    there = set(own["site"])
    boundaries = [site for site in depths.boundaries if site in there]
    inside = [site for layer in depths.convolutions for site in layer]
    telling = [site for site in inside if (own[own["site"] == site]["share"] >= TRACE).any()]
    return ([*boundaries, *telling] or inside or ["blocks.0.mixer.output"])[:MOST_SITES]


def _lines(here: pd.DataFrame, fields: dict[str, str]) -> list[Line]:
    made = []
    for role in CARRIERS:
        part = here[here["role"] == role].sort_values("step")
        if len(part):
            shown = {name: _numbers(part[column]) for name, column in COLUMNS.items() if column in part}
            made.append({**fields, "line": role, "step": [int(step) for step in part["step"]], **shown})
    return made


def _numbers(column: pd.Series) -> list[float | None]:
    return [None if (value := plain(each)) is None else round(float(value), 4) for each in column]


def _is_sure(line: Line) -> bool:
    """Whether its intervals are known."""
    return any(each is not None for each in line.get("low", []))


def _name(fields: dict[str, str], site: str) -> list[str]:
    """Which run, and where in it."""
    layer, part = split_site(site)
    where = f"input of layer {layer}" if part == "input" else f"{part.removeprefix('mixer.')} of layer {layer}"
    return [cut(fields["name"], LONGEST), where]


def _panel(fields: dict[str, str], site: str, lines: list[Line], accuracy: Accuracy) -> alt.LayerChart:
    import altair as alt

    names = [ACCURACY, *MARKS]
    hues = alt.Scale(domain=names, range=[GREY, *(hue for hue, _ in MARKS.values())])
    dashes = alt.Scale(domain=names, range=[[1, 0], *(list(dash) for _, dash in MARKS.values())])
    legend = alt.Legend(title=None, symbolType="stroke", symbolSize=500, symbolStrokeWidth=2, symbolOpacity=1)
    x = alt.X("step:Q", title="step").scale(zero=True, nice=False).axis(labelExpr=THOUSANDS, tickCount=4)
    y = alt.Y("share:Q", title=None).scale(domain=[-0.1, 1.1], nice=False)
    y = y.axis(values=[0, 0.5, 1], labelExpr="100 * datum.value", grid=True)
    tips = [alt.Tooltip(f"{name}:N") for name in fields if name != "name"]
    tips += [alt.Tooltip("line:N", title="shown"), alt.Tooltip("step:Q"), alt.Tooltip("share:Q", format=".1%")]
    behind = {**fields, "line": ACCURACY, "step": [step for step, _ in accuracy]}
    behind |= {"share": [round(score, 4) for _, score in accuracy]}

    def drawn(rows: Sequence[Line], *ends: str) -> alt.Chart:
        return chart_of(rows).transform_flatten(["step", "share", *ends]).encode(
            x=x, y=y, detail="line:N", tooltip=tips,
            color=alt.Color("line:N", sort=names, scale=hues, legend=legend),
            strokeDash=alt.StrokeDash("line:N", sort=names, scale=dashes, legend=legend),
        )  # fmt: skip

    layers = [drawn([behind]).mark_line(clip=True, strokeWidth=4, opacity=0.35)]
    sure = [line for line in lines if _is_sure(line)]
    if sure:
        layers.append(
            drawn(sure, "low", "high")
            .mark_area(clip=True, opacity=0.15)
            .encode(y=alt.Y("low:Q", title=None), y2="high:Q")
        )
    layers.append(drawn(lines).mark_line(clip=True, strokeWidth=1.8))
    return alt.LayerChart(
        layer=layers,
        width=SIDES[0],
        height=SIDES[1],
        title=alt.TitleParams(_name(fields, site), fontSize=11, anchor="middle", offset=6),
    )


def _described(panels: Sequence[Panel], title: str) -> str:
    """What each panel ends with, in words."""
    told = []
    for fields, site, lines, accuracy in panels:
        ends = {line["line"]: next((v for v in reversed(line["share"]) if v is not None), None) for line in lines}
        known = {role: value for role, value in ends.items() if value is not None}
        if known:
            top = max(known, key=lambda role: known[role])
            said = f"at the end {100 * known[top]:.0f} % restored at {top}"
        else:
            said = "never learnt"
        score = f", accuracy {100 * accuracy[-1][1]:.0f} %" if accuracy else ""
        told.append(f"{', '.join(_name(fields, site))}: {said}{score}")
    return f"{title}. Restored shares along training. {'; '.join(told)}."
