"""One document of associative treecall: the rules behind it, its derivation as a tree, and below that its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.figures import canvas as sheet
from mecheval.figures.canvas import INK, MONO, PALE, QUIET, Canvas, breadth, cut
from mecheval.figures.vegalite import RAMP, Chart
from mecheval.types import ROLES

if TYPE_CHECKING:  # slow to import
    from mecheval.tasks import ATR

FEWEST, MOST = 6, 16
"""Terminals of the document that is drawn by default: enough to be a tree, few enough to be read."""
LOOK = 1000
"""Number of documents that are searched for one of that size."""
LARGEST = 40
"""Largest number of terminals in a readable tree."""
MARK, EDGE = "#b3261e", "#8a8f98"
"""Colours of the edges that the query asks about, and of the others."""
LEVEL, LINE, NODE = 46.0, 16.0, 30.0
"""Height of a level of the tree, of a rule, and of a node with two names (nonterminal and head), in pixels."""
BAR, MARGIN = 36.0, 30.0
"""Width of the bar of a probability of 1, and space beside a column of rules, in pixels."""
TALLEST, WIDEST_RULE = 26, 64
"""Approximate number of rules in a column, and largest number of characters in a rule."""
HEAD = "[head]"
NOTES = (
    "Left: the rules of all nonterminals in this derivation, with probabilities; it uses those in bold.",
    "Right: each terminal above its token. A rule's head is the parent of all that the rule creates.",
    "Red: the way from the key to its value, which the query asks about.",
)


@dataclass(frozen=True)
class Derivation:
    """One document and the tree over its terminals; positions count from BOS."""

    number: int  # in the stream of documents
    symbols: tuple[str, ...]
    parents: tuple[int, ...]  # position of each terminal's parent, -1 at the root and in the frame
    rules: tuple[int, ...]  # number of the rule that each terminal heads, -1 at leaves and in the frame
    owners: tuple[str | None, ...]  # the nonterminal of that rule
    roles: dict[str, tuple[int, ...]]  # positions of each; several answers where several queries are asked

    @property
    def terminals(self) -> range:
        return range(1, self.roles["divider"][0])

    @property
    def edges(self) -> list[tuple[int, int]]:
        return [(i, self.parents[i]) for i in self.terminals if self.parents[i] >= 0]

    def ancestors(self, position: int) -> list[int]:
        """The position itself and those above it, up to the root."""
        above = [position]
        while self.parents[above[-1]] >= 0:
            above.append(self.parents[above[-1]])
        return above

    def asked(self) -> list[tuple[int, int]]:
        """The edges between key and value: one to a parent, two to a grandparent or a sibling, none to itself."""
        up, down = (self.ancestors(self.roles[role][0]) for role in ("key", "value"))
        return [(i, self.parents[i]) for i in (*up, *reversed(down)) if (i in up) != (i in down)]


def derivation_of(task: ATR, document: int | None = None, split: str = "train", seed: int = 0) -> Derivation:
    """The document of that number; by default the first of 6 to 16 terminals, or the one nearest to that."""
    if document is None:
        divider = task.corpus(LOOK, split, seed).roles[:, 0, ROLES.index("divider")]
        far = [max(FEWEST - n, n - MOST, 0) for n in (divider - 1).tolist()]
        document = far.index(min(far))
    elif document < 0:
        raise UserError(f"there is no document {document}; they count from 0.")
    corpus = task.corpus(1, split, seed, document)
    if corpus.parents is None or corpus.rules is None:
        raise UserError(f"documents of {task.name} have no tree to draw.")
    roles: dict[str, tuple[int, ...]] = {
        role: (int(place),) for role, place in zip(ROLES, corpus.roles[0, 0], strict=True)
    }
    roles["answer"] = tuple(int(place) + 1 for place in corpus.predict_at[0])
    symbols, rules = tuple(task.symbol(int(each)) for each in corpus.tokens), tuple(corpus.rules.tolist())
    names = [name for name, own in task.grammar.rules.items() for _ in own]
    owners = tuple(names[rule] if rule >= 0 else None for rule in rules)
    drawn = Derivation(document, symbols, tuple(corpus.parents.tolist()), rules, owners, roles)
    if len(drawn.terminals) > LARGEST:
        raise UserError(
            f"document {document} has {len(drawn.terminals)} terminals, and trees of more than {LARGEST} cannot be "
            "read; choose another document."
        )
    return drawn


def grammar_figure(task: ATR, document: int | None = None, split: str = "train", seed: int = 0) -> Chart:
    """Rules with their probabilities at the left, the tree at the right, each terminal above its token.

    The head terminal of an expansion is the parent of all that the expansion creates. Rules of all nonterminals that
    the derivation uses are shown, those that it uses in bold.
    """
    drawn = derivation_of(task, document, split, seed)
    depth = {i: len(drawn.ancestors(i)) - 1 for i in drawn.terminals}
    by_depth = sorted(drawn.terminals, key=lambda i: (depth[i], i))
    used = list(dict.fromkeys(owner for i in by_depth if (owner := drawn.owners[i]) is not None))
    columns = _columns(task, used, set(drawn.rules))
    step = sheet.pitch([*drawn.symbols, *used])
    tree_height = (1 + max(depth.values())) * LEVEL
    rules_height = LINE * (1 + max(len(column.lines) for column in columns))
    row = max(tree_height + 20, rules_height - sheet.HEIGHT / 2)  # height of the document
    canvas, x = Canvas(0, 0), 0.0
    for column in columns:
        _draw_rules(canvas, column, x)
        x += column.width + MARGIN
    place = [x + step * (i + 0.5) for i in range(len(drawn.symbols))]
    top = row - tree_height - 20 + LEVEL / 2  # the tree stands on its document
    at = {i: (place[i], top + depth[i] * LEVEL) for i in drawn.terminals}
    _draw_tree(canvas, drawn, at, row, step - sheet.GAP)
    canvas.width, canvas.height = x + step * len(place), _draw_document(canvas, drawn, place, row, step - sheet.GAP)
    title = f"Associative treecall: document {drawn.number} ({split}, seed {seed})"
    return canvas.chart(title, NOTES, describe(drawn, used))


@dataclass(frozen=True)
class Column:
    """Rules below each other: nonterminal (where it is new), probability, right-hand side, whether it is used."""

    lines: list[tuple[str, float, str, bool]]

    @property
    def name_width(self) -> float:
        return max(breadth(name, sign=MONO) for name, *_ in self.lines) + 8

    @property
    def width(self) -> float:
        return self.name_width + BAR + 46 + max(breadth(right, sign=MONO) for _, _, right, _ in self.lines)


def _columns(task: ATR, used: Sequence[str], applied: set[int]) -> list[Column]:
    """The rules of these nonterminals, in columns of similar height that split none of them."""
    every = [(name, rule) for name, own in task.grammar.rules.items() for rule in own]
    total = sum(len(task.grammar.rules[name]) for name in used)
    share = total / -(-total // TALLEST)
    columns: list[Column] = []
    done = 0
    for name in used:
        if not columns or done >= share * len(columns):
            columns.append(Column([]))
        new = cut(name, sheet.LONGEST)
        for number, (owner, rule) in enumerate(every):
            if owner == name:
                parts = [*rule.children, HEAD] if task.grammar.head == "right" else [HEAD, *rule.children]
                right = cut(" ".join(parts), WIDEST_RULE)
                columns[-1].lines.append((new, rule.probability, right, number in applied))
                new = ""
        done += len(task.grammar.rules[name])
    return columns


def _draw_rules(canvas: Canvas, column: Column, x: float) -> None:
    canvas.text(x, LINE / 2, "rules and their probabilities", colour=QUIET)
    for i, (name, probability, right, applied) in enumerate(column.lines, start=1):
        y = (i + 0.5) * LINE
        if name and i > 1:
            canvas.line([(x, y - LINE / 2), (x + column.width, y - LINE / 2)], "#e6e6e6")
        canvas.text(x, y, name, bold=True, mono=True, what="nonterminal")
        left = x + column.name_width
        canvas.bar(left, y, BAR * probability, 8, RAMP[6] if applied else PALE, "probability")
        colour = INK if applied else QUIET
        canvas.text(left + BAR + 35, y, f"{probability:.2f}", align="right", colour=colour, bold=applied, mono=True)
        canvas.text(left + BAR + 46, y, right, colour=colour, bold=applied, mono=True, what="rule")


def _draw_tree(canvas: Canvas, drawn: Derivation, at: dict[int, tuple[float, float]], row: float, width: float) -> None:
    """Draw nodes at these places, each above its token; heads have the nonterminal that they expand."""
    asked = drawn.asked()
    for x, y in at.values():
        canvas.line([(x, y), (x, row)], "#ececec", what="drop")
    for child, parent in sorted(drawn.edges, key=lambda edge: edge in asked):  # what is asked for lies on top
        (x0, y0), (x1, y1) = at[parent], at[child]
        turn = y1 - LEVEL / 2 + 2
        marked = (child, parent) in asked
        corners = [(x0, y0), (x0, turn), (x1, turn), (x1, y1)]
        canvas.line(corners, MARK if marked else EDGE, 3 if marked else 1.2, what="edge")
    for i, (x, y) in at.items():
        owner, colour = drawn.owners[i], sheet.role_colour(i, drawn.roles)
        if owner is None:
            canvas.token(x, y, width, drawn.symbols[i], colour, what="node")
            continue
        canvas.box(x, y, width, NODE, colour, EDGE, what="node")
        canvas.text(x, y - 7, cut(owner, sheet.LONGEST), align="center", size=10, bold=True, what="owner")
        canvas.text(x, y + 7, cut(drawn.symbols[i], sheet.LONGEST), align="center", what="node")


def _draw_document(canvas: Canvas, drawn: Derivation, place: Sequence[float], row: float, width: float) -> float:
    """Draw the tokens, their roles and an arrow from key to value; returns the height at which they end."""
    for i, symbol in enumerate(drawn.symbols):
        canvas.token(place[i], row, width, symbol, sheet.role_colour(i, drawn.roles))
    named = {role: place[drawn.roles[role][0]] for role in sheet.COLOURS}
    bottoms = canvas.label_roles(named, row + sheet.HEIGHT / 2 + 2)
    low = max(bottoms.values()) + 18
    key, value = named["key"], named["value"]
    if key != value:
        corners = [(key, bottoms["key"] + 1), (key, low), (value, low), (value, bottoms["value"] + 1)]
        canvas.arrow(corners, MARK, 2, "asked")
    return low + 6


def describe(drawn: Derivation, used: Sequence[str]) -> str:
    """The figure in words, for readers who cannot see it."""
    place = {role: places[0] for role, places in drawn.roles.items()}
    word = {role: drawn.symbols[at] for role, at in place.items()}
    return (
        f"Document {drawn.number} of associative treecall: {' '.join(drawn.symbols)}. "
        f"Its tree has {len(drawn.terminals)} terminals and {len(drawn.edges)} edges, from the nonterminals "
        f"{', '.join(used)}. The query {word['query']} means the terminal at position {place['key']}; "
        f"the answer is {word['answer']}, at position {place['value']}."
    )
