"""How the mechanism of single runs forms: restored shares during training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.canvas import cut
from mecheval.figures.lines import DIGITS, STEP, Points, points_of, strokes
from mecheval.figures.vegalite import DASHES, GAP, GREY
from mecheval.intervene.mechanism import Rule, depths_of
from mecheval.sites import Site, sites_in
from mecheval.studies.axes import plain, say
from mecheval.types import carriers, is_on_maps

if TYPE_CHECKING:  # slow to import
    import pandas as pd

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
"""Largest number of characters in the title of a panel."""
MOST_SITES = 12
"""Largest number of panels of one run; the built-in mixers need at most six."""
AXES = ("task", "mixer", "d_model", "n_layers", "lr", "seed")
"""Columns of table runs that tooltips show."""
COLUMNS = {"share": "share_apart", "low": "share_low", "high": "share_high"}
"""Field of a line -> column of table effects: the share, and the ends of its 95 % interval."""

Line = dict[str, Any]
"""A role at a site of a run: `step` and `share` as lists, and texts about the run."""
Panel = tuple[dict[str, str], Site, list[Line], Points]
"""Texts about the run, the site, its lines, and the accuracy behind them."""


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
    """The same texts with a `name` that is unique among the runs, and as short as possible."""
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
    """The title of a panel: which run, and which site."""
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
