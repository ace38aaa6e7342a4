"""The shares behind a verdict, with their intervals: what each position restores and destroys, site by site."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl

if TYPE_CHECKING:  # slow to import
    from mecheval.intervene import Verdict

MARKS = {
    ("key", "restore"): ("key: restored", vl.HUES["based"], "circle"),
    ("key", "destroy"): ("key: destroyed", vl.HUES["mamba"], "square"),
    ("key", "control"): ("key: from another document", vl.OTHER_HUES[2], "cross"),
    ("value", "restore"): ("value: restored", vl.HUES["delta_net"], "diamond"),
    ("value", "destroy"): ("value: destroyed", vl.HUES["hyena"], "triangle-up"),
}
"""Name, colour and shape of each corruption and direction that a verdict looks at."""
WIDTH, STEP = 300, 30
"""Pixels across, and from one position to the next."""


def shares(verdict: Verdict, title: str) -> vl.Chart:
    """A panel for each site that the verdict looks at, a line for each position, points with 95 % intervals."""
    frame = verdict.shares
    kinds = list(zip(frame["corruption"], frame["direction"], strict=True))
    frame = frame.assign(kind=[MARKS[kind][0] for kind in kinds])
    if frame["share"].isna().all():
        raise UserError(f"this verdict looks at no share that could be drawn: {verdict.finding}.")
    there = [mark for kind, mark in MARKS.items() if kind in kinds]
    names = [name for name, _, _ in there]
    look = {
        "color": vl.field("kind:N", title=None, scale={"domain": names, "range": [hue for _, hue, _ in there]}),
        "shape": vl.field("kind:N", title=None, scale={"domain": names, "range": [shape for _, _, shape in there]}),
    }
    panels = []
    for site, part in frame.groupby("site", sort=False):
        rows = json.loads(part.to_json(orient="records"))
        y = vl.field("role:N", title=None, sort=list(part["role"].unique()), axis={"grid": True})
        x = vl.field("share:Q", title="share", axis={"grid": True, "values": [0, 0.5, 1]}, scale={"nice": True})
        apart = {"yOffset": vl.field("kind:N", sort=names)}
        tips = vl.tooltips(["site", "role", "kind", "share", "low", "high"])
        ends = {"x": vl.field("low:Q"), "x2": {"field": "high"}, "y": y, **apart, "color": look["color"]}
        points = {"x": x, "y": y, **apart, **look, "tooltip": tips}
        height = STEP * part["role"].nunique()
        panels.append(vl.panel(
            [vl.layer("rule", ends), vl.layer("point", points, filled=True, size=40, opacity=1)], WIDTH, height, rows,
            title=vl.heading(str(site), WIDTH),
        ))  # fmt: skip
    said = "; ".join(verdict.evidence[1:3]).rstrip(".")
    notes = [f"95 % intervals, {verdict.n} documents"]
    description = f"{title}. Shares with intervals, by site and position. {said}."
    return vl.finish(vl.below(panels, vl.GAP), title, notes, WIDTH + 200, description)
