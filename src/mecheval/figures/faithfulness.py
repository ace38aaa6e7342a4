"""How much of the answer circuits of growing size keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mecheval.figures import vegalite as vl

if TYPE_CHECKING:  # slow to import
    from mecheval.intervene import Circuit

SIDES = 460, 260
"""Pixels across and down."""


def faithfulness(circuit: Circuit, title: str) -> vl.Chart:
    """Faithfulness over the size of circuits, best nodes or edges first, and its mean over random ones."""
    rows = [
        {"size": size, "kept": int(kept), "faithfulness": float(value), "order": order}
        for size, kept, *values in circuit.curve[["size", "kept", "faithfulness", "random"]].to_numpy()
        for order, value in zip(("by score", "random"), values, strict=True)
        if value == value  # there may be no random circuits
    ]
    hues = {"domain": ["by score", "random"], "range": [vl.HUES["attention"], vl.OTHER_HUES[2]]}
    at = {
        "x": vl.field("size:Q", title="share of nodes or edges", scale={"type": "log"}, axis={"grid": True}),
        "y": vl.field("faithfulness:Q", title="faithfulness", axis={"grid": True}),
        "color": vl.field("order:N", scale=hues),
        "tooltip": vl.tooltips(["order", "size", "kept", "faithfulness"]),
    }
    chart = vl.panel([vl.layer("line", at, point=True)], *SIDES, rows)
    note = f"CPR {circuit.cpr:.3f}, CMD {circuit.cmd:.3f}, p {circuit.p:.2g} against random circuits"
    return vl.finish(chart, title, [note], SIDES[0] + 100, f"{title}. Faithfulness by size of the circuit; {note}.")
