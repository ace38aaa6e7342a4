"""A ladder of difficulty: how well runs do on documents of each kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.lines import strokes
from mecheval.figures.vegalite import DASHES, HUES, OTHER_HUES

if TYPE_CHECKING:  # slow to import
    import pandas as pd

SIDES = 460, 240
"""Pixels across and down."""
COLOURS = (*reversed(HUES.values()), *OTHER_HUES)
MOST = len(COLOURS)
"""Most runs that can be told apart in one chart."""


def ladder_figure(steps: Mapping[str, pd.DataFrame], fact: str, title: str) -> vl.Chart:
    """Accuracy by a fact of the documents, with its 95 % interval: a line for each run.

    `steps` has what `analysis.ladder` returns, by the name of each run.
    """
    if not steps or all(frame.empty for frame in steps.values()):
        raise UserError("ladder: there are no documents to draw.")
    if len(steps) > MOST:
        raise UserError(f"ladder: one chart shows at most {MOST} runs (got {len(steps)}).")
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
    told = "; ".join(
        f"{name}: {frame['accuracy'].iloc[0]:.2f} at {said} {frame[fact].iloc[0]}, {frame['accuracy'].iloc[-1]:.2f} at "
        f"{frame[fact].iloc[-1]}"
        for name, frame in steps.items() if len(frame)
    )  # fmt: skip
    note = "Bands are 95 % intervals over the documents of each kind."
    return vl.finish(vl.panel(layers, *SIDES, rows), title, [note], SIDES[0] + 150, f"{title}. {note} {told}.")
