"""One document under interventions: what a model reads, where it is patched, and what it then answers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures import canvas as sheet
from mecheval.figures.canvas import INK, PALE, PAPER, QUIET, Canvas, breadth, cut
from mecheval.figures.heatmap import label
from mecheval.figures.vegalite import RAMP, Chart
from mecheval.types import spoken

if TYPE_CHECKING:  # it needs torch
    from mecheval.intervene.explain import Answers, Explanation

ROOM = 14
"""Largest number of tokens in a row; of a longer document, only the surroundings of the roles are shown."""
BAND, LINE, SPACE = 15.0, 15.0, 26.0
"""Height of a layer, height of an answer, and space between two rows, in pixels."""
BAR = 90.0
"""Width in pixels of the bar of a likelihood of 1."""
CLEAN, WRONG = RAMP[7], "#b3261e"
"""Colours of what comes from the clean document, and of the symbol that replaces its key."""
READS = "The model reads a row of tokens and says what follows. The corrupted document has another {key}."
PATCH = "Dot: the clean activation ({site}) is patched in here, and all that follows is recomputed."


@dataclass(frozen=True)
class Row:
    """A document as the model reads it, with its answers."""

    name: str
    symbols: Sequence[str]
    said: Answers
    place: int | None = None  # position of the patch


def example_figure(document: Mapping[str, Any], explained: Explanation, site: str, n_layers: int, title: str) -> Chart:
    """A row for the clean and the corrupted document, and one for each role at which `site` was patched.

    `document`: `symbols` and `roles` (name -> position, or a list) of the clean document, and `predict_at`, as
    `mecheval explain --json` prints them. `explained`: what `explain` found about it. Layers lie above the tokens, the
    first one lowest.
    """
    patched = [each for each in explained.patched if each.site == site and each.position is not None]
    if not patched:
        there = ", ".join(dict.fromkeys(each.site for each in explained.patched)) or "none"
        raise UserError(f"example: nothing was patched at site {site!r}. Sites: {there}.")
    read = list(document["symbols"][: document["predict_at"][0] + 1])
    places = {role: [at] if isinstance(at, int) else list(at) for role, at in document["roles"].items()}
    key = places[explained.role]
    corrupted = list(read)
    corrupted[key[0] : key[-1] + 1] = explained.substitute.split(" ") if len(key) > 1 else [explained.substitute]
    rows = [Row("clean", read, explained.clean), Row("corrupted", corrupted, explained.corrupted)]
    rows += [Row(f"patched at {each.role}", corrupted, each.answers, each.position) for each in patched]
    roles = {role: at for role, at in places.items() if role != "bos" and at[-1] < len(read)}
    marked = {*itertools.chain(*roles.values()), *(each.position for each in patched if each.position is not None)}
    shown = visible(len(read), marked)
    at = patched[0].site  # the dot of a patch lies below, inside or above its layer
    level = n_layers / 2 if at.block is None else at.block + {"input": 0.0, "output": 1.0}.get(at.part, 0.5)
    canvas = _draw(rows, shown, roles, level, n_layers, key)
    return canvas.chart(
        title,
        [READS.format(key=spoken(explained.role)), PATCH.format(site=site)],
        describe(rows, site, explained, title),
    )


def visible(length: int, marked: set[int]) -> list[int | None]:
    """Positions to show, in order, with None for a gap: all of them, or the marked ones and those near them."""
    near = sorted(range(length), key=lambda i: (min(abs(i - mark) for mark in marked), i))
    chosen = sorted(near[: max(ROOM, len(marked))])
    shown: list[int | None] = [] if chosen[0] == 0 else [None]
    for i, following in zip(chosen, [*chosen[1:], length], strict=True):
        shown += [i] if following == i + 1 else [i, None]
    return shown


def _draw(
    rows: Sequence[Row], shown: Sequence[int | None], roles: Mapping[str, Sequence[int]], level: float, n_layers: int,
    key: Sequence[int],
) -> Canvas:  # fmt: skip
    """Draw the rows one below the other; patches are at this level, counted in layers from the tokens."""
    step = sheet.pitch([symbol for row in rows for symbol in row.symbols])
    left = max(breadth(row.name, 12) for row in rows) + 16
    symbols = [cut(each.symbol, sheet.LONGEST) for row in rows for each in row.said]
    bars = left + step * len(shown) + 34 + max(map(breadth, symbols))
    canvas = Canvas(bars + BAR + 60, 0)
    place = {i: left + step * (column + 0.5) for column, i in enumerate(shown) if i is not None}
    gaps = [left + step * (column + 0.5) for column, i in enumerate(shown) if i is None]
    canvas.text(bars, 8, "likeliest answers", colour=QUIET)
    top = 20.0
    for row in rows:
        bands = 0 if row.place is None else n_layers
        height = max(sheet.HEIGHT + bands * (BAND + 3) + 4, LINE * len(row.said))
        middle = top + height - sheet.HEIGHT / 2 if bands else top + height / 2  # of the tokens
        canvas.text(0, middle, row.name, bold=True, size=12, what="row")
        for x in gaps:
            canvas.box(x, middle, 1, sheet.HEIGHT, PAPER)
            canvas.text(x, middle, "…", align="center", colour=QUIET, what="gap")
        for i, x in place.items():
            wrong = i in key and row is not rows[0]
            colour = sheet.role_colour(i, roles)
            canvas.token(x, middle, step - sheet.GAP, row.symbols[i], colour, WRONG if wrong else PALE)
            if wrong:
                canvas.line([(x - 9, middle + 14), (x + 9, middle + 14)], WRONG, 2, what="substitute")
        if row.place is not None:
            floor, right = middle - sheet.HEIGHT / 2 - 4, left + step * len(shown) - sheet.GAP
            canvas.layers(n_layers, left, right, floor, BAND + 3, BAND - 3)
            canvas.box(place[row.place], floor - level * (BAND + 3), 13, 13, CLEAN, PAPER, radius=6.5, what="patch")
        _draw_answers(canvas, row.said, bars, top + (height - LINE * len(row.said)) / 2)
        top += height + SPACE
        if row is rows[0]:
            names = {role: place[at[0]] for role, at in roles.items()}
            top = max(top, *(bottom + 8 for bottom in canvas.label_roles(names, middle + 13).values()))
    canvas.height = top - SPACE + 4
    return canvas


def _draw_answers(canvas: Canvas, said: Answers, x: float, top: float) -> None:
    """Draw a bar for each answer, the right one in colour and bold."""
    for i, each in enumerate(said):
        y = top + (i + 0.5) * LINE
        colour = INK if each.right else QUIET
        canvas.text(x - 6, y, cut(each.symbol, sheet.LONGEST), align="right", colour=colour, bold=each.right)
        length = canvas.bar(x, y, BAR * each.p, 10, CLEAN if each.right else PALE, "likelihood")
        canvas.text(x + length + 5, y, label(each.p), colour=colour, bold=each.right, what="likelihood")
        if each.right:
            canvas.text(x + length + 32, y, "✓", colour=colour, what="right")


def describe(rows: Sequence[Row], site: str, explained: Explanation, title: str) -> str:
    """The figure in words, for readers who cannot see it."""
    right = next(each.symbol for each in explained.clean if each.right)
    said = [f"{row.name}: {next(each.p for each in row.said if each.right):.2f}" for row in rows]
    return (
        f"{title}. The model reads {' '.join(rows[0].symbols)}; in the corrupted document {explained.substitute} "
        f"stands in place of the {spoken(explained.role)} {explained.key}. Patches are of {site}. "
        f"Likelihood of the right answer {right}: {', '.join(said)}."
    )
