"""Charts for a page: Vega-Lite specifications that are small, and that signals of the page can filter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mecheval.figures import style
from mecheval.figures.canvas import INK, PALE, PAPER, QUIET
from mecheval.report.plain import tidy

if TYPE_CHECKING:  # slow to import
    from altair.typing import ChartType

Spec = dict[str, Any]
FIELDS = {"lr": "rate"}
"""What the rows of charts call an axis, where that is not its name: cells may have runs of several rates."""
DRAWN = 40_000
"""Points of all curves of a chart together: more cannot be seen, and slow a page down."""
FEWEST = 24
"""Points of a curve, however many there are."""

DARK_RAMP = (
    "#25313d", "#263d52", "#274966", "#28557a", "#29618f", "#2a6da4", "#2b79b8", "#5695c8", "#80b0d9", "#abccea",
    "#d6e8fa",
)  # fmt: skip
"""`style.RAMP` for dark pages: from near the page's colour to light. Text on it turns from white to black at the same
step (`WHITE_FROM`) as it turns from black to white on the other, and contrast is at least 4.5 everywhere."""
DARK = {
    **dict(zip(style.RAMP, DARK_RAMP, strict=True)),
    style.GREY: "#a9b3bd", style.FAINT: "#343d47", INK: "#e6e9ec", QUIET: "#a9b3bd", PALE: "#46505b", PAPER: "#1a1f26",
    "#eef0f3": "#272e37", "#b35900": "#f0a04b", "#000000": "#f2f4f6", "#0072b2": "#2f93d6", "black": "white",
    "white": "black",
}  # fmt: skip
"""Colours of charts -> their twins on dark pages; others are the same on both."""
PAINTED = ("colour", "fill", "edge")
"""Fields of rows that hold colours."""


def page_spec(chart: ChartType, axes: Sequence[str] = ()) -> Spec:
    """The chart as a specification; for each of the axes a signal `f_<axis>` chooses the rows that are drawn.

    A signal that is null chooses all, a list of texts those that it names. Rows without the field are always drawn.
    """
    spec: Spec = chart.to_dict(validate=False)  # tests validate; here it would take most of the time
    spec.pop("$schema", None)
    _share(spec)
    for view in views(spec):
        rows = spec["datasets"][view["data"]["name"]]
        used = [axis for axis in axes if rows and FIELDS.get(axis, axis) in rows[0]]
        if used:
            view["transform"] = [{"filter": _passes(axis)} for axis in used] + list(view.get("transform", []))
    if axes:
        spec["params"] = [{"name": signal(axis), "value": None} for axis in axes] + list(spec.get("params", []))
    short: Spec = tidy(spec, 5)
    return short


def signal(axis: str) -> str:
    """The name of an axis' signal."""
    return f"f_{axis}"


def _passes(axis: str) -> str:
    name = signal(axis)
    return f"{name} === null || indexof({name}, datum.{FIELDS.get(axis, axis)}) >= 0"


def views(spec: Spec) -> Iterator[Spec]:
    """Every view that has rows of its own, at any depth."""
    if isinstance(spec.get("data"), dict):
        yield spec
    for parts in ("vconcat", "hconcat", "concat", "layer"):
        for part in spec.get(parts, ()):
            yield from views(part)


def _share(spec: Spec) -> None:
    """Write all rows once, by short names, whether views held them or named them."""
    given = spec.get("datasets", {})
    names: dict[str, str] = {}
    datasets: dict[str, list[dict[str, Any]]] = {}
    for view in views(spec):
        rows = given[view["data"]["name"]] if "name" in view["data"] else list(view["data"]["values"])
        text = json.dumps(rows, sort_keys=True)
        if text not in names:
            names[text] = f"rows{len(names)}"
            datasets[names[text]] = thinned_rows(rows)
        view["data"] = {"name": names[text]}
    spec["datasets"] = datasets


def thinned_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without some points of long curves (rows that hold lists), evenly, and never without the last."""
    most = max(FEWEST, DRAWN // max(1, len(rows)))
    return [
        {name: _some(value, most) if isinstance(value, list) else value for name, value in row.items()} for row in rows
    ]


def _some(values: list[Any], most: int) -> list[Any]:
    stride = -(-len(values) // most)
    return [value for place, value in enumerate(values) if place % stride == 0 or place == len(values) - 1]


def field_texts(spec: Spec, field: str) -> list[str]:
    """The different texts that rows have in a field, in their order."""
    rows = (row for part in spec.get("datasets", {}).values() for row in part)
    return list(dict.fromkeys(row[field] for row in rows if isinstance(row.get(field), str)))
