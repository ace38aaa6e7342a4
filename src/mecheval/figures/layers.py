"""Depth: accuracy by the number of layers, and which layer brings the answer to the query."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mecheval.figures.bars import ACCURACY, MEASURE, RANGES, bar_panels, panel_width
from mecheval.figures.cells import UNLEARNT, Cell, cells, notes
from mecheval.figures.matrix import GAP, column_width, described, grid
from mecheval.figures.style import finish
from mecheval.studies.axes import ordered, plain, say

if TYPE_CHECKING:  # both are slow to import
    import altair as alt
    import pandas as pd

LEARNT = 0.01
"""Likelihood of the answer above which there is something to attribute, as in the paper."""
AXES = ["n_layers", "mixer", "d_model"]
ATTRIBUTION = "attribution to each layer's mixer at the query (points)"


def depth(frame: pd.DataFrame, title: str) -> alt.VConcatChart:
    """Accuracy as bars for each number of layers; below, the attribution of each layer: a panel a depth and width."""
    import altair as alt

    scores, effects = cells(frame, ACCURACY, AXES), attributions(frame)
    layers, widths = (len({cell[axis] for cell in effects}) for axis in ("layer", "d_model"))
    wide = max(panel_width(widths), layers * column_width(layers))
    bars, _ = bar_panels(scores, "n_layers", "accuracy", wide)
    maps, pixels = grid(effects, "mixer", "layer", "d_model", "n_layers", ATTRIBUTION, wide)
    said = f"{title}. Bars of the {MEASURE}. {described(scores, 'n_layers', ['mixer', 'd_model'])}"
    said += f" Heat maps of the {ATTRIBUTION}. {described(effects, 'layer', AXES)}"
    chart = alt.vconcat(bars, maps, spacing=2 * GAP)
    return finish(chart, title, notes([*scores, *effects], ranges=RANGES, corners=True), pixels, said)


def attributions(frame: pd.DataFrame) -> list[Cell]:
    """Cells of column mixer{i}_at_query for each layer i that a model has, of runs that have learnt something."""
    found = [re.fullmatch(r"mixer(\d+)_at_query", name) for name in frame.columns]
    columns = {match[0]: match[1] for match in found if match}
    learnt = [plain(value) is None or value > LEARNT for value in frame["original"]]
    made = cells(frame.assign(status=frame["status"].where(learnt, UNLEARNT)), columns, AXES)
    has = {say("n_layers", number): number for number in ordered("n_layers", frame["n_layers"])}
    return [cell | {"layer": cell["quantity"]} for cell in made if int(cell["quantity"]) < has[cell["n_layers"]]]
