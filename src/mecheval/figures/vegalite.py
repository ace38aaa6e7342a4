"""Charts as plain Vega-Lite: their look, functions that build a specification, and `Chart`, which renders it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import import_module, metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from mecheval.errors import UserError
from mecheval.files import sha256, write_atomic

if TYPE_CHECKING:  # slow to import
    import pandas as pd

RAMP = (
    "#eff6fe", "#cbe2fc", "#a6cdfa", "#7fb8f8", "#55a3f6", "#3b8de2", "#2378ca", "#1a65ad", "#13528e", "#0d4071",
    "#072e55",
)  # fmt: skip
"""Colours from 0 to 1: one hue whose lightness falls evenly (in OKLab), for any colour vision."""
WHITE_FROM = 6
"""Step of the ramp from which text on it is white, before it black: contrast is at least 4.5 everywhere."""
GREY, FAINT = "#5c6670", "#dde2e7"
"""Colours of secondary text, with a contrast above 4.5 on white, and of secondary lines."""

HUES = {
    "mamba": "#d55e00", "hyena": "#cc79a7", "h3": "#e69f00", "delta_net": "#009e73", "based": "#0072b2",
    "base_conv": "#56b4e9", "attention": "#000000",
}  # fmt: skip
"""The paper's mixers, each in a colour that differs from the others for any colour vision."""
OTHER_HUES = ("#8a6d3b", "#7b4fa3", "#7a7a7a")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
DASHES = ((1, 0), (6, 2), (2, 2), (8, 2, 2, 2), (4, 4), (1, 3), (10, 3), (6, 2, 2, 2, 2, 2))
"""Shapes of points and dashes of lines, in the order of the mixers, for readers who do not see colours."""
LETTER = 6.6
"""Width in pixels of one letter of a bold title of 11 points, rounded up, for breaking lines."""


def shades(n: int) -> list[str]:
    """Colours for n values in order, n at most 10: from light to dark, and far apart."""
    first, last = (2, 6) if n <= 2 else (1, 7) if n == 3 else (1, len(RAMP) - 1)
    return [RAMP[first + round(index * (last - first) / max(n - 1, 1))] for index in range(n)]


def mixer_marks(mixers: Sequence[str]) -> Mapping[str, tuple[str, str, list[int]]]:
    """The colour, shape and dash of each mixer; a built-in mixer has the same in every chart."""
    places = {mixer: place for place, mixer in enumerate(dict.fromkeys((*HUES, *mixers)))}
    marks = {}
    for mixer in mixers:
        place = places[mixer]
        hue = HUES.get(mixer) or OTHER_HUES[(place - len(HUES)) % len(OTHER_HUES)]
        marks[mixer] = hue, SHAPES[place % len(SHAPES)], list(DASHES[place % len(DASHES)])
    return marks


def wrapped(text: str, pixels: float, letter: float = LETTER) -> list[str]:
    """The text in lines of at most `pixels` pixels; a longer word is not broken."""
    return textwrap.wrap(text, max(8, int(pixels / letter)), break_long_words=False, break_on_hyphens=False) or [""]


Spec = dict[str, Any]
"""A specification, or a part of one: plain data, ready for JSON."""
Row = Mapping[str, Any]

VERSION = "6.4"
"""The version of Vega-Lite that the specifications are written for."""
FONTS = "Arial, Liberation Sans, Helvetica, sans-serif"
"""Fonts of the same widths, of which most machines have one."""
SCALE = 2
"""Pixels of a PNG per pixel of the chart, so that it is sharp on paper and on dense screens."""
TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}
PERCENT = {"values": [0, 0.5, 1], "labelExpr": "100 * datum.value", "grid": True}
"""An axis of shares, labelled in percent."""
FILL = {"domain": [step / (len(RAMP) - 1) for step in range(len(RAMP))], "range": list(RAMP), "clamp": True}
"""The scale from numbers to the ramp; numbers below 0 and above 1 have the colours of its ends."""
GAP = 14
"""Usual distance of panels, in pixels."""
NARROWEST = 320
"""Smallest width in pixels that a title may use, however narrow its chart is."""
PARTS = ("vconcat", "hconcat", "layer")
VEGA = "window.vegaEmbed = vegaEmbed; window.dispatchEvent(new Event('vega'));"
"""The end of the script: it gives Vega to the page and announces that it is ready."""
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


