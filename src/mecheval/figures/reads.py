"""What layers read: in one document from which token, and by mixer from which role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.studies import StudyTable
from mecheval.studies.inside import CHANGES, COLUMNS, LAYERS, READS, ROLES

if TYPE_CHECKING:  # slow to import
    import pandas as pd

MOST_TOKENS = 80
"""Largest number of tokens of a document that is drawn; more could not be read."""
STEP, WIDE, HIGH = 13, 74, 22
"""Size in pixels of a cell on the map of a document, and its width and height on the map of mixers."""
SIGNED = {
    "domain": [-1, -0.5, 0, 0.5, 1], "range": ["#a33d0f", "#f0b48f", "#ffffff", "#55a3f6", "#072e55"], "clamp": True,
    "interpolate": "rgb",
}  # fmt: skip
"""The scale from shares to colours: against the result, none of it, all of it; beyond, the colours of its ends."""
STRIP, CHANGE = 70, "#9bc8f9"
"""Height in pixels of the strip of a state, and the colour of its bars."""
LEAST = 0.005
"""Smallest share that is coloured."""


def reads(
    shares_layers: NDArray[np.float64], symbols: Sequence[str], roles: Mapping[str, int], title: str,
    norms_layers: NDArray[np.float64] | None = None, changes_layers: NDArray[np.float64] | None = None,
    pairs: pd.DataFrame | None = None,
) -> vl.Chart:  # fmt: skip
    """A map for each layer, shares (layers, L, L): a row for each reading token, a column for each token read.

    With norms of the states after each token and their changes by it (layers, L), strips below show these; NaN stands
    for a layer whose mixer has no state as a tensor. Below these are the `pairs` that `probed_pairs` found in states.
    """
    layers, length = shares_layers.shape[:2]
    if length > MOST_TOKENS:
        raise UserError(f"a map shows documents of at most {MOST_TOKENS} tokens (got {length}); choose another one.")
    named = {place: role for role, place in reversed(list(roles.items()))}
    label = [f"{symbol}{f' · {named[i]}' if i in named else ''}" for i, symbol in enumerate(symbols)]
    maps = [_map(shares_layers[i], i, symbols, label) for i in range(layers)]
    notes = [
        "A row is a token that reads, a column one that is read. Colour: the share of the row's result that comes from "
        "the column, blue with it and brown against it. Shares of a row sum to 1."
    ]
    chart = vl.beside(maps, 3 * vl.GAP)
    if norms_layers is not None and changes_layers is not None and not np.isnan(norms_layers).all():
        strips = [
            _strip(norms, changes, i, symbols, label)
            for i, (norms, changes) in enumerate(zip(norms_layers, changes_layers, strict=True))
        ]
        chart = vl.below([chart, vl.beside(strips, 3 * vl.GAP)], vl.GAP)
        notes.append(
            "Below: the norm of the layer's state after each token (line) and how far the token moves it (bars)."
        )
    if pairs is not None and len(pairs):
        chart = vl.below([chart, vl.beside([_pairs(pairs, i, symbols) for i in range(layers)], 3 * vl.GAP)], vl.GAP)
        notes.append(
            "At the bottom: how often a linear probe, trained on other documents, names the value of each pair from "
            "the state after each token, in documents of this kind (darkest: always)."
        )
    query = roles.get("query", length - 1)
    said = [f"layer {i} reads most from {label[int(np.argmax(row[query]))]}" for i, row in enumerate(shares_layers)]
    width, described = layers * (STEP * length + 40), f"{title}. At the query, {', '.join(said)}."
    return vl.finish(chart, title, notes, width, described)


def _map(shares: NDArray[np.float64], layer: int, symbols: Sequence[str], label: Sequence[str]) -> vl.Spec:
    rows = [
        {"t": t, "s": s, "share": round(float(shares[t, s]), 3), "reader": label[t], "read": label[s]}
        for t in range(len(label)) for s in range(t + 1) if abs(shares[t, s]) >= LEAST
    ]  # fmt: skip
    names = "[" + ", ".join(_quoted(name) for name in label) + "][datum.value]"
    short = "[" + ", ".join(_quoted(name) for name in symbols) + "][datum.value]"
    every = {"domain": list(range(len(label)))}
    encoding = {
        "x": vl.field("s:O", title=None, scale=every, axis={"labelExpr": short, "orient": "top", "labelAngle": -90}),
        "y": vl.field("t:O", title=None, scale=every, axis={"labelExpr": names if layer == 0 else "''"}),
        "color": _colour(layer),
        "tooltip": [vl.field("reader:N"), vl.field("read:N"), vl.field("share:Q")],
    }  # fmt: skip
    cells = vl.layer("rect", encoding, stroke=vl.FAINT, strokeWidth=0.5)
    return vl.panel([cells], {"step": STEP}, {"step": STEP}, rows, title=vl.heading([f"layer {layer}"]))


def _strip(
    norms: NDArray[np.float64], changes: NDArray[np.float64], layer: int, symbols: Sequence[str], label: Sequence[str]
) -> vl.Spec:
    """The norm of a state after each token as a line, and its change by the token as bars, as wide as the map."""
    rows = [
        {"s": s, "token": label[s], "norm": float(f"{norm:.4g}"), "change": float(f"{change:.4g}")}
        for s, (norm, change) in enumerate(zip(norms.tolist(), changes.tolist(), strict=True)) if norm == norm
    ]  # fmt: skip
    short = "[" + ", ".join(_quoted(name) for name in symbols) + "][datum.value]"
    every = {"domain": list(range(len(label)))}
    x = vl.field("s:O", title=None, scale=every, axis={"labelExpr": short, "labelAngle": -90})
    axis = {"tickCount": 3, "grid": True}
    tip = vl.tooltips(["token", "norm", "change"])
    bars = vl.layer("bar", {"x": x, "y": vl.field("change:Q", title=None, axis=axis), "tooltip": tip}, color=CHANGE)
    line = vl.layer("line", {"x": x, "y": vl.field("norm:Q", title=None, axis=axis), "tooltip": tip}, color="black",
                    point={"size": 16, "color": "black"}, strokeWidth=1.2)  # fmt: skip
    head = f"state of layer {layer}" if rows else f"layer {layer} has no state as a tensor"
    return vl.panel([bars, line], {"step": STEP}, STRIP, rows, title=vl.heading([head]))


def _pairs(found: pd.DataFrame, layer: int, symbols: Sequence[str]) -> vl.Spec:
    """A map of how well each pair is read from a layer's state, as wide as the map of what the layer reads."""
    own = found[found["layer"] == layer]
    rows = [
        {"s": row["position"], "pair": f"pair {row['pair'] + 1}", "accuracy": round(row["accuracy"], 3)}
        for row in own.to_dict("records")
    ]
    short = "[" + ", ".join(_quoted(name) for name in symbols) + "][datum.value]"
    every, names = {"domain": list(range(len(symbols)))}, [f"pair {i + 1}" for i in range(found["pair"].max() + 1)]
    at = {
        "x": vl.field("s:O", title=None, scale=every, axis={"labelExpr": short, "labelAngle": -90}),
        "y": vl.field("pair:N", title=None, scale={"domain": names}, axis={"labels": layer == 0}),
        "color": vl.field("accuracy:Q", scale=vl.FILL, legend=None),
        "tooltip": vl.tooltips(["pair", "accuracy"]),
    }
    head = f"pairs in the state of layer {layer}" if rows else f"layer {layer} has no state as a tensor"
    cells = vl.layer("rect", at, stroke=vl.FAINT, strokeWidth=0.5)
    return vl.panel([cells], {"step": STEP}, {"step": STEP}, rows, title=vl.heading([head]))


