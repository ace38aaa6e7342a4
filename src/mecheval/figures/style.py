"""The look of all charts: colours, marks of the mixers, and text in lines."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

RAMP = (
    "#eff6fe", "#cbe2fc", "#a6cdfa", "#7fb8f8", "#55a3f6", "#3b8de2", "#2378ca", "#1a65ad", "#13528e", "#0d4071",
    "#072e55",
)  # fmt: skip
"""From 0 to 1: one hue whose lightness falls by the same amount at every step (OKLab), for any colour vision."""
WHITE_FROM = 6
"""Step of the ramp from which text on it is white, before it black: contrast is at least 4.5 everywhere."""
GREY, FAINT = "#5c6670", "#dde2e7"
"""Secondary text, with a contrast above 4.5 on white, and secondary lines."""

HUES = {
    "mamba": "#d55e00", "hyena": "#cc79a7", "h3": "#e69f00", "delta_net": "#009e73", "based": "#0072b2",
    "base_conv": "#56b4e9", "attention": "#000000",
}  # fmt: skip
"""The built-in mixers from top to bottom, each in a colour that differs from the others for any colour vision."""
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
    """The text in lines of at most so many pixels; a longer word stays whole."""
    return textwrap.wrap(text, max(8, int(pixels / letter)), break_long_words=False, break_on_hyphens=False) or [""]
