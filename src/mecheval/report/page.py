"""One HTML file: the data as JSON, the scripts that show it, and nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from mecheval.figures import style
from mecheval.report.plain import text_of
from mecheval.report.specs import DARK, DARK_RAMP, PAINTED, Spec

SCRIPTS = (
    "dom.js", "theme.js", "charts.js", "tables.js", "maps.js", "summary.js", "studies.js", "comparison.js",
    "documents.js", "runs.js", "main.js",
)  # fmt: skip
"""In the order in which they build on each other."""
VEGA = "window.vegaEmbed = vegaEmbed; window.dispatchEvent(new Event('vega'));"
"""What is taken of the bundle; the page is told when it is there."""


def page(title: str, data: dict[str, Any], specs: Sequence[Spec]) -> str:
    """The whole page. Every text from the data reaches it as JSON, and the page as text."""
    painted = {"dark": DARK, "fields": PAINTED, "ramp": len(style.RAMP)}
    words = [spec.get("description", "") for spec in specs]
    parts = {
        "title": escape(title),
        "style": f"{_ramp()}\n{asset('page.css')}",
        "data": text_of({**data, "title": title, "painted": painted, "words": words}),
        "specs": "\n".join(
            f'<script type="application/json" id="spec-{number}">{text_of(spec)}</script>'
            for number, spec in enumerate(specs)
        ),
        "vega": bundle(),
        "script": "\n".join(asset(name) for name in SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("page.html"))


def asset(name: str) -> str:
    """One of the files beside this module."""
    return (files("mecheval.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def bundle() -> str:
    """Vega, Vega-Lite of the version that the charts are written for, and what embeds them."""
    import altair as alt
    import vl_convert

    wanted = alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    versions: list[str] = vl_convert.get_vegalite_versions()
    script: str = vl_convert.javascript_bundle(VEGA, vl_version=wanted if wanted in versions else None)
    return script.replace("</script", "<\\/script")


def _ramp() -> str:
    """The colours of maps as variables, light and dark; `w` is the text on them."""
    light, dark = (
        "".join(f"--r{step}:{hue};" for step, hue in enumerate(ramp))
        + "".join(f"--w{step}:{ink[step >= style.WHITE_FROM]};" for step in range(len(ramp)))
        for ramp, ink in ((style.RAMP, ("#000", "#fff")), (DARK_RAMP, ("#fff", "#000")))
    )
    steps = "".join(f".r{i}{{background:var(--r{i});color:var(--w{i})}}" for i in range(len(style.RAMP)))
    themes = f":root{{{light}}}\n:root[data-theme=dark]{{{dark}}}\n@media print{{:root[data-theme=dark]{{{light}}}}}"
    return f"{themes}\n{steps}"
