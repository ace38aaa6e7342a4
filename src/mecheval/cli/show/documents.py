"""Documents, their trees, statistics and grammars in a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from mecheval.cli.show import plain_table
from mecheval.report.documents import answers_at, roles_data
from mecheval.tasks import ATR, Corpus, Task
from mecheval.tasks.base import places_of
from mecheval.tasks.pcfg import Grammar
from mecheval.types import Batch, in_order

STYLES = {
    "key": "bold black on yellow", "value": "bold black on green", "next_key": "bold black on cyan",
    "query": "bold white on magenta", "answer": "bold white on blue", "divider": "bold red", "bos": "dim",
}  # fmt: skip
"""The style of each role."""
LONGEST, MOST_RULES = 5000, 1000
"""Largest number of tokens of a document, and of rules of a grammar, that a terminal shows."""


def legend(task: Task) -> Text:
    """The colour of each role of a task, and of the answer."""
    named = {role: style_of(task, role) for role in in_order([*task.roles, "answer"])}
    return Text("  ").join([Text("roles:"), *(Text(f" {role} ", style) for role, style in named.items())])


def style_of(task: Task, role: str) -> str:
    """The style of a role: by what it means, or by its name."""
    return STYLES.get(task.meaning.like(role), STYLES["next_key"])


def document(task: Task, batch: Batch, row: int) -> Text:
    """One document with its roles in colour, and below it their positions, for readers without colours."""
    places = {role: places_of(at, row) for role, at in batch.roles.items()}
    answered = answers_at(batch, row)
    over = [role for role in (task.meaning.value, task.meaning.key) if role]  # what is seen where several coincide
    styles = {place: style_of(task, role) for role in (*reversed(places), *over) for place in places[role]}
    styles |= dict.fromkeys(answered, STYLES["answer"])
    length = int(batch.lengths[row])
    tokens = batch.tokens[row, : min(length, LONGEST)].tolist()
    text = Text().append(f"{int(batch.index[row])}: ", "dim")
    text.append_text(Text(" ").join(Text(task.symbol(token), styles.get(i, "")) for i, token in enumerate(tokens)))
    if length > LONGEST:
        text.append(f" … {length - LONGEST:,} more tokens (--json shows all)", "dim")
    where = ", ".join(f"{role} {_range(at)}" for role, at in places.items() if at)
    asked = " ".join(task.symbol(int(batch.tokens[row, place])) for place in places[task.meaning.query])
    answer = task.symbol(int(batch.answers[row]))
    return text.append(f"\n   {where}; {asked} -> {answer}", "dim")


def _range(places: Sequence[int]) -> str:
    return str(places[0]) if len(places) == 1 else f"{places[0]}-{places[-1]}"


def document_data(task: Task, batch: Batch, row: int) -> dict[str, Any]:
    """One document as plain data."""
    tokens = batch.tokens[row, : int(batch.lengths[row])].tolist()
    return {
        "index": int(batch.index[row]),
        "tokens": tokens,
        "symbols": [task.symbol(token) for token in tokens],
        "answer": int(batch.answers[row]),
        "targets": batch.targets[row].tolist(),
        "predict_at": batch.predict_at[row].tolist(),
        "roles": roles_data(batch, row),
        "facts": {fact: int(value[row]) for fact, value in batch.facts.items()},
        "parents": None if batch.parents is None else batch.parents[row, : len(tokens)].tolist(),
    }


def derivation(task: ATR, corpus: Corpus, row: int) -> Tree:
    """The tree of one document: each expansion with its nonterminal and head, children in document order."""
    if corpus.parents is None or corpus.rules is None:
        raise ValueError("this corpus has no trees")
    span = slice(corpus.starts[row], corpus.starts[row + 1])
    parents, rules, tokens = corpus.parents[span], corpus.rules[span], corpus.tokens[span]
    batch = corpus.batch([row])
    styles = {int(batch.roles[role][0]): STYLES[role] for role in ("value", "key")}
    owner = [name for name in task.grammar.nonterminals for _ in task.grammar.rules[name]]

    def label(i: int) -> Text:
        text = Text().append(owner[rules[i]] + " ", "italic") if rules[i] >= 0 else Text()
        return text.append(task.symbol(int(tokens[i])), styles.get(i, "")).append(f" @{i}", "dim")

    length = int(batch.roles["divider"][0])
    [root] = [i for i in range(1, length) if parents[i] < 0]
    children: dict[int, list[int]] = {}
    for i in range(1, length):
        children.setdefault(int(parents[i]), []).append(i)
    nodes = {root: Tree(label(root))}
    frontier = [root]
    while frontier:
        above = frontier.pop()
        for i in children.get(above, []):
            nodes[i] = nodes[above].add(label(i))
            frontier.append(i)
    return nodes[root]


def statistics(batch: Batch) -> dict[str, dict[str, Any]]:
    """Lengths and facts of a sample, each with its range, mean, median and a histogram of at most 16 bins."""
    columns = {"length": batch.lengths.numpy(), **{name: fact.numpy() for name, fact in batch.facts.items()}}
    result = {}
    for name, values in columns.items():
        edges = np.histogram_bin_edges(values, bins=min(16, int(np.ptp(values)) + 1))
        result[name] = {
            "min": int(values.min()), "median": float(np.median(values)), "mean": float(values.mean()),
            "max": int(values.max()), "histogram": np.histogram(values, edges)[0].tolist(), "edges": edges.tolist(),
        }  # fmt: skip
    return result


def statistics_table(stats: dict[str, dict[str, Any]], n: int) -> Table:
    """The statistics of `n` documents."""
    distribution = "distribution, min to max"
    table = plain_table(("", "min", "median", "mean", "max", distribution), ("", distribution))
    table.title, table.title_justify = f"{n:,} documents", "left"
    for name, s in stats.items():
        numbers = (f"{s['min']}", f"{s['median']:g}", f"{s['mean']:.2f}", f"{s['max']}")
        table.add_row(name, *numbers, Text(bars(s["histogram"]), "cyan"))
    return table


def bars(counts: Sequence[int]) -> str:
    """A histogram one line high; only a count of 0 is drawn as empty."""
    top = max(counts)
    return "".join(" " if c == 0 else "▁▂▃▄▅▆▇█"[int(7 * c / top)] for c in counts)


def grammar_table(grammar: Grammar) -> Table:
    """Rules with their probabilities, and the three likeliest heads of each nonterminal."""
    table = Table("nonterminal", "p", "children", "likely heads", title="Grammar", title_justify="left", box=None)
    left = sum(len(rules) for rules in grammar.rules.values()) - MOST_RULES
    if left > 0:
        table.caption, table.caption_justify = f"… {left:,} more rules (--json shows all)", "left"
    for name, rules in itertools.islice(grammar.rules.items(), MOST_RULES):
        likely = sorted(zip(grammar.heads[name], grammar.terminals, strict=True), reverse=True)[:3]
        heads = ", ".join(f"{terminal} {p:.2f}" for p, terminal in likely)
        for j, rule in enumerate(rules[: MOST_RULES - table.row_count]):
            children = " ".join(rule.children)
            right_hand_side = f"{children} [head]" if grammar.head == "right" else f"[head] {children}"
            first = (escape(name), escape(heads)) if j == 0 else ("", "")
            table.add_row(first[0], f"{rule.probability:.3f}", escape(right_hand_side), first[1])
    return table
