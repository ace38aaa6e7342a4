"""Effects of interventions as a map: sites by depth, roles across."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.figures.vegalite import FILL, Chart, Spec, below, field, finish, ink, layer, panel, rows_of
from mecheval.sites import Site, sites_in
from mecheval.types import MISSING, in_order, is_on_maps

if TYPE_CHECKING:  # slow to import
    import pandas as pd

BEFORE = ("input", "canon_a", "mixer.input")
AFTER = ("mixer.output", "canon_c", "mlp.input", "canon_d", "mlp.output", "output")
"""Sites of a block before and after those inside its mixer."""
COLUMNS = (
    "site", "role", "receiver", "original", "corrupted", "restored", "attribution", "share", "hits", "edited", "drop",
    "n",
)  # fmt: skip
"""Columns of table `effects` or `ablations` that tooltips show."""
SAID = {
    ("share", "restore"): "restored share", ("restored", "restore"): "restored likelihood",
    ("share", "destroy"): "destroyed share", ("restored", "destroy"): "likelihood that is left",
    ("hits", "destroy"): "interchange accuracy", ("drop", "restore"): "drop of the likelihood",
}  # fmt: skip
"""Titles of the columns that a map may show, in each direction of the interventions."""
STEPS = 58, 20
"""Pixels of a cell, across and down."""


def heatmap(effects: pd.DataFrame, title: str = "What each site restores, by role") -> Chart:
    """The effects of one run (table `effects` or `ablations`): a panel a layer, a row a site, a column a role.

    Colour and number are the restored share, the restored likelihood where nothing is learnt, or the drop by an edit;
    of swapped values the interchange accuracy. Of rows about several corruptions and directions, those that a verdict
    is about are shown. Paths (`path`) have panels of their own for each receiver.
    """
    if lacking := [name for name in ("role", *(() if "drop" in effects else ("share", "restored")))
                   if name not in effects]:  # fmt: skip
        raise UserError(f"heatmap: this is no table of effects; it lacks {', '.join(lacking)}.")
    effects = one_kind(effects)
    shown, frame = quantity(effects), arranged(effects)
    said = title_of(effects)
    frame["shown"], frame["label"] = frame[shown], [label(value) for value in frame[shown]]
    roles = list(frame["role"].unique())
    parts = list(frame.groupby("panel", sort=False))
    panels = [_panel(part, name, roles, said, first=name == parts[0][0]) for name, part in parts]
    return finish(below(panels, 10), title, [], STEPS[0] * len(roles) + 200, describe(frame, shown, said, title))


def _panel(part: pd.DataFrame, name: str, roles: list[str], said: str, *, first: bool) -> Spec:
    """The sites of one layer; the first panel has the names of the roles above it."""
    legend = {"title": said, "values": [0, 0.5, 1], "format": ".1f"}
    shared = {
        "x": field("role:N", sort=roles, title=None, axis={"orient": "top", "labelAngle": 0, "labels": first}),
        "y": field("name:N", sort={"field": "depth", "op": "min"}, title=None),
        "tooltip": [field(f"{column}:{'N' if column in COLUMNS[:3] else 'Q'}") for column in COLUMNS if column in part],
    }
    colour, known = field("shown:Q", scale=FILL, legend=legend), "isValid(datum.shown)"
    cells = layer("rect", {"color": colour}, where=known, stroke="white")
    numbers = layer("text", {"text": field("label:N"), "color": ink("shown")}, fontSize=11)
    beside = {"orient": "left", "angle": 0, "anchor": "end", "align": "left", "baseline": "top"}
    width, height = ({"step": step} for step in STEPS)
    return panel(
        [cells, numbers], width, height, rows_of(part), encoding=shared, title={"text": name, "fontSize": 11, **beside}
    )


def one_kind(effects: pd.DataFrame) -> pd.DataFrame:
    """The rows of one corruption and direction: where there are several, those that verdicts are about."""
    if "direction" not in effects or len(effects[["corruption", "direction"]].drop_duplicates()) < 2:
        return effects
    known = effects["role"].map(is_on_maps)
    return effects[(effects["corruption"] == "key") & (effects["direction"] == "restore") & known]


def direction_of(effects: pd.DataFrame) -> str:
    """The direction of the interventions; `restore` in tables without that column."""
    return str(effects["direction"].iloc[0]) if "direction" in effects and len(effects) else "restore"


def title_of(effects: pd.DataFrame) -> str:
    """What the numbers of a map are called."""
    shown, direction = quantity(effects), direction_of(effects)
    return SAID.get((shown, direction)) or SAID[shown, "restore"]


def quantity(effects: pd.DataFrame) -> str:
    """The column to show: drop, share, or restored where there was nothing to restore and so no share of it.

    Of swapped values, it is how often the swapped document's answer is given.
    """
    if "drop" in effects:
        return "drop"
    if "hits" in effects and direction_of(effects) == "destroy" and effects["hits"].notna().any():
        return "hits"
    return "share" if effects["share"].notna().any() else "restored"


def arranged(effects: pd.DataFrame) -> pd.DataFrame:
    """The effects in order of depth and role, with more columns: depth (0, 1, ... of the site), layer, panel and name.

    The name is that of the site inside its layer. Sites that are not those of an LM keep their order, and have
    layer "". The panel is the layer, and of paths also their receiver.
    """
    rows = [name for name in ("site", "role", "receiver") if name in effects]
    if effects.duplicated(rows).any():
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
    if "receiver" not in frame:
        return frame.assign(panel=frame["layer"]).sort_values(["depth", "column"]).drop(columns="column")
    receivers = list(frame["receiver"].unique())
    frame["panel"] = [" → ".join(filter(None, each)) for each in zip(frame["layer"], frame["receiver"], strict=True)]
    frame["order"] = frame["receiver"].map(receivers.index)
    return frame.sort_values(["order", "depth", "column"]).drop(columns=["column", "order"])


def in_depth(sites: Iterable[Site]) -> list[Site]:
    """The sites from the first block to the last, and from the input of a block to its output."""
    return sorted(sites, key=_depth)


def _depth(site: Site) -> tuple[int, int]:
    if site.block is None:
        return -1, 0
    if site.part in BEFORE:
        return site.block, BEFORE.index(site.part)
    return site.block, len(BEFORE) + (1 + AFTER.index(site.part) if site.part in AFTER else 0)


def label(value: float) -> str:
    """Two decimals, and no minus before a zero."""
    return MISSING if math.isnan(value) else f"{value:.2f}".replace("-0.00", "0.00")


def describe(frame: pd.DataFrame, shown: str, said: str, title: str) -> str:
    """The map in words, for readers who cannot see it."""
    rows, columns = frame["site"].nunique(), ", ".join(frame["role"].unique())
    text = f"{title}. Heat map of the {said}: {rows} sites by depth, and the roles {columns}."
    if not frame[shown].notna().any():
        return text
    top = frame.loc[frame[shown].idxmax()]
    through = f" through {top['receiver']}" if "receiver" in frame else ""
    return f"{text} The largest is {label(top[shown])}, of {top['site']} at {top['role']}{through}."
