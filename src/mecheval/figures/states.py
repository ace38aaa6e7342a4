"""What the clean state after each position restores, as lines: where an association enters the state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.lines import strokes
from mecheval.figures.vegalite import DASHES, GREY, shades
from mecheval.types import spoken

if TYPE_CHECKING:  # slow to import
    import pandas as pd

HALF = 0.5
"""Smallest restored share at which an association counts as being in the state."""
FEWEST = 0.1
"""Smallest share of documents that must reach an offset for it to be shown."""
SIDE, NARROW = (420, 200), 90
"""Width and height of the panel of offsets, and width of that of the landmarks, in pixels."""
AFTER_VALUE = 3
"""Number of tokens after the value that a table shows, because a short convolution reaches them."""
MOST_HUES = 10
"""Largest number of layers with different colours; of more, only the first are drawn."""


def aligned(swept: pd.DataFrame) -> str:
    """The role from which a sweep counts positions: the key, by its name in the task."""
    return str(swept["role"].iloc[0])


def reached(swept: pd.DataFrame) -> pd.DataFrame:
    """The rows of a sweep at offsets from the key that enough documents reach."""
    along = swept[swept["role"] == aligned(swept)]
    return along[along["n"] >= FEWEST * along["n"].max()]


def entered(swept: pd.DataFrame) -> dict[int, tuple[int, float] | None]:
    """Layer -> the first offset from the key after which its clean state restores half, and the share there."""
    found: dict[int, tuple[int, float] | None] = {}
    for layer, rows in reached(swept).groupby("layer"):
        there = rows[rows["share"] >= HALF].sort_values("offset")
        found[int(str(layer))] = None if there.empty else (int(there["offset"].iloc[0]), float(there["share"].iloc[0]))
    return found


def spelt(offset: int, roles: Mapping[str, int], key: str) -> str:
    """An offset in words: the role that stands there in all documents, or its distance from the key."""
    for role, at in roles.items():
        if at == offset:
            return role
    return f"{key}{offset:+d}" if offset else key


def named(swept: pd.DataFrame, roles: Mapping[str, int]) -> pd.DataFrame:
    """Layers by positions: the shares around key and value, and at the landmarks."""
    along = reached(swept)
    last = max(roles.values(), default=0) + AFTER_VALUE - 1
    near = along[(along["offset"] >= -1) & (along["offset"] <= last)]
    table = near.pivot(index="layer", columns="offset", values="share")
    table.columns = [spelt(int(offset), roles, aligned(swept)) for offset in table.columns]
    for role in swept.loc[swept["role"] != aligned(swept), "role"].unique():
        table[role] = swept[swept["role"] == role].set_index("layer")["share"]
    return table


def states(swept: pd.DataFrame, title: str, roles: Mapping[str, int] | None = None) -> vl.Chart:
    """A line for each layer over the distance from the key, and beside it the share at the landmarks.

    `swept` is what `state_sweep` returns; `roles` are those that stand at one distance from the key in all documents.
    """
    if swept.empty or swept["share"].isna().all():
        raise UserError("states: nothing was lost, so there is no share to draw.")
    layers = [int(layer) for layer in sorted(swept["layer"].unique())[:MOST_HUES]]
    names = [f"layer {layer}" for layer in layers]
    some = swept[swept["layer"].isin(layers)].assign(name=lambda frame: "layer " + frame["layer"].astype(str))
    along = json.loads(reached(some).to_json(orient="records"))  # which turns NaN into null
    ends = json.loads(some[some["role"] != aligned(swept)].to_json(orient="records"))
    hues = shades(len(names) + 2)[2:]  # the lightest cannot be seen on white
    looks = strokes("name", None, names, hues, [DASHES[i % len(DASHES)] for i in range(len(names))])
    ends_of_scale = (min(0.0, float(some["share"].min())) - 0.05, max(1.0, float(some["share"].max())) + 0.05)
    scale = {"domain": list(ends_of_scale), "nice": False}
    y = vl.field("share:Q", title="restored share", scale=scale, axis={"values": [0, 0.5, 1], "grid": True})
    across = f"position after which the state is replaced, counted from the {spoken(aligned(swept))}"
    x = vl.field("offset:Q", title=across, scale={"nice": False}, axis={"tickMinStep": 1})
    tip = {"tooltip": vl.tooltips(("name", "role", "offset", "share", "n"))}
    marks = [{"offset": at, "role": role} for role, at in {aligned(swept): 0, **(roles or {})}.items()]
    place = {"x": vl.field("offset:Q")}
    lines = [
        vl.layer("rule", place, rows=marks, color=GREY, opacity=0.4),
        vl.layer("text", {**place, "text": vl.field("role:N"), "y": {"value": -6}}, rows=marks, color=GREY, angle=320,
                 align="left"),
        vl.layer("line", {"x": x, "y": y, **looks, **tip}, rows=along, strokeWidth=2, point={"size": 25}),
    ]  # fmt: skip
    landmarks = list(dict.fromkeys(each["role"] for each in ends))
    beside = vl.layer(
        "point",
        {
            "x": vl.field("role:N", title=None, sort=landmarks, axis={"labelAngle": 0}),
            "y": {**y, "title": None, "axis": {"values": [0, 0.5, 1], "grid": True, "labels": False}},
            "color": looks["color"], **tip,
        },
        rows=ends, filled=True, size=50, opacity=1,
    )  # fmt: skip
    panels = vl.beside([vl.panel(lines, *SIDE), vl.panel([beside], NARROW, SIDE[1])], 2 * vl.GAP)
    notes = ["What the clean state of one layer restores when it replaces the corrupted one after a position."]
    return vl.finish(panels, title, notes, SIDE[0] + NARROW, describe(swept, title, roles or {}))


def describe(swept: pd.DataFrame, title: str, roles: Mapping[str, int]) -> str:
    """The chart in words, for readers who cannot see it."""
    said = [
        f"layer {layer} at no position"
        if found is None
        else f"layer {layer} from {spelt(found[0], roles, aligned(swept))} on"
        for layer, found in entered(swept).items()
    ]
    return f"{title}. Lines of the share that the clean state restores; half of it or more: {', '.join(said)}."
