"""What each layer reads at the query, by mixer: a map of shares by role."""

from __future__ import annotations

from mecheval.errors import UserError
from mecheval.figures import vegalite as vl
from mecheval.figures.reads import SIGNED
from mecheval.studies import StudyTable
from mecheval.studies.inside import LAYERS, READS, ROLES

CELL, HIGH = 74, 22
"""Pixels of a cell across and down."""


def inside(table: StudyTable, title: str) -> vl.Chart:
    """A panel for each layer: a row for each mixer, a column for each role; over several seeds the mean."""
    if table.frame.empty:
        raise UserError("there are no runs to show.")
    mixers = table.axis("mixer")
    means = table.frame.groupby("mixer")[list(READS)].mean()
    panels, said = [], []
    for layer in range(LAYERS):
        shares = {(mixer, role): float(means.loc[mixer, f"layer_{layer}_{role}"]) for mixer in mixers for role in ROLES}
        rows: list[vl.Row] = [
            {"mixer": mixer, "role": role, "share": round(share, 3)}
            for (mixer, role), share in shares.items() if share == share
        ]  # fmt: skip
        at = {
            "x": vl.field("role:N", sort=list(ROLES), title=None, axis={"labelAngle": 0, "orient": "top"}),
            "y": vl.field("mixer:N", sort=mixers, title=None, axis={"labels": layer == 0}),
            "tooltip": vl.tooltips(["mixer", "role", "share"]),
        }
        legend = {"title": "share", "values": [-1, 0, 1], "format": ".0f"} if layer == 0 else None
        fill = {
            **at,
            "color": vl.field("share:Q", scale={**SIGNED, "clamp": True, "interpolate": "rgb"}, legend=legend),
        }
        ink = {"condition": {"test": "abs(datum.share) > 0.6", "value": "white"}, "value": "black"}
        text = {**at, "text": vl.field("share:Q", format=".2f"), "color": ink}
        layers = [vl.layer("rect", fill, stroke=vl.FAINT), vl.layer("text", text, fontSize=10)]
        panels.append(vl.panel(layers, {"step": CELL}, {"step": HIGH}, rows, title=vl.heading([f"layer {layer}"])))
        for mixer in dict.fromkeys(row["mixer"] for row in rows):
            most = max(ROLES, key=lambda role: shares[mixer, role])
            said.append(f"{mixer}, layer {layer}: most from {most} ({shares[mixer, most]:.2f})")
    notes = [
        "Share of what a layer reads at the query that comes from each role, mean over documents; negative shares "
        "count against the result. The rest comes from other tokens."
    ]
    pixels = LAYERS * (CELL * len(ROLES) + 60) + 100
    return vl.finish(vl.beside(panels, 3 * vl.GAP), title, notes, pixels, f"{title} {'; '.join(said) or 'No results'}.")
