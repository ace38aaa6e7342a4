"""Drawings from computed places: lines, boxes, arrows and words on a sheet, as one Altair chart.

Places are in pixels, x to the right and y downwards. From below to above lie grounds, lines, boxes, heads of arrows and
words. All of them come from data fields, so that a name is never read as anything but text.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mecheval.figures.style import chart_of, finish
from mecheval.store.bounds import printable

if TYPE_CHECKING:  # slow to import
    import altair as alt

Point = tuple[float, float]
Align = Literal["left", "center", "right"]

INK, QUIET, PALE, PAPER = "#1a1a1a", "#595959", "#c9ced6", "#ffffff"
"""Text, text of less weight, lines that are no information of their own, and what all of it stands on."""
SIZE = 11.0
"""Of text, in pixels."""
SANS, MONO = 0.56, 0.61
"""Width of a character, in sizes: on average or a little more, and of the fixed-width font."""
HEAD = "M0,-1L0.55,1L-0.55,1Z"
"""An arrow's head that points upwards: twice as long as it is wide, so that one sees where it points at any angle."""
HEAD_LENGTH = 8.0


@dataclass
class Canvas:
    """A sheet, and what is on it so far; every shape says `what` it stands for, for those who read the data."""

    width: float
    height: float
    lines: list[dict[str, Any]] = field(default_factory=list)  # one row a corner
    boxes: dict[tuple[bool, float], list[dict[str, Any]]] = field(default_factory=dict)  # on top?, radius of corners
    heads: list[dict[str, Any]] = field(default_factory=list)
    words: dict[tuple[Align, bool, bool], list[dict[str, Any]]] = field(default_factory=dict)  # by how they are set
    _strokes: int = 0

    def line(self, points: Sequence[Point], colour: str = PALE, width: float = 1.0, what: str = "line") -> None:
        """A line through these points."""
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
        self.boxes.setdefault((not ground, radius), []).append(
            corners | {"fill": fill, "edge": edge or fill, "what": what}
        )

    def text(
        self, x: float, y: float, text: str, *, align: Align = "left", colour: str = INK, size: float = SIZE,
        bold: bool = False, mono: bool = False, what: str = "text",
    ) -> None:  # fmt: skip
        """Words at the height y."""
        row = {"x": x, "y": y, "text": printable(text), "colour": colour, "size": size, "what": what}
        self.words.setdefault((align, bold, mono), []).append(row)

    def chart(self, title: str, notes: Sequence[str], description: str) -> alt.VConcatChart:
        """The sheet as a chart, with its title, notes below that, and words for those who do not see it."""
        import altair as alt

        def on(rows: list[dict[str, Any]]) -> alt.Chart:
            across = alt.Scale(domain=[0, self.width], nice=False, zero=False)
            down = alt.Scale(domain=[0, self.height], nice=False, zero=False, reverse=True)
            return chart_of(rows).encode(x=alt.X("x:Q", scale=across, axis=None), y=alt.Y("y:Q", scale=down, axis=None))

        def own(channel: type[Any], name: str) -> Any:
            return channel(f"{name}:N" if name in ("colour", "fill", "edge") else f"{name}:Q", scale=None, legend=None)

        def box(key: tuple[bool, float]) -> alt.Chart:
            marks = on(self.boxes[key]).mark_rect(aria=False, cornerRadius=key[1], strokeWidth=1)
            drawn: alt.Chart = marks.encode(
                x2="x2:Q", y2="y2:Q", fill=own(alt.Fill, "fill"), stroke=own(alt.Stroke, "edge")
            )
            return drawn

        layers = [box(key) for key in self.boxes if not key[0]]
        if self.lines:
            lines = on(self.lines).mark_line(aria=False, strokeCap="round", strokeJoin="round")
            layers.append(lines.encode(
                order="order:Q", detail="stroke:N", color=own(alt.Color, "colour"),
                strokeWidth=own(alt.StrokeWidth, "width"),
            ))  # fmt: skip
        layers += [box(key) for key in self.boxes if key[0]]
        if self.heads:
            heads = on(self.heads).mark_point(aria=False, shape=HEAD, filled=True, opacity=1)
            turn = alt.Angle("turn:Q", scale=None)
            layers.append(heads.encode(angle=turn, size=own(alt.Size, "area"), color=own(alt.Color, "colour")))
        for (align, bold, mono), rows in self.words.items():
            words = on(rows).mark_text(
                aria=False, align=align, baseline="middle", fontWeight="bold" if bold else "normal",
                font="monospace" if mono else "sans-serif",
            )  # fmt: skip
            layers.append(words.encode(text="text:N", size=own(alt.Size, "size"), color=own(alt.Color, "colour")))
        sheet = alt.vconcat(alt.LayerChart(layer=layers, width=self.width, height=self.height))
        return finish(sheet, printable(title), [printable(note) for note in notes], self.width, printable(description))


def cut(text: str, signs: int) -> str:
    """At most so many characters."""
    return text if len(text) <= signs else text[: signs - 1] + "…"


def breadth(text: str, size: float = SIZE, sign: float = SANS) -> float:
    """Pixels that a text takes, about: fonts differ, and wide signs take two places."""
    return size * sign * sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)
