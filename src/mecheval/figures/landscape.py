"""The loss around runs as filled contours, from their start to their end, and sharpness along training as lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mecheval.figures import vegalite as vl
from mecheval.figures.lines import strokes
from mecheval.studies import StudyTable
from mecheval.studies.axes import ordered
from mecheval.studies.landscape import says

SIDE, HIGH, WIDE = 260, 170, 260
"""Pixels of the plane along a side, and of the other panels down and across."""
FINE = 105
"""Cells of the plane along a side; losses between those computed are interpolated, so that levels are contours."""
LEVELS = 10
"""Colours of the plane, from the smallest loss to the largest that is distinguished."""
SMALL, COARSE, ACROSS = 130, 45, 4
"""For maps of several runs: side length in pixels, number of cells along it, and number of maps in a row."""
MOST = 10.0
"""The largest loss that the maps of several runs distinguish: three times that of guessing."""
LOG, POWERS = {"type": "log"}, {"grid": True, "values": [10.0**n for n in range(-6, 7)], "format": "~g"}
"""A logarithmic scale, and its axis."""
MARKS = {"largest": ("#0072b2", (1, 0)), "second": ("#56b4e9", (6, 2)), "third": ("#9bd0ee", (2, 2)),
         "edge of stability": (vl.GREY, (4, 4))}  # fmt: skip
Rows = Sequence[Mapping[str, Any]]


def landscape(plane: Rows, line: Rows, sharpness: Rows, title: str) -> vl.Chart:
    """Charts of the results of `mecheval.training.landscape`."""
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


def landscapes(table: StudyTable, title: str) -> vl.Chart:
    """A map for each run, and one panel each for all lines from start to end and all sharpnesses along training."""
    found = table.kept
    frame = table.frame[table.frame["run"].isin(list(found))].reset_index(drop=True)
    seeds = [f", seed {seed}" if frame["mixer"].duplicated().any() else "" for seed in frame["seed"]]
    names = {run: mixer + seed for run, mixer, seed in zip(frame["run"], frame["mixer"], seeds, strict=True)}
    mixers = ordered("mixer", frame["mixer"])
    planes = {run: [dict(zip("ab", row, strict=False), loss=row[2]) for row in found[run]["plane"]] for run in names}
    lowest = min((float(found[run]["plane"][:, 2].min()) for run in names), default=1.0)
    edges = np.linspace(math.log(max(lowest, 1e-6)), math.log(MOST), LEVELS + 1)
    maps = [
        _plane(planes[run], edges, SMALL, COARSE, f"{name} ({accuracy:.2f})", legend=i == 0, names=False)
        for i, (run, name, accuracy) in enumerate(
            zip(names, names.values(), frame["test_accuracy"].fillna(0.0), strict=True)
        )
    ]
    lines: list[vl.Row] = []
    shares: list[vl.Row] = []
    for row in frame.to_dict("records"):
        about, own = {"mixer": row["mixer"], "run": row["run"]}, found[row["run"]]
        lines += [{**about, "part": round(x, 3), "loss": float(f"{y:.4g}")} for x, y in own["line"].tolist() if x <= 1]
        shares += [{**about, "step": step, "share": float(f"{sharp / edge:.4g}")}
                   for step, _, sharp, edge in own["sharpness"].tolist() if sharp > 0]  # fmt: skip
    parts = [vl.beside(maps[i : i + ACROSS], 2 * vl.GAP) for i in range(0, len(maps), ACROSS)]
    parts.append(vl.beside([_lines(lines, mixers), _shares(shares, mixers)], 6 * vl.GAP))
    chart = vl.below(parts, 2 * vl.GAP)
    chart["resolve"] = {"scale": dict.fromkeys(("color", "stroke", "strokeDash"), "independent")}
    notes = [
        f"Above: loss around the end of training (cross) in two random directions, from -1 to 1, where 1 is as far as "
        f"the weights are from zero; with the test accuracy. Losses above {MOST:g} have the lightest colour.",
        "Below: loss on the straight line from the start (0) to the end (1) of training; and the sharpness under AdamW "
        "along training, relative to the edge above which it is unstable.",
    ]
    pixels = ACROSS * (SMALL + 2 * vl.GAP) + 60
    return vl.finish(chart, title, notes, pixels, f"{title} {' '.join(says(table))}")


def _lines(rows: Sequence[vl.Row], mixers: list[str]) -> vl.Spec:
    at = {
        "x": vl.field("part:Q", title="part of the way", axis={"grid": True, "tickCount": 4}, scale={"nice": False}),
        "y": vl.field("loss:Q", title="loss", axis=POWERS, scale=LOG),
    }
    return _by_mixer(at, rows, mixers, "from start to end")


def _shares(rows: Sequence[vl.Row], mixers: list[str]) -> vl.Spec:
    steps = {"grid": True, "tickCount": 5, "format": ",d"}
    at = {
        "x": vl.field("step:Q", title="step", axis=steps, scale={"domainMin": 0}),
        "y": vl.field("share:Q", title="sharpness / edge", axis=POWERS, scale=LOG),
    }
    return _by_mixer(at, rows, mixers, "sharpness under AdamW", edge=True)


def _by_mixer(at: vl.Spec, rows: Sequence[vl.Row], mixers: list[str], head: str, *, edge: bool = False) -> vl.Spec:
    """A line for each run in the look of its mixer, and a rule at 1 where an edge is shown."""
    marks = vl.mixer_marks(mixers)
    looks = strokes("mixer", None, mixers, [marks[m][0] for m in mixers], [marks[m][2] for m in mixers])
    tip = [name for name in ("mixer", "run", "part", "loss", "step", "share") if rows and name in rows[0]]
    layers = [vl.layer("line", {**at, **looks, "detail": vl.field("run:N"), "tooltip": vl.tooltips(tip)}, rows=rows,
                       strokeWidth=1.6, point={"size": 14})]  # fmt: skip
    if edge:
        one, y = [{"share": 1, "text": "edge of stability"}], {"y": vl.field("share:Q")}
        text = {**y, "x": {"value": 4}, "text": vl.field("text:N")}
        layers.insert(0, vl.layer("rule", y, rows=one, stroke=vl.GREY, strokeDash=[4, 3]))
        layers.append(vl.layer("text", text, rows=one, align="left", dy=-6, color=vl.GREY))
    return vl.panel(layers, WIDE, HIGH, title=vl.heading(head, WIDE))


def _plane(
    plane: Rows, edges: NDArray[np.float64] | None = None, side: int = SIDE, fine: int = FINE,
    head: str = "around the end of training", *, legend: bool = True, names: bool = True,
) -> vl.Spec:  # fmt: skip
    """Filled contours at LEVELS of log loss, by default from the smallest to the largest there is."""
    a, b = (np.unique([row[name] for row in plane]) for name in ("a", "b"))
    losses = np.log(np.array([max(row["loss"], 1e-6) for row in plane]).reshape(len(b), len(a)))
    places = [(np.arange(fine) + 0.5) / fine * (axis[-1] - axis[0]) + axis[0] for axis in (a, b)]
    drawn = np.stack([np.interp(places[0], a, row) for row in losses])
    drawn = np.stack([np.interp(places[1], b, column) for column in drawn.T]).T
    edges = np.linspace(losses.min(), losses.max(), LEVELS + 1) if edges is None else edges
    level = np.clip(np.searchsorted(edges, drawn, side="right") - 1, 0, LEVELS - 1)
    sides = [(axis[-1] - axis[0]) / fine / 2 for axis in (a, b)]
    rows = []
    for i, y in enumerate(places[1]):  # cells of one level beside each other are one rectangle
        first = 0
        for j in range(1, fine + 1):
            if j == fine or level[i, j] != level[i, first]:
                rows.append({
                    "x": round(places[0][first] - sides[0], 4), "x2": round(places[0][j - 1] + sides[0], 4),
                    "y": round(y - sides[1], 4), "y2": round(y + sides[1], 4), "level": int(level[i, first]),
                })  # fmt: skip
                first = j
    texts = [f"{math.exp(edge):.2g}" for edge in edges[:-1]]
    shown = {
        "title": "loss from", "labelExpr": f"{texts}[datum.value]", "symbolType": "square", "symbolStrokeWidth": 0,
        "rowPadding": 0,
    }  # fmt: skip
    colours = {"domain": list(range(LEVELS)), "range": list(reversed(vl.shades(LEVELS)))}
    axis = {"tickCount": 5} if names else {"labels": False}
    titles = ("direction 1", "direction 2") if names else (None, None)
    at = {
        "x": vl.field("x:Q", title=titles[0], scale={"nice": False}, axis=axis), "x2": {"field": "x2"},
        "y": vl.field("y:Q", title=titles[1], scale={"nice": False}, axis=axis), "y2": {"field": "y2"},
        "color": vl.field("level:O", scale=colours, legend=shown if legend else None),
        "stroke": vl.field("level:O", scale=colours, legend=None),
    }  # fmt: skip
    middle = {"x": vl.field("x:Q"), "y": vl.field("y:Q")}
    layers = [
        vl.layer("rect", at, rows=rows, strokeWidth=0.7),
        vl.layer("point", middle, rows=[{"x": 0, "y": 0}], shape="cross", color="white", opacity=1, size=side / 3),
    ]
    return vl.panel(layers, side, side, title=vl.heading(head, side))


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
