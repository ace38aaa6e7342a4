"""Effects of interventions as a map: sites by depth, roles across."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.figures.vegalite import FILL, Chart, Spec, below, field, finish, ink, layer, panel
from mecheval.sites import Site, sites_in
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

ROLES = ("key", "value", "next_key", "divider", "query", "bos", "random")
"""Columns from left to right; other roles follow in the order of the table."""
BEFORE = ("input", "canon_a", "mixer.input")
AFTER = ("mixer.output", "canon_c", "mlp.input", "canon_d", "mlp.output", "output")
"""Sites of a block before and after those inside its mixer."""
COLUMNS = ("site", "role", "original", "corrupted", "restored", "attribution", "share", "edited", "drop", "n")
"""Columns of table `effects` or `ablations` that tooltips show."""
SAID = {"share": "restored share", "restored": "restored likelihood", "drop": "drop of the likelihood"}
"""The columns that a map may show, and their titles."""
STEPS = 58, 20
"""Pixels of a cell, across and down."""


def heatmap(effects: pd.DataFrame, title: str) -> Chart:
    """The effects of one run (table `effects` or `ablations`): a panel a layer, a row a site, a column a role.

    Colour and number are the restored share, the restored likelihood where nothing is learnt, or the drop by an edit.
    """
    shown, frame = quantity(effects), arranged(effects)
    frame["shown"], frame["label"] = frame[shown], [label(value) for value in frame[shown]]
    layers, roles = list(frame["layer"].unique()), list(frame["role"].unique())
    panels = [_panel(frame[frame["layer"] == name], name, roles, shown, first=name == layers[0]) for name in layers]
    return finish(below(panels, 10), title, [], STEPS[0] * len(roles) + 200, describe(frame, shown, title))


def _panel(part: pd.DataFrame, name: str, roles: list[str], shown: str, *, first: bool) -> Spec:
    """The sites of one layer; the first panel has the names of the roles above it."""
    rows = json.loads(part.to_json(orient="records"))  # which turns NaN into null
    legend = {"title": SAID[shown], "values": [0, 0.5, 1], "format": ".1f"}
    shared = {
        "x": field("role:N", sort=roles, title=None, axis={"orient": "top", "labelAngle": 0, "labels": first}),
        "y": field("name:N", sort={"field": "depth", "op": "min"}, title=None),
        "tooltip": [
            field(f"{column}:{'N' if column in ('site', 'role') else 'Q'}") for column in COLUMNS if column in part
        ],
    }
    colour, known = field("shown:Q", scale=FILL, legend=legend), "isValid(datum.shown)"
    cells = layer("rect", {"color": colour}, where=known, stroke="white")
    numbers = layer("text", {"text": field("label:N"), "color": ink("shown")}, fontSize=11)
    beside = {"orient": "left", "angle": 0, "anchor": "end", "align": "left", "baseline": "top"}
    width, height = ({"step": step} for step in STEPS)
    return panel([cells, numbers], width, height, rows, encoding=shared, title={"text": name, "fontSize": 11, **beside})


def quantity(effects: pd.DataFrame) -> str:
    """The column to show: drop, share, or restored where there was nothing to restore and so no share of it."""
    if "drop" in effects:
        return "drop"
    return "share" if effects["share"].notna().any() else "restored"


def arranged(effects: pd.DataFrame) -> pd.DataFrame:
    """The effects in order of depth and role, with more columns: depth (0, 1, ... of the site), layer and name.

    The name is that of the site inside its layer. Sites that are not those of an LM keep their order, and have
    layer "".
    """
    if effects.duplicated(["site", "role"]).any():
        raise UserError("heatmap: there are several rows for one site and role; choose one run, state and split.")
    if effects.empty:
        raise UserError("heatmap: there are no effects to show.")
    effects = effects.reset_index(drop=True)
    sites, roles = in_depth(sites_in(effects)), in_order(effects["role"].unique())
    layers = {site: "" if site.block is None else f"layer {site.block}" for site in sites}
    frame = effects[[column for column in COLUMNS if column in effects]].assign(
        depth=effects["site"].map(sites.index),
        column=effects["role"].map(roles.index),
        layer=effects["site"].map(layers),
        name=effects["site"].map({site: site.part for site in sites}),
    )
    return frame.sort_values(["depth", "column"]).drop(columns="column")


def in_depth(sites: Iterable[Site]) -> list[Site]:
    """The sites from the first block to the last, and from the input of a block to its output."""
    return sorted(sites, key=_depth)


def in_order(roles: Iterable[str]) -> list[str]:
    """The roles in the order of the columns of a map."""
    return sorted(roles, key=lambda role: ROLES.index(role) if role in ROLES else len(ROLES))


def _depth(site: Site) -> tuple[int, int]:
    if site.block is None:
        return -1, 0
    if site.part in BEFORE:
        return site.block, BEFORE.index(site.part)
    return site.block, len(BEFORE) + (1 + AFTER.index(site.part) if site.part in AFTER else 0)


def label(value: float) -> str:
    """Two decimals, and no minus before a zero."""
    return MISSING if math.isnan(value) else f"{value:.2f}".replace("-0.00", "0.00")


def describe(frame: pd.DataFrame, shown: str, title: str) -> str:
    """The map in words, for readers who cannot see it."""
    rows, columns = frame["site"].nunique(), ", ".join(frame["role"].unique())
    text = f"{title}. Heat map of the {SAID[shown]}: {rows} sites by depth, and the roles {columns}."
    if not frame[shown].notna().any():
        return text
    top = frame.loc[frame[shown].idxmax()]
    return f"{text} The largest is {label(top[shown])}, of {top['site']} at {top['role']}."
