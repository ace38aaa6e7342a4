"""The loss around a run as filled contours, from its start to its end, and its sharpness along training as lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mecheval.figures import vegalite as vl
from mecheval.figures.lines import strokes

SIDE, HIGH, WIDE = 260, 170, 260
"""Pixels of the plane along a side, and of the other panels down and across."""
FINE = 105
"""Cells of the plane along a side; losses between those computed are interpolated, so that levels are contours."""
LEVELS = 10
"""Colours of the plane, from the smallest loss to the largest that is distinguished."""
MARKS = {"largest": ("#0072b2", (1, 0)), "second": ("#56b4e9", (6, 2)), "third": ("#9bd0ee", (2, 2)),
         "edge of stability": (vl.GREY, (4, 4))}  # fmt: skip
Rows = Sequence[Mapping[str, Any]]


def landscape(plane: Rows, line: Rows, sharpness: Rows, title: str) -> vl.Chart:
    """Charts of what `mecheval.evaluation.landscape` finds."""
    parts = [_plane(plane), _line(line)]
    below = []
    if sharpness:
        heads = {"eigenvalues": "eigenvalues of the Hessian", "preconditioned": "the same, preconditioned by AdamW"}
        edges = {"eigenvalues": "edge", "preconditioned": "preconditioned_edge"}
        below = [_sharpness(sharpness, name, edges[name], head) for name, head in heads.items()]
    chart = vl.below([vl.beside(each, 5 * vl.GAP) for each in (parts, below) if each], 2 * vl.GAP)
    chart["resolve"] = {"scale": dict.fromkeys(("color", "stroke", "strokeDash"), "independent")}
    notes = [
        "Left: loss around the end of training (cross) in two random directions; 1 is as far as the weights are from "
        "zero, tensor by tensor. Right: loss on the straight line from the start (0) through the end (1) of training."
    ]
    if sharpness:
        notes.append(
            "Below: the largest eigenvalues of the Hessian along training, and the largest of the Hessian as AdamW "
            "preconditions it; above the dashed edge, 2 / learning rate and AdamW's own, training is unstable."
        )
    return vl.finish(chart, title, notes, SIDE + WIDE + 200, f"{title}. {' '.join(said(line, sharpness))}")


def said(line: Rows, sharpness: Rows) -> list[str]:
    """What the charts show, in sentences."""
    start, end = line[0]["loss"], min(line, key=lambda row: abs(row["part"] - 1))["loss"]
    top = max(line, key=lambda row: row["loss"] if row["part"] <= 1 else -math.inf)
    hill = "never rises above its start" if top["loss"] <= start else f"rises to {top['loss']:.2f} at {top['part']:.2f}"
    found = [f"The loss on the line from start ({start:.2f}) to end ({end:.2g}) {hill}."]
    known = [row for row in sharpness if row["preconditioned"] is not None]
    if known:
        near = max(known, key=lambda row: row["preconditioned"] / row["preconditioned_edge"])
        share = near["preconditioned"] / near["preconditioned_edge"]
        outcome = "holds" if share >= 1 else "contradicted"
        found.append(
            f"Training reaches the edge of stability under AdamW: {outcome} for this run "
            f"(at step {near['step']:,}, its sharpness is {share:.2f} of the edge)."
        )
    return found


def _plane(plane: Rows) -> vl.Spec:
    a, b = (np.unique([row[name] for row in plane]) for name in ("a", "b"))
    losses = np.log(np.array([max(row["loss"], 1e-6) for row in plane]).reshape(len(b), len(a)))
    places = [(np.arange(FINE) + 0.5) / FINE * (axis[-1] - axis[0]) + axis[0] for axis in (a, b)]
    fine = np.stack([np.interp(places[0], a, row) for row in losses])
    fine = np.stack([np.interp(places[1], b, column) for column in fine.T]).T
    edges = np.linspace(losses.min(), losses.max(), LEVELS + 1)
    level = np.clip(np.searchsorted(edges, fine, side="right") - 1, 0, LEVELS - 1)
    sides = [(axis[-1] - axis[0]) / FINE / 2 for axis in (a, b)]
    rows = []
    for i, y in enumerate(places[1]):  # cells of one level beside each other are one rectangle
        first = 0
        for j in range(1, FINE + 1):
            if j == FINE or level[i, j] != level[i, first]:
                rows.append({
                    "x": round(places[0][first] - sides[0], 4), "x2": round(places[0][j - 1] + sides[0], 4),
                    "y": round(y - sides[1], 4), "y2": round(y + sides[1], 4), "level": int(level[i, first]),
                    "loss": f"{math.exp(edges[level[i, first]]):.3g} to {math.exp(edges[level[i, first] + 1]):.3g}",
                })  # fmt: skip
                first = j
    names = [f"{math.exp(edge):.2g}" for edge in edges[:-1]]
    legend = {
        "title": "loss from",
        "labelExpr": f"{names}[datum.value]",
        "symbolType": "square",
        "symbolStrokeWidth": 0,
    }
    colours = {"domain": list(range(LEVELS)), "range": list(reversed(vl.shades(LEVELS)))}
    axis = {"tickCount": 5}
    at = {
        "x": vl.field("x:Q", title="direction 1", scale={"nice": False}, axis=axis), "x2": {"field": "x2"},
        "y": vl.field("y:Q", title="direction 2", scale={"nice": False}, axis=axis), "y2": {"field": "y2"},
        "color": vl.field("level:O", scale=colours, legend=legend),
        "stroke": vl.field("level:O", scale=colours, legend=None), "tooltip": vl.tooltips(["loss"]),
    }  # fmt: skip
    middle = {"x": vl.field("x:Q"), "y": vl.field("y:Q")}
    layers = [
        vl.layer("rect", at, rows=rows, strokeWidth=0.7),
        vl.layer("point", middle, rows=[{"x": 0, "y": 0}], shape="cross", color="white", opacity=1, size=80),
    ]
    return vl.panel(layers, SIDE, SIDE, title=vl.heading("around the end of training", SIDE))


def _line(line: Rows) -> vl.Spec:
    rows = [{"part": round(row["part"], 3), "loss": float(f"{row['loss']:.4g}")} for row in line]
    grid = {"grid": True, "tickCount": 4}
    at = {
        "x": vl.field("part:Q", title="part of the way", axis=grid, scale={"nice": False}),
        "y": vl.field("loss:Q", title="loss", axis=grid),
        "tooltip": vl.tooltips(["part", "loss"]),
    }  # fmt: skip
    ends = vl.layer("rule", {"x": vl.field("part:Q")}, rows=[{"part": 1}], stroke=vl.GREY, strokeDash=[4, 3])
    marks = vl.layer("line", at, rows=rows, color="#0072b2", strokeWidth=1.8, point={"size": 14, "color": "#0072b2"})
    return vl.panel([ends, marks], WIDE, SIDE, title=vl.heading("from start to end", WIDE))


def _sharpness(found: Rows, name: str, edge: str, head: str) -> vl.Spec:
    rows = []
    for row in found:
        values = row[name] if isinstance(row[name], list) else [row[name]]
        lines = dict(zip(MARKS, values, strict=False)) | {"edge of stability": row[edge]}
        rows += [
            {"step": row["step"], "line": line, "value": float(f"{value:.4g}")}
            for line, value in lines.items() if value is not None and 0 < value < math.inf
        ]  # fmt: skip
    hues, dashes = zip(*MARKS.values(), strict=True)
    low, high = (math.log10(end((row["value"] for row in rows), default=1)) for end in (min, max))
    powers = [10.0**n for n in range(math.floor(low), max(math.ceil(high), math.floor(low) + 1) + 1)]
    scale = {"type": "log", "domain": [powers[0], powers[-1]]}
    axis = {"grid": True, "values": powers, "format": "~s"}
    steps = vl.field("step:Q", title="step", axis={"grid": True, "tickCount": 5, "format": ",d"})
    at = {
        "x": steps, "y": vl.field("value:Q", title=None, scale=scale, axis=axis),
        **strokes("line", None, list(MARKS), hues, dashes), "tooltip": vl.tooltips(["line", "step", "value"]),
    }  # fmt: skip
    return vl.panel(
        [vl.layer("line", at, rows=rows, strokeWidth=1.8, point={"size": 18})], WIDE, HIGH, title=vl.heading(head, WIDE)
    )
