"""One HTML file: data and chart specifications as JSON, and the scripts that show them.

Numbers are written short, and charts with signals by which the page filters their rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mecheval.figures.canvas import BAND, INK, PALE, PAPER, QUIET
from mecheval.figures.lines import thinned
from mecheval.figures.vegalite import FAINT, GREY, RAMP, WHITE_FROM, Chart, Spec, bundle, text_of, views
from mecheval.studies.axes import ordered, plain, say

if TYPE_CHECKING:  # slow to import
    import pandas as pd

SCRIPTS = (
    "dom.js", "theme.js", "charts.js", "tables.js", "maps.js", "reads.js", "summary.js", "studies.js",
    "comparison.js", "documents.js", "runs.js", "main.js", "drawn.js",
)  # fmt: skip
"""The scripts of the page, in the order in which they build on each other."""
EVALUATION = ("dom.js", "theme.js", "charts.js", "tables.js", "evaluation.js", "drawn.js")
"""Those of a page about one evaluated model."""
DIGITS, CHART_DIGITS, EXACT = 6, 5, 17
"""Significant digits of a number in tables and in charts, and those with which it is itself again.

The page rounds once more: 97.554 % that came as 97.55 % would be shown as 97.5 %.
"""

FIELDS = {"lr": "rate"}
"""What the rows of charts call an axis, where that is not its name: cells may have runs of several rates."""
DRAWN, FEWEST = 40_000, 24
"""Largest number of points in all curves of a chart, because more slow a page down, and smallest of one curve."""
DARK_RAMP = (
    "#25313d", "#263d52", "#274966", "#28557a", "#29618f", "#2a6da4", "#2b79b8", "#5695c8", "#80b0d9", "#abccea",
    "#d6e8fa",
)  # fmt: skip
"""The ramp on dark pages: from near the background to light. Text on it turns from white to black at the same step
(`WHITE_FROM`) as it turns from black to white on the other, and contrast is at least 4.5 everywhere."""
DARK = {
    **dict(zip(RAMP, DARK_RAMP, strict=True)),
    GREY: "#a9b3bd", FAINT: "#343d47", INK: "#e6e9ec", QUIET: "#a9b3bd", PALE: "#46505b", PAPER: "#1a1f26",
    BAND: "#272e37", "#b35900": "#f0a04b", "#000000": "#f2f4f6", "#0072b2": "#2f93d6", "black": "white",
    "white": "black",
}  # fmt: skip
"""Colours of charts -> their counterparts on dark pages; other colours are the same on both."""
PAINTED = ("colour", "fill", "edge")
"""Fields of rows that hold colours."""


def page(title: str, data: dict[str, Any], specs: Sequence[Spec], scripts: Sequence[str] = SCRIPTS) -> str:
    """The whole page. Every text from the data reaches it as JSON, and the reader as text."""
    painted = {"dark": DARK, "fields": PAINTED, "ramp": len(RAMP)}
    words = [spec["description"] for spec in specs]
    parts = {
        "title": escape(title),
        "style": f"{_ramp()}\n{asset('page.css')}",
        "data": text_of({**data, "title": title, "painted": painted, "words": words}),
        "specs": "\n".join(
            f'<script type="application/json" id="spec-{number}">{text_of(spec)}</script>'
            for number, spec in enumerate(specs)
        ),
        "vega": bundle(),
        "script": "\n".join(asset(name) for name in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("page.html"))


def asset(name: str) -> str:
    """One of the files in the folder assets."""
    return (files("mecheval.report") / "assets" / name).read_text(encoding="utf-8")


def _ramp() -> str:
    """The colours of maps as variables, light and dark; `w` is the text on them."""
    light, dark = (
        "".join(f"--r{step}:{hue};--w{step}:{ink[step >= WHITE_FROM]};" for step, hue in enumerate(ramp))
        for ramp, ink in ((RAMP, ("#000", "#fff")), (DARK_RAMP, ("#fff", "#000")))
    )
    steps = "".join(f".r{i}{{background:var(--r{i});color:var(--w{i})}}" for i in range(len(RAMP)))
    themes = f":root{{{light}}}\n:root[data-theme=dark]{{{dark}}}\n@media print{{:root[data-theme=dark]{{{light}}}}}"
    return f"{themes}\n{steps}"


def tidy(value: Any, digits: int = DIGITS) -> Any:
    """The same with short numbers, at any depth; None for numbers that are not finite."""
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):  # before containers: most values are numbers
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{digits}g}")
        return int(short) if short == int(short) and abs(short) < 2**53 else short  # 3 for 3.0
    if isinstance(value, dict):
        return {str(name): tidy(each, digits) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [tidy(each, digits) for each in value]
    value = plain(value)
    return tidy(value, digits) if isinstance(value, float) else value


def levels(axis: str, values: Sequence[Any]) -> dict[str, Any]:
    """A column of few different values: their texts in the order of charts, and for each row the number of its text."""
    there = ordered(axis, values)
    return {"levels": [say(axis, value) for value in there], "codes": [there.index(plain(value)) for value in values]}


def columns(frame: pd.DataFrame, names: Iterable[str]) -> dict[str, list[Any]]:
    """Columns of a table as lists, so that names are written once and not in every row."""
    return {name: [tidy(value) for value in frame[name]] for name in names}


def page_spec(chart: Chart, axes: Sequence[str] = ()) -> Spec:
    """The chart as a small specification; for each of the axes, a signal `f_<axis>` chooses the rows that are drawn.

    A signal that is null chooses all rows, a list of texts those with these texts. Rows without the field are always
    drawn.
    """
    rows = {name: thinned_rows(part) for name, part in chart.spec["datasets"].items()}
    spec: Spec = tidy({**chart.spec, "datasets": rows}, CHART_DIGITS)
    del spec["$schema"]
    for view in views(spec):
        there = rows[view["data"]["name"]][:1]
        filters = [{"filter": _passes(axis)} for axis in axes if any(FIELDS.get(axis, axis) in row for row in there)]
        if filters:
            view["transform"] = filters + view.get("transform", [])
    if axes:
        spec["params"] = [{"name": f"f_{axis}", "value": None} for axis in axes]
    return spec


def _passes(axis: str) -> str:
    return f"f_{axis} === null || indexof(f_{axis}, datum.{FIELDS.get(axis, axis)}) >= 0"


def thinned_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows without some points of long curves (fields that hold lists), evenly, and never without the last."""
    most = max(FEWEST, DRAWN // max(1, len(rows)))
    made = []
    for row in rows:
        made.append({name: thinned(value, most) if isinstance(value, list) else value for name, value in row.items()})
    return made


def field_texts(spec: Spec, field: str) -> list[str]:
    """The different texts that rows have in a field, in their order."""
    rows = (row for part in spec["datasets"].values() for row in part)
    return list(dict.fromkeys(row[field] for row in rows if isinstance(row.get(field), str)))