@dataclass(frozen=True, eq=False)
class Chart:
    """A finished chart; notebooks show it, and `save` writes it to a file."""

    spec: Spec

    @property
    def description(self) -> str:
        """The chart in words, for readers who cannot see it."""
        return str(self.spec["description"])

    def to_dict(self) -> Spec:
        return self.spec

    def to_json(self, indent: int | None = 1) -> str:
        return json.dumps(self.spec, indent=indent, ensure_ascii=False, allow_nan=False)

    def svg(self) -> str:
        """The chart as SVG, with its description as the label of the picture.

        The renderer measures text in a font as wide as Arial: in a wider one, texts at the edges would be clipped.
        """
        drawn: str = renderer().vegalite_to_svg(self.to_json(None), vl_version=version())
        drawn = drawn.replace('font-family="sans-serif"', f'font-family="{FONTS}"')
        return drawn.replace("<svg ", f"<svg aria-label={quoteattr(self.description)} ", 1)

    def png(self, scale: float = SCALE) -> bytes:
        """The chart as PNG, `scale` times its size."""
        drawn: bytes = renderer().vegalite_to_png(self.to_json(None), vl_version=version(), scale=scale)
        return drawn

    def pdf(self) -> bytes:
        """The chart as PDF, with text as text, for papers."""
        drawn: bytes = renderer().vegalite_to_pdf(self.to_json(None), vl_version=version())
        return drawn

    def save(self, path: str | Path) -> None:
        """Write the chart as .png, .svg, .pdf, .html (one page with tooltips) or .json (Vega-Lite), atomically."""
        from mecheval.figures import save

        save(self, path)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The forms in which a notebook can show the chart."""
        kind = f"application/vnd.vegalite.v{VERSION.partition('.')[0]}+json"
        return {kind: self.spec, "image/png": self.png(), "text/plain": self.description}


def check_renderer() -> None:
    """Raise an error if vl-convert, which only saved figures and pages need, is missing; call it before computing."""
    if find_spec("vl_convert") is None:
        raise UserError("figures and reports need vl-convert; `pip install vl-convert-python`.")


def renderer() -> ModuleType:
    """The package vl-convert, which is large, and loaded where something is drawn."""
    check_renderer()
    return import_module("vl_convert")


@cache
def version() -> str | None:
    """`VERSION` where the renderer knows it, or else None, which stands for its newest."""
    return VERSION if VERSION in renderer().get_vegalite_versions() else None


def field(shorthand: str, **options: Any) -> Spec:
    """An encoding by a field of the rows: `value:Q` is quantitative, `mixer:N` nominal, `d_model:O` ordinal."""
    name, _, kind = shorthand.rpartition(":")
    return {"field": name, "type": TYPES[kind], **options}


def rows_of(frame: pd.DataFrame) -> list[Spec]:
    """The rows of a table as plain data, NaN as null."""
    found: list[Spec] = json.loads(frame.to_json(orient="records"))
    return found


def tooltips(names: Iterable[str], titles: Mapping[str, str] = {}) -> list[Spec]:
    """Fields that a tooltip shows as text, under their own names or these titles."""
    return [field(f"{name}:N", title=titles.get(name, name)) for name in names]


def marks(name: str, texts: Sequence[Any], options: Mapping[str, Any] = {}, /, **looks: Iterable[Any]) -> Spec:
    """Channels, such as `color` and `shape`, that distinguish the texts in a field: each has a look for every text."""
    return {
        channel: field(f"{name}:N", sort=texts, scale={"domain": texts, "range": list(values)}, **options)
        for channel, values in looks.items()
    }


def ink(name: str) -> Spec:
    """The colour of text on a cell that field `name` colours."""
    dark = f"datum.{name} >= {WHITE_FROM / (len(RAMP) - 1)}"
    return {"condition": {"test": dark, "value": "white"}, "value": "black"}


def layer(
    mark: str, encoding: Spec, *, rows: Sequence[Row] | None = None, where: str = "", flatten: Sequence[str] = (),
    **look: Any,
) -> Spec:  # fmt: skip
    """Marks of one kind with the properties `look`.

    They show `rows`, or else those of their panel: the ones for which the expression `where` is true. Fields that hold
    lists are `flatten`ed into a row for each element.
    """
    transform = ([{"flatten": list(flatten)}] if flatten else []) + ([{"filter": where}] if where else [])
    data: Spec = {} if rows is None else {"data": {"values": rows}}
    steps: Spec = {"transform": transform} if transform else {}
    return {**data, **steps, "mark": {"type": mark, **look}, "encoding": encoding}


def panel(layers: Sequence[Spec], width: Any, height: Any, rows: Sequence[Row] | None = None, **rest: Any) -> Spec:
    """Layers on top of each other; `rows` are for those that have none of their own. `rest`: title, encoding."""
    data: Spec = {} if rows is None else {"data": {"values": rows}}
    return {**data, "layer": list(layers), "width": width, "height": height, **rest}


def heading(text: str | Sequence[str], pixels: float = 0) -> Spec:
    """The title of a panel: lines, or a text that is broken at the width of the panel and half a gap on each side."""
    lines = wrapped(text, pixels + GAP) if isinstance(text, str) else list(text)
    return {"text": lines, "fontSize": 11, "anchor": "middle", "offset": 6}


def beside(panels: Sequence[Spec], gap: float) -> Spec:
    """Panels side by side at equal distances, whatever their axes say, so that lines of panels form columns.

    Only the first shows the names of its rows; the others have them unseen, so that all titles stand at one height.
    """
    return {"hconcat": list(panels), "spacing": gap, "bounds": "flush"}


def below(parts: Sequence[Spec], gap: float) -> Spec:
    """Parts of a chart below each other."""
    return {"vconcat": list(parts), "spacing": gap}


def finish(spec: Spec, title: str, notes: Sequence[str], pixels: float, description: str) -> Chart:
    """The chart of about this width with its title, notes below that, its description and the look of all charts."""
    pixels = max(pixels, NARROWEST)
    lines = [line for note in notes for line in wrapped(note, pixels, 5.6)]
    quiet = {"titleFontSize": 11, "titleFontWeight": "normal", "titleColor": GREY, "labelFontSize": 11, "labelLimit": 0}
    return Chart({
        "$schema": f"https://vega.github.io/schema/vega-lite/v{VERSION.partition('.')[0]}.json",
        "description": description,
        "title": {
            "text": wrapped(title, pixels, 7.5), **({"subtitle": lines} if lines else {}), "anchor": "start",
            "offset": 14, "fontSize": 13, "subtitleFontSize": 11, "subtitleColor": GREY, "subtitlePadding": 5,
            "subtitleLineHeight": 14,
        },
        **spec,
        "datasets": _named_rows(spec),
        "config": {
            "axis": {"domain": False, "ticks": False, "grid": False, "labelPadding": 5, "gridColor": FAINT, **quiet},
            "legend": {"titleLimit": 0, **quiet},
            "view": {"stroke": None},
        },
    })  # fmt: skip


def views(spec: Spec) -> Iterator[Spec]:
    """Every part of a specification that has rows, at any depth."""
    if "data" in spec:
        yield spec
    for part in (part for name in PARTS for part in spec.get(name, ())):
        yield from views(part)


def _named_rows(spec: Spec) -> dict[str, list[Row]]:
    """The rows of all views by name, each written once however many views show them; views keep the names."""
    names: dict[int, str] = {}
    datasets: dict[str, list[Row]] = {}
    for view in views(spec):
        rows = view["data"]["values"]
        name = names.setdefault(id(rows), f"rows{len(names)}")
        datasets[name] = list(rows)
        view["data"] = {"name": name}
    return datasets


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
    made_of = sha256(f"{version()} {metadata.version('vl-convert-python')} {VEGA}".encode())
    kept = Path(cache_from_source(__file__)).with_name(f"vega-{made_of[:16]}.js")
    with suppress(OSError, UnicodeError):
        return kept.read_text(encoding="utf-8")
    script: str = renderer().javascript_bundle(VEGA, vl_version=version()).replace("</script", "<\\/script")
    with suppress(OSError):
        write_atomic(kept, script)
    return script


def text_of(data: Any) -> str:
    """JSON of tidy data that can stand inside a script element, whatever texts are in it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, written in ESCAPED.items():
        text = text.replace(sign, written)
    return text.encode("utf-8", "replace").decode()
