"""Drawings made of lines, boxes, arrows, words and rows of tokens at computed places, as one chart.

Places are in pixels, x to the right and y downwards. From bottom to top, there are grounds, lines, boxes, arrow heads
and words. All of them come from data fields, so that a name is never interpreted as anything but text.
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mecheval.figures.vegalite import Chart, Spec, below, finish, layer, panel
from mecheval.figures.vegalite import field as by
from mecheval.store.bounds import printable

Point = tuple[float, float]
Align = Literal["left", "center", "right"]

INK, QUIET, PALE, PAPER, BAND = "#1a1a1a", "#595959", "#c9ced6", "#ffffff", "#eef0f3"
"""Colours of text, secondary text, secondary lines, the background, and the layers of a model."""
SIZE = 11.0
"""Text size in pixels."""
SANS, MONO = 0.56, 0.61
"""Width of a character relative to the text size: a generous average, and that of the fixed-width font."""
HEAD = "M0,-1L0.55,1L-0.55,1Z"
"""The head of an arrow that points upwards: narrow, so that its direction is seen at any angle."""
HEAD_LENGTH = 8.0
"""Length in pixels of the head of an arrow, to which its line adds."""

COLOURS = {
    "key": "#ffd166", "value": "#9bd8a8", "next_key": "#a5dfee", "divider": "#dcdcdc", "query": "#efb9e6",
    "answer": "#a9c8ff",
}  # fmt: skip
"""Colour of a role, pale enough for black text; where a position has several roles, the first of these counts."""
OTHERS = ("#ffd166", "#9bd8a8", "#efb9e6", "#a5dfee", "#dcdcdc")
"""Colours of roles with other names, in order."""
PLAIN = "#f4f4f4"
"""Colour of a token without a role."""
HEIGHT = 22.0
"""Height of a token in pixels."""
PADDING, GAP, NARROWEST = 10.0, 4.0, 26.0
"""Pixels beside a symbol in its box and between boxes, and the width of the narrowest box."""
LONGEST = 12
"""Largest number of characters of a symbol that are shown."""
LABEL, LEADING = 10.0, 13.0
"""Text size of the names of roles, and the height of a line of them, in pixels."""


@dataclass
class Canvas:
    """A sheet and its content so far; every shape records `what` it represents, for readers of the data."""

    width: float
    height: float
    lines: list[dict[str, Any]] = field(default_factory=list)  # one row per corner
    boxes: dict[tuple[bool, float], list[dict[str, Any]]] = field(default_factory=dict)  # by (above lines, radius)
    heads: list[dict[str, Any]] = field(default_factory=list)
    words: dict[tuple[Align, bool, bool], list[dict[str, Any]]] = field(default_factory=dict)  # by how they are set
    _strokes: int = 0

    def line(self, points: Sequence[Point], colour: str = PALE, width: float = 1.0, what: str = "line") -> None:
        rows = [{"x": x, "y": y, "order": i} for i, (x, y) in enumerate(points)]
        self.lines += [row | {"stroke": self._strokes, "colour": colour, "width": width, "what": what} for row in rows]
        self._strokes += 1

    def arrow(self, points: Sequence[Point], colour: str, width: float = 1.5, what: str = "arrow") -> None:
        """A line whose last point is the tip of a head."""
        (x0, y0), (x1, y1) = points[-2:]
        length = math.hypot(x1 - x0, y1 - y0)
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        size = HEAD_LENGTH + 1.5 * width
        self.line([*points[:-1], (x1 - dx * size * 0.8, y1 - dy * size * 0.8)], colour, width, what)
        turn = math.degrees(math.atan2(dx, -dy))
        head = {"x": x1 - dx * size / 2, "y": y1 - dy * size / 2, "turn": turn, "area": size**2}
        self.heads.append(head | {"colour": colour, "what": what})

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, edge: str | None = None, *,
        radius: float = 3, ground: bool = False, what: str = "box",
    ) -> None:  # fmt: skip
        """A box around the centre (x, y): a disc if the radius is half its height; a ground lies below all lines."""
        corners = {"x": x - width / 2, "x2": x + width / 2, "y": y - height / 2, "y2": y + height / 2}
        rows = self.boxes.setdefault((not ground, radius), [])
        rows.append(corners | {"fill": fill, "edge": edge or fill, "what": what})

    def bar(self, x: float, y: float, width: float, height: float, fill: str, what: str) -> float:
        """A bar from x to the right, at least a pixel long; returns its length."""
        width = max(1.0, width)
        self.box(x + width / 2, y, width, height, fill, radius=0, what=what)
        return width

    def text(
        self, x: float, y: float, text: str, *, align: Align = "left", colour: str = INK, size: float = SIZE,
        bold: bool = False, mono: bool = False, what: str = "text",
    ) -> None:  # fmt: skip
        row = {"x": x, "y": y, "text": printable(text), "colour": colour, "size": size, "what": what}
        self.words.setdefault((align, bold, mono), []).append(row)

    def token(
        self, x: float, y: float, width: float, symbol: str, colour: str, edge: str = PALE, what: str = "token"
    ) -> None:
        """One token of a document in its box."""
        self.box(x, y, width, HEIGHT, colour, edge, what=what)
        self.text(x, y, cut(symbol, LONGEST), align="center", what=what)

    def layers(self, n: int, left: float, right: float, floor: float, step: float, height: float) -> None:
        """The layers of a model as bands on the ground, the first one lowest, with their names to the left."""
        for i in range(n):
            y = floor - (i + 0.5) * step
            self.box((left + right) / 2, y, right - left, height, BAND, ground=True, what="layer")
            self.text(left - 6, y, f"layer {i}", align="right", size=10, colour=QUIET, what="layer")

    def label_roles(self, places: Mapping[str, float], y: float) -> dict[str, float]:
        """Write the names of roles below their tokens, from the height y down; returns where each name ends.

        `places`: role -> x. Names that would touch stand on different lines, with a thin line up to their token.
        """
        ends: list[float] = []  # x at which the last name of each line ends
        seen: set[float] = set()  # the second name of a token stands below its first
        bottoms: dict[str, float] = {}
        for role, x in sorted(places.items(), key=lambda item: item[1]):
            half = breadth(role, LABEL) / 2
            row = next((row for row, end in enumerate(ends) if x - half > end), len(ends))
            ends[row:] = [x + half + GAP, *ends[row + 1 :]]
            middle = y + (row + 0.5) * LEADING
            if row and x not in seen:
                self.line([(x, y), (x, middle - LEADING / 2 + 1)], what="label")
            self.text(x, middle, role, align="center", size=LABEL, what="label")
            seen.add(x)
            bottoms[role] = middle + LEADING / 2
        return bottoms

    def chart(self, title: str, notes: Sequence[str], description: str) -> Chart:
        """The sheet as a chart with its title, notes below that, and its description."""
        exact = {"nice": False, "zero": False}
        across, down = {"domain": [0, self.width], **exact}, {"domain": [0, self.height], **exact, "reverse": True}
        shared = {"x": by("x:Q", scale=across, axis=None), "y": by("y:Q", scale=down, axis=None)}
        grounds, boxes = ([self._boxes(key) for key in self.boxes if key[0] == above] for above in (False, True))
        corners = {**_given(color="colour:N", strokeWidth="width:Q"), "order": by("order:Q"), "detail": by("stroke:N")}
        lines = layer("line", corners, rows=self.lines, aria=False, strokeCap="round", strokeJoin="round")
        turned = {**_given(color="colour:N", size="area:Q"), "angle": by("turn:Q", scale=None)}
        heads = layer("point", turned, rows=self.heads, aria=False, shape=HEAD, filled=True, opacity=1)
        layers = [*grounds, *([lines] if self.lines else []), *boxes, *([heads] if self.heads else [])]
        for (align, bold, mono), rows in self.words.items():
            set_in = {"fontWeight": "bold" if bold else "normal", "font": "monospace" if mono else "sans-serif"}
            shown = {**_given(color="colour:N", size="size:Q"), "text": by("text:N")}
            layers.append(layer("text", shown, rows=rows, aria=False, align=align, baseline="middle", **set_in))
        sheet = below([panel(layers, self.width, self.height, encoding=shared)], 0)
        return finish(sheet, printable(title), list(map(printable, notes)), self.width, printable(description))

    def _boxes(self, key: tuple[bool, float]) -> Spec:
        ends = {"x2": {"field": "x2"}, "y2": {"field": "y2"}, **_given(fill="fill:N", stroke="edge:N")}
        return layer("rect", ends, rows=self.boxes[key], aria=False, cornerRadius=key[1], strokeWidth=1)


def _given(**channels: str) -> Spec:
    """Encodings whose fields hold colours and sizes as they are, without a scale."""
    return {channel: by(name, scale=None, legend=None) for channel, name in channels.items()}


def cut(text: str, signs: int) -> str:
    """The text, shortened to at most `signs` characters."""
    return text if len(text) <= signs else text[: signs - 1] + "…"


def breadth(text: str, size: float = SIZE, sign: float = SANS) -> float:
    """The approximate width of a text in pixels; fonts differ, and wide characters take two places."""
    return size * sign * sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def pitch(symbols: Sequence[str]) -> float:
    """The distance in pixels from one token to the next, the same for a whole row."""
    return max(NARROWEST, max(breadth(cut(each, LONGEST)) for each in symbols) + PADDING) + GAP


def role_colour(position: int, roles: Mapping[str, Sequence[int]]) -> str:
    """The colour of a position, by the positions of each role."""
    others = zip((role for role in roles if role not in COLOURS), itertools.cycle(OTHERS), strict=False)
    known = {**COLOURS, **dict(others), "bos": PLAIN}
    return next((colour for role, colour in known.items() if position in roles.get(role, ())), PLAIN)