def _colour(layer: int) -> vl.Spec:
    """The colour of a share; the first layer has the legend."""
    legend = {"title": "share", "values": [-1, 0, 1], "format": ".0f"} if layer == 0 else None
    return vl.field("share:Q", scale=SIGNED, legend=legend)


def _quoted(text: str) -> str:
    """A text as a literal of Vega's expressions."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ") + "'"


def inside(table: StudyTable, title: str) -> vl.Chart:
    """Panels for each layer: what it reads, and below how its state changes. Over several seeds, the means.

    A row is a mixer, or a mixer and a width where there are several; those without any numbers are only named.
    """
    known = table.frame[table.frame[list(READS)].notna().any(axis=1)]
    wide = known["d_model"].nunique() > 1
    labels = [f"{mixer}, {width}" if wide else str(mixer)
              for mixer, width in zip(known["mixer"], known["d_model"], strict=True)]  # fmt: skip
    means = known[list(COLUMNS)].groupby(labels).mean()
    rows_of = [f"{mixer}, {width}" if wide else mixer
               for mixer in table.axis("mixer") for width in (table.axis("d_model") if wide else [0])]  # fmt: skip
    missing = [mixer for mixer in table.axis("mixer") if mixer not in set(known["mixer"])]
    lines, said = [], []
    for names, heading in ((READS, "layer {} reads at the query from"), (CHANGES, "state of layer {} changes at")):
        mixers = [row for row in rows_of if row in means.index and means.loc[row, list(names)].notna().any()]
        if not mixers:
            continue
        panels = []
        for layer in range(LAYERS):
            own = dict(zip(ROLES, list(names)[layer * len(ROLES) :], strict=False))
            rows: list[vl.Row] = [
                {"mixer": mixer, "role": role, "share": round(float(means.loc[mixer, name]), 4)}
                for mixer in mixers for role, name in own.items() if means.loc[mixer, name] == means.loc[mixer, name]
            ]  # fmt: skip
            panels.append(_by_role(rows, mixers, layer, heading.format(layer), legend=names is READS and layer == 0))
            if names is READS:
                for mixer in dict.fromkeys(row["mixer"] for row in rows):
                    most = max((row for row in rows if row["mixer"] == mixer), key=lambda row: row["share"])
                    said.append(f"{mixer}, layer {layer}: most from {most['role']} ({most['share']:.2f})")
        lines.append(vl.beside(panels, 3 * vl.GAP))
    notes = [
        "Above: the share of what a layer reads at the query that comes from each role, mean over documents; negative "
        "shares count against the result, and the rest comes from other tokens. Below: by how much of its norm the "
        "state changes at the token of a role; mixers that carry no state as a tensor are not there."
    ]
    if missing:
        notes.append(f"No results: {', '.join(missing)}.")
    pixels = LAYERS * (WIDE * len(ROLES) + 60) + 100
    return vl.finish(vl.below(lines, 2 * vl.GAP), title, notes, pixels, f"{title} {'; '.join(said) or 'No results'}.")


def _by_role(rows: Sequence[vl.Row], mixers: list[str], layer: int, heading: str, *, legend: bool) -> vl.Spec:
    """A map of mixers by roles; only that of the first layer names the mixers."""
    at = {
        "x": vl.field("role:N", sort=list(ROLES), title=None, axis={"labelAngle": 0, "orient": "top"}),
        "y": vl.field("mixer:N", sort=mixers, title=None, scale={"domain": mixers}, axis={"labels": layer == 0}),
        "tooltip": vl.tooltips(["mixer", "role", "share"]),
    }
    ink = {"condition": {"test": "abs(datum.share) > 0.6", "value": "white"}, "value": "black"}
    text = {**at, "text": vl.field("share:Q", format=".2f"), "color": ink}
    cells = vl.layer("rect", {**at, "color": _colour(0 if legend else 1)}, stroke=vl.FAINT)
    head = vl.heading([heading])
    return vl.panel([cells, vl.layer("text", text, fontSize=10)], {"step": WIDE}, {"step": HIGH}, rows, title=head)
