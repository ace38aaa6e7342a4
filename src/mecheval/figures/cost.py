"""Charts of the cost of mixers by length: time per token, memory and state, one panel each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.lines import THOUSANDS, strokes
from mecheval.studies.axes import MIXERS, ordered

if TYPE_CHECKING:  # slow to import
    import pandas as pd

TITLE = "What does each mixer cost by the length of a document?"
PANELS = {
    "train": "training step, µs a token", "forward": "forward pass, µs a token",
    "token_ms": "generated token, ms", "memory_mb": "peak memory of a training step, MB",
    "state": "numbers in the state", "flops": "FLOPs of one more token",
}  # fmt: skip
SIDES = 230, 200
ACROSS = 3
FEW_DECADES = 2.7
"""Powers of ten that an axis may span and still have labels at 2 and 5."""
MISFIT = "#a33d0f"
FADED = 0.45
"""Opacity of the lines of mixers that are not in the paper: with those of all sixteen, nothing could be followed."""
LEAST_MEMORY = 0.1
"""The smallest memory that is shown, in MB; less could be memory that the process reuses."""


def cost(frame: pd.DataFrame, title: str = TITLE) -> vl.Chart:
    """Charts of the rows of `mecheval.evaluation.cost.measured`; a cross marks the first length that did not fit."""
    fits = frame[frame["fits"] == "yes"].sort_values("length")
    if fits.empty:
        raise UserError("cost: nothing has been measured.")
    fits = fits.assign(train=1e3 * fits["train_ms"] / fits["length"], forward=1e3 * fits["forward_ms"] / fits["length"])
    mixers = ordered("mixer", fits["mixer"])
    missing = frame[frame["fits"] != "yes"].sort_values("length").drop_duplicates("mixer")
    ends = {row["mixer"]: row for row in missing.to_dict("records")}
    marks = vl.mixer_marks(mixers)
    legend = strokes("mixer", "mixer", mixers, [marks[m][0] for m in mixers], [marks[m][2] for m in mixers])
    panels = []
    for column, name in PANELS.items():
        shown = fits[fits[column] > (LEAST_MEMORY if column == "memory_mb" else 0)]
        rows = [
            {"mixer": row["mixer"], "length": int(row["length"]), "value": float(f"{row[column]:.4g}")}
            for row in shown.to_dict("records")
        ]
        last = {row["mixer"]: row["value"] for row in rows}
        crosses = [
            {"mixer": m, "length": int(ends[m]["length"]), "value": last[m], "fits": f"too much {ends[m]['fits']}"}
            for m in last if m in ends
        ]  # fmt: skip
        ticks = _ticks([row["value"] for row in rows])
        axis = {"grid": True, "values": ticks, "labelExpr": THOUSANDS}
        tokens = {"grid": True, "values": [32, 128, 512, 2048, 8192], "format": ",d"}
        at = {
            "x": vl.field("length:Q", title="tokens", scale={"type": "log", "base": 2}, axis=tokens),
            "y": vl.field("value:Q", title=None, scale={"type": "log", "domain": [ticks[0], ticks[-1]]}, axis=axis),
            "tooltip": vl.tooltips(["mixer", "length", "value"]),
        }  # fmt: skip
        first = {"test": {"field": "mixer", "oneOf": list(MIXERS)}, "value": 1}
        shown_as = {**at, **legend, "opacity": {"condition": first, "value": FADED}}
        layers = [vl.layer("line", shown_as, rows=rows, strokeWidth=1.6, point={"size": 14})]
        if crosses:
            tip = {"tooltip": vl.tooltips(["mixer", "length", "fits"])}
            layers.append(vl.layer("point", {**at, **tip}, rows=crosses, shape="cross", color=MISFIT, size=60))
        panels.append(vl.panel(layers, *SIDES, title=vl.heading(name, SIDES[0])))
    lines = [vl.beside(panels[i : i + ACROSS], 4 * vl.GAP) for i in range(0, len(panels), ACROSS)]
    notes = [
        f"Models of two layers, d_model {int(fits['d_model'].iloc[0])}, one document; processor time of one thread on "
        f"{fits['cpu'].iloc[0]}. All axes are logarithmic: equal slopes are equal exponents."
    ]
    if not set(mixers) <= set(MIXERS):
        notes.append("Mixers that are not in the paper are drawn lighter.")
    if ends:
        notes.append("Cross: the first length that did not fit the memory or the time allowed.")
    pixels = ACROSS * (SIDES[0] + 4 * vl.GAP) + 120
    return vl.finish(vl.below(lines, 2 * vl.GAP), title, notes, pixels, _described(fits, title))


def _ticks(values: Sequence[float]) -> list[float]:
    """Places for the labels of a logarithmic axis that hold all values: 1, 2, 5, 10, ..., or only powers of ten."""
    low, high = (math.log10(end(values)) for end in (min, max))
    steps = (1, 2, 5) if high - low < FEW_DECADES else (1,)
    places = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    first = max((i for i, place in enumerate(places) if place <= 10**low * 1.001), default=0)
    last = min((i for i, place in enumerate(places) if place >= 10**high * 0.999), default=len(places) - 1)
    return [float(f"{place:.6g}") for place in places[first : max(last, first + 1) + 1]]


def _described(fits: pd.DataFrame, title: str) -> str:
    longest = int(fits["length"].max())
    there = fits[fits["length"] == longest].sort_values("train_ms")
    said = ", ".join(
        f"{row['mixer']} {row['train_ms']:.0f} ms and {row['memory_mb']:.0f} MB" for row in there.to_dict("records")
    )
    return f"{title} A training step on {longest:,} tokens: {said}."
