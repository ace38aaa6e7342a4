"""A chart as one HTML file, with tooltips: its specification as JSON, and Vega to draw it. Nothing is fetched."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from html import escape
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.digests import sha256
from mecheval.figures.vegalite import version
from mecheval.files import write_atomic

if TYPE_CHECKING:
    from mecheval.figures.vegalite import Chart

VEGA = "window.vegaEmbed = vegaEmbed; window.dispatchEvent(new Event('vega'));"
"""The last script: it hands Vega to the page, and announces it."""
ESCAPED = {sign: f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
"""Characters that could end a script element or a line of it; in JSON they occur only inside strings."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:"
"""What a browser lets the page do: nothing that reaches a network. Vega compiles its expressions."""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
</head>
<body>
<div id="chart" role="img" aria-label="{description}"></div>
<script type="application/json" id="spec">{spec}</script>
<script>
window.addEventListener("vega", () => {{
  vegaEmbed("#chart", JSON.parse(document.getElementById("spec").textContent), {{ actions: false, renderer: "svg" }});
}});
</script>
<!-- Vega and Vega-Lite, copyright University of Washington Interactive Data Lab and contributors, BSD-3-Clause -->
<script type="module">{vega}</script>
</body>
</html>
"""


def html(chart: Chart) -> str:
    """The page of one chart; texts reach it escaped, or as JSON."""
    title = chart.description.partition(". ")[0]
    return PAGE.format(
        policy=POLICY, title=escape(title), description=escape(chart.description), spec=text_of(chart.spec),
        vega=bundle(),
    )  # fmt: skip


@cache
def bundle() -> str:
    """Vega, Vega-Lite of the version that the charts are written for, and the script that embeds them.

    Bundling takes two seconds, so the result is kept beside the compiled code of this module where possible.
    """
    import vl_convert

    made_of = sha256(f"{metadata.version('vl-convert-python')} {version()} {VEGA}".encode())
    kept = Path(cache_from_source(__file__)).with_name(f"vega-{made_of[:16]}.js")
    with suppress(OSError, UnicodeError):
        return kept.read_text(encoding="utf-8")
    script: str = vl_convert.javascript_bundle(VEGA, vl_version=version()).replace("</script", "<\\/script")
    with suppress(OSError):
        write_atomic(kept, script)
    return script


def text_of(data: Any) -> str:
    """JSON of tidy data that can stand inside a script element, whatever texts are in it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, written in ESCAPED.items():
        text = text.replace(sign, written)
    return text.encode("utf-8", "replace").decode()
