"""Effects of interventions as a map: sites by depth, roles across."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.figures.style import MISSING, RAMP, WHITE_FROM, fill, ink

if TYPE_CHECKING:  # both are slow to import
    import altair as alt
    import pandas as pd

__all__ = ["MISSING", "RAMP", "WHITE_FROM", "arranged", "heatmap", "label", "quantity", "split_site"]

ROLES = ("key", "value", "next_key", "divider", "query", "bos", "random")
"""Columns from left to right; other roles follow in the order of the table."""
BEFORE, AFTER = ("input", "mixer.input"), ("mixer.output", "mlp.input", "mlp.output", "output")
"""Sites of a block before and after those inside its mixer."""
COLUMNS = ("site", "role", "original", "corrupted", "restored", "attribution", "share", "n")
SAID = {"share": "restored share", "restored": "restored likelihood"}
"""The two columns that a map may show, for people."""

SITE = re.compile(r"blocks\.(\d{1,6})\.(.+)", re.ASCII)


def heatmap(effects: pd.DataFrame, title: str) -> alt.VConcatChart:
    """One run's effects (columns of table `effects`): a panel a layer, a row a site, a column a role.

    Colour and number are the restored share; or the restored likelihood, where nothing is learnt.
    """
    import altair as alt

    shown = quantity(effects)
    frame = arranged(effects)
    frame["shown"], frame["label"] = frame[shown], [label(value) for value in frame[shown]]
    first, *others = frame["layer"].unique()
    panels = [_panel(frame, first, shown, roles=True), *(_panel(frame, layer, shown, roles=False) for layer in others)]
    chart: alt.VConcatChart = (
        alt.vconcat(*panels, spacing=10)
        .properties(title=alt.TitleParams(title, anchor="start", offset=12))
        .properties(description=describe(frame, shown, title))
        .configure_axis(domain=False, ticks=False, labelFontSize=11, labelLimit=0)
        .configure_view(stroke=None)
    )
    return chart


def _panel(frame: pd.DataFrame, layer: str, shown: str, *, roles: bool) -> alt.LayerChart:
    """The sites of one layer, with the names of the roles above them or without."""
    import altair as alt

    records = json.loads(frame[frame["layer"] == layer].to_json(orient="records"))  # and so NaN is null
    base = alt.Chart(alt.InlineData(values=records)).encode(
        x=alt.X("role:N", sort=list(frame["role"].unique()), title=None).axis(orient="top", labelAngle=0, labels=roles),
        y=alt.Y("name:N", sort=alt.EncodingSortField("depth", op="min"), title=None),
        tooltip=[alt.Tooltip(f"{name}:N" if name in ("site", "role") else f"{name}:Q") for name in COLUMNS],
    )
    legend = alt.Legend(title=SAID[shown], values=[0, 0.5, 1], format=".1f", titleLimit=0)
    cells = (
        base.transform_filter("isValid(datum.shown)")
        .mark_rect(stroke="white")
        .encode(color=alt.Color("shown:Q", scale=fill(), legend=legend))
    )
    numbers = base.mark_text(fontSize=11).encode(text="label:N", color=ink("shown"))
    name = alt.TitleParams(layer, orient="left", angle=0, anchor="end", align="left", baseline="top", fontSize=11)
    return alt.LayerChart(layer=[cells, numbers], width=alt.Step(58), height=alt.Step(20), title=name)


def quantity(effects: pd.DataFrame) -> str:
    """The column to show: share, or restored where no share is defined, because there was nothing to restore."""
    return "share" if effects["share"].notna().any() else "restored"


def arranged(effects: pd.DataFrame) -> pd.DataFrame:
    """The effects in order of depth and role, with more columns: depth (0, 1, ... of the site), layer and name.

    The name is the site's inside its layer. Sites that are not those of an LM keep their order, and have layer "".
    """
    if effects.duplicated(["site", "role"]).any():
        raise UserError("heatmap: there are several rows for one site and role; choose one run, state and split.")
    if effects.empty:
        raise UserError("heatmap: there are no effects to show.")
    effects = effects.reset_index(drop=True)
    sites = sorted(effects["site"].unique(), key=_depth)
    roles = sorted(effects["role"].unique(), key=lambda role: ROLES.index(role) if role in ROLES else len(ROLES))
    place = {site: split_site(site) for site in sites}
    frame = effects.loc[:, list(COLUMNS)].assign(
        depth=effects["site"].map(sites.index),
        column=effects["role"].map(roles.index),
        layer=effects["site"].map(lambda site: "" if place[site][0] is None else f"layer {place[site][0]}"),
        name=effects["site"].map(lambda site: place[site][1]),
    )
    return frame.sort_values(["depth", "column"]).drop(columns="column")


def split_site(site: str) -> tuple[int | None, str]:
    """blocks.1.mixer.conv -> (1, mixer.conv); any other name -> (None, the name)."""
    found = SITE.fullmatch(site)
    return (None, site) if found is None else (int(found[1]), found[2])


def _depth(site: str) -> tuple[int, int]:
    layer, name = split_site(site)
    if layer is None:
        return -1, 0
    inside = len(BEFORE)
    if name in BEFORE:
        return layer, BEFORE.index(name)
    return layer, inside + 1 + AFTER.index(name) if name in AFTER else inside


def label(value: float) -> str:
    """Two decimals, and no minus before a zero."""
    return MISSING if math.isnan(value) else f"{value:.2f}".replace("-0.00", "0.00")


def describe(frame: pd.DataFrame, shown: str, title: str) -> str:
    """The map in words, for those who do not see it."""
    rows, columns = frame["site"].nunique(), ", ".join(frame["role"].unique())
    text = f"{title}. Heat map of the {SAID[shown]}: {rows} sites by depth, and the roles {columns}."
    if not frame[shown].notna().any():
        return text
    top = frame.loc[frame[shown].idxmax()]
    return f"{text} The largest is {label(top[shown])}, of {top['site']} at {top['role']}."
