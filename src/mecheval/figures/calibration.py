"""How often verdicts are right: a panel for each kind of models, noise across, a mark for each number of documents."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl

if TYPE_CHECKING:  # slow to import
    import pandas as pd

TITLE = "How often is the verdict right?"
TITLES = {
    "untrained": "untrained: no name is right", "shuffled": "trained to guess: no name is right",
    "chance": "hand-set to guess: no name is right", "handmade": "hand-set to recall: the built mechanism is right",
}  # fmt: skip
GOAL = 0.95
"""The share of right verdicts that a dashed line marks."""
STEP, HEIGHT, NARROW = 62, 150, 130
"""Pixels of a level of noise across, of a panel down, and of the narrowest panel."""


def calibration(frame: pd.DataFrame, title: str = TITLE) -> vl.Chart:
    """The rates of `mecheval.evaluation.calibration.counted`, with their 95 % intervals."""
    shown = frame[frame["counted"] > 0]
    if shown.empty:
        raise UserError("calibration: there is no verdict to show.")
    sizes = sorted(int(n) for n in shown["documents"].unique())
    kinds = [kind for kind in TITLES if (shown["kind"] == kind).any()]
    panels = [_panel(shown[shown["kind"] == kind], kind, sizes, first=kind == kinds[0]) for kind in kinds]
    notes = [
        "Share of right verdicts with its 95 % interval, by the noise on the weights. Hand-set models count as long as "
        f"they recall with a likelihood of at least 0.9. Dashed: {100 * GOAL:.0f} %."
    ]
    pixels = sum(each["width"] + vl.GAP for each in panels) + 120
    return vl.finish(vl.beside(panels, vl.GAP), title, notes, pixels, describe(shown, title))


def _panel(part: pd.DataFrame, kind: str, sizes: list[int], *, first: bool) -> vl.Spec:
    rows = json.loads(part.assign(noise=[f"{x:g}" for x in part["noise"]]).to_json(orient="records"))
    levels = [f"{x:g}" for x in sorted(part["noise"].unique())]
    width = max(NARROW, STEP * len(levels))
    colour = vl.field("documents:O", scale={"domain": sizes, "range": vl.shades(len(sizes))}, title="documents")
    shape = vl.field("documents:O", scale={"domain": sizes, "range": list(vl.SHAPES[: len(sizes)])}, title="documents")
    axis = {**vl.PERCENT, "labels": first, "title": "right, %" if first else None}
    shared = {
        "x": vl.field("noise:O", sort=levels, title="noise", axis={"labelAngle": 0}),
        "xOffset": vl.field("documents:O", sort=sizes),
        "color": colour,
        "tooltip": [vl.field(f"{name}:N") for name in ("kind", "noise", "documents", "counted", "right", "labels")],
    }
    up: dict[str, Any] = {"scale": {"domain": [0, 1]}, "axis": axis}
    spans = vl.layer("rule", {**shared, "y": vl.field("low:Q", **up), "y2": {"field": "high"}}, size=2)
    dots = {**shared, "y": vl.field("rate:Q", **up), "shape": shape}
    points = vl.layer("point", dots, filled=True, size=55, opacity=1)
    goal = vl.layer("rule", {"y": {"datum": GOAL}}, strokeDash=[4, 3], stroke=vl.GREY)
    return vl.panel([goal, spans, points], width, HEIGHT, rows, title=vl.heading(TITLES[kind], width))


def describe(shown: pd.DataFrame, title: str) -> str:
    """The chart in words, for readers who cannot see it."""
    said = []
    for kind in TITLES:
        part = shown[shown["kind"] == kind]
        if len(part):
            worst = part.loc[part["rate"].idxmin()]
            said.append(
                f"{kind}: {int(part['right'].sum())} of {int(part['counted'].sum())} verdicts are right, the fewest "
                f"({100 * worst['rate']:.0f} %) with noise {worst['noise']:g} and {worst['documents']} documents"
            )
    return f"{title} {'; '.join(said)}."
