"""What all charts share: colours, marks of the mixers, text on colours, titles, and the look of axes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mecheval.studies.axes import MISSING as MISSING

if TYPE_CHECKING:  # slow to import
    import altair as alt

Joined = TypeVar("Joined", "alt.HConcatChart", "alt.VConcatChart")

RAMP = (
    "#eff6fe", "#cbe2fc", "#a6cdfa", "#7fb8f8", "#55a3f6", "#3b8de2", "#2378ca", "#1a65ad", "#13528e", "#0d4071",
    "#072e55",
)  # fmt: skip
"""From 0 to 1: one hue, lightness falling by the same amount at every step (OKLab), whatever colours one sees."""
WHITE_FROM = 6
"""Step of the ramp from which text on it is white, before it black: contrast is at least 4.5 everywhere."""
GREY, FAINT = "#5c6670", "#dde2e7"
"""Text that is not the point, with a contrast above 4.5 on white; and lines that are not."""

HUES = {
    "mamba": "#d55e00", "hyena": "#cc79a7", "h3": "#e69f00", "delta_net": "#009e73", "based": "#0072b2",
    "base_conv": "#56b4e9", "attention": "#000000",
}  # fmt: skip
"""The mixers from top to bottom, each in a colour that those of any colour vision can tell from the others."""
OTHER_HUES = ("#8a6d3b", "#7b4fa3", "#7a7a7a")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
DASHES = ((1, 0), (6, 2), (2, 2), (8, 2, 2, 2), (4, 4), (1, 3), (10, 3), (6, 2, 2, 2, 2, 2))
"""What tells mixers apart where colour does not: marks and dashes, in the order of the mixers."""
LETTER = 6.6
"""Pixels of one letter of a title at 11 points, bold, rounded up; for breaking lines."""


def fill() -> alt.Scale:
    """The scale from numbers to the ramp; what is below 0 or above 1 has the colour of the end."""
    import altair as alt

    return alt.Scale(domain=[step / (len(RAMP) - 1) for step in range(len(RAMP))], range=list(RAMP), clamp=True)


def ink(field: str) -> Any:
    """Colour of text over a cell that `field` coloured."""
    import altair as alt

    white = alt.datum[field] >= WHITE_FROM / (len(RAMP) - 1)
    return alt.condition(white, alt.value("white"), alt.value("black"))


def shades(n: int) -> list[str]:
    """Colours for n values in order, n at most 10: from light to dark, and far apart."""
    first, last = (2, 6) if n <= 2 else (1, 7) if n == 3 else (1, len(RAMP) - 1)
    return [RAMP[first + round(index * (last - first) / max(n - 1, 1))] for index in range(n)]


def mixer_marks(mixers: Sequence[str]) -> Mapping[str, tuple[str, str, list[int]]]:
    """Mixer -> its colour, shape and dash; a known mixer has the same in every chart."""
    others = [mixer for mixer in mixers if mixer not in HUES]
    marks = {}
    for mixer in mixers:
        place = list(HUES).index(mixer) if mixer in HUES else len(HUES) + others.index(mixer)
        hue = HUES.get(mixer) or OTHER_HUES[(place - len(HUES)) % len(OTHER_HUES)]
        marks[mixer] = hue, SHAPES[place % len(SHAPES)], list(DASHES[place % len(DASHES)])
    return marks


def chart_of(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart of plain data."""
    import altair as alt

    return alt.Chart(alt.InlineData(values=tuple(rows)))  # every layer and panel would copy a list deeply, twice


def wrapped(text: str, pixels: float, letter: float = LETTER) -> list[str]:
    """The text in lines no longer than this; a long word stays whole."""
    return textwrap.wrap(text, max(8, int(pixels / letter)), break_long_words=False, break_on_hyphens=False) or [""]


def finish(chart: Joined, title: str, notes: Sequence[str], pixels: float, description: str) -> Joined:
    """The chart of about this width with its title, notes below that, words for those who do not see it, and looks."""
    import altair as alt

    pixels = max(pixels, 320)
    lines = [line for note in notes for line in wrapped(note, pixels, 5.6)]
    heading = alt.TitleParams(
        wrapped(title, pixels, 7.5), subtitle=lines or alt.Undefined, anchor="start", offset=14, fontSize=13,
        subtitleFontSize=11, subtitleColor=GREY, subtitlePadding=5, subtitleLineHeight=14,
    )  # fmt: skip
    quiet: dict[str, Any] = {"titleFontSize": 11, "titleFontWeight": "normal", "titleColor": GREY, "labelFontSize": 11}
    axis = alt.AxisConfig(domain=False, ticks=False, grid=False, labelPadding=5, labelLimit=0, gridColor=FAINT, **quiet)
    legend = alt.LegendConfig(titleLimit=0, labelLimit=0, **quiet)
    chart.title, chart.description = heading, description  # each method that sets them would copy the whole chart
    chart.config = alt.Config(axis=axis, legend=legend, view=alt.ViewConfig(stroke=None))
    return chart
