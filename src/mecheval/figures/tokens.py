"""A document as a row of tokens on a canvas, coloured by role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mecheval.figures.canvas import INK, PALE, PAPER, QUIET, Canvas, breadth, cut

COLOURS = {
    "key": "#ffd166", "value": "#9bd8a8", "next_key": "#a5dfee", "divider": "#dcdcdc", "query": "#efb9e6",
    "answer": "#a9c8ff",
}  # fmt: skip
"""Colour of a role, pale enough for black text; where a position has several, the first of these counts."""
PLAIN = "#f4f4f4"
HEIGHT = 22.0
PADDING, GAP = 10.0, 4.0
"""Pixels beside a symbol in its box, and between boxes."""
NARROWEST = 26.0
LONGEST = 12
"""Characters of a symbol; the rest is cut off."""
LABEL, LEADING = 10.0, 13.0
"""Size of the names of roles, and the height of a line of them."""


def pitch(symbols: Sequence[str]) -> float:
    """Pixels from one token to the next, the same for a whole row."""
    return max(NARROWEST, max(breadth(cut(each, LONGEST)) for each in symbols) + PADDING) + GAP


def fill(position: int, roles: Mapping[str, Sequence[int]]) -> str:
    """The colour of a position."""
    return next((colour for role, colour in COLOURS.items() if position in roles.get(role, ())), PLAIN)


def token(
    canvas: Canvas, x: float, y: float, width: float, symbol: str, colour: str, edge: str = PALE, what: str = "token"
) -> None:
    """One token in its box."""
    canvas.box(x, y, width, HEIGHT, colour, edge, what=what)
    canvas.text(x, y, cut(symbol, LONGEST), align="center", what=what)


def gap(canvas: Canvas, x: float, y: float) -> None:
    """In place of tokens that are left out."""
    canvas.box(x, y, 1, HEIGHT, PAPER)
    canvas.text(x, y, "…", align="center", colour=QUIET, what="gap")


def label_roles(canvas: Canvas, places: Mapping[str, float], y: float) -> dict[str, float]:
    """Names of roles below their tokens, from the height y down; the height at which each one's name ends.

    `places`: role -> x. Names that would touch stand on different lines, with a thin line up to their token.
    """
    ends: list[float] = []  # x at which the last name of each line ends
    seen: set[float] = set()  # a token's second name stands below its first
    bottoms: dict[str, float] = {}
    for role, x in sorted(places.items(), key=lambda item: item[1]):
        half = breadth(role, LABEL) / 2
        row = next((row for row, end in enumerate(ends) if x - half > end), len(ends))
        ends[row:] = [x + half + GAP, *ends[row + 1 :]]
        middle = y + (row + 0.5) * LEADING
        if row and x not in seen:
            canvas.line([(x, y), (x, middle - LEADING / 2 + 1)], what="label")
        canvas.text(x, middle, role, align="center", size=LABEL, colour=INK, what="label")
        seen.add(x)
        bottoms[role] = middle + LEADING / 2
    return bottoms
