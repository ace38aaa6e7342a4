"""Documents, trees, grammars and tables as they look in a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from mecheval.tasks import ATR, Corpus, Task
from mecheval.tasks.pcfg import Grammar
from mecheval.types import FACTS, Batch

STYLES = {
    "key": "bold black on yellow", "value": "bold black on green", "next_key": "bold black on cyan",
    "query": "bold white on magenta", "answer": "bold white on blue", "divider": "bold red", "bos": "dim",
}  # fmt: skip


LONGEST, MOST_RULES = 5000, 1000
"""Most tokens of a document and rules of a grammar that are shown to people."""


def legend() -> Text:
    """Which colour is which role."""
    return Text("  ").join([Text("roles:"), *(Text(f" {role} ", style) for role, style in STYLES.items())])


def document(task: Task, batch: Batch, row: int) -> Text:
    """One document with its roles in colour, and below it the positions for those who see no colour."""
    places = {role: int(at[row]) for role, at in batch.roles.items()}
    answered = [int(p) + 1 for p in batch.predict_at[row]]
    style_of = {place: STYLES[role] for role, place in reversed(places.items())}
    style_of |= {places[role]: STYLES[role] for role in ("value", "key")} | dict.fromkeys(answered, STYLES["answer"])
    length = int(batch.lengths[row])
    tokens = batch.tokens[row, : min(length, LONGEST)].tolist()
    text = Text().append(f"{int(batch.index[row])}: ", "dim")
    text.append_text(Text(" ").join(Text(task.symbol(token), style_of.get(i, "")) for i, token in enumerate(tokens)))
    if length > LONGEST:
        text.append(f" … {length - LONGEST:,} more tokens (--json shows all)", "dim")
    where = ", ".join(f"{role} {place}" for role, place in places.items())
    asked = task.symbol(int(batch.tokens[row, places["query"]]))
    answer = task.symbol(int(batch.answers[row]))
    return text.append(f"\n   {where}; {asked} -> {answer}", "dim")


def document_data(task: Task, batch: Batch, row: int) -> dict[str, Any]:
    """The same for machines."""
    tokens = batch.tokens[row, : int(batch.lengths[row])].tolist()
    return {
        "index": int(batch.index[row]),
        "tokens": tokens,
        "symbols": [task.symbol(token) for token in tokens],
        "answer": int(batch.answers[row]),
        "targets": batch.targets[row].tolist(),
        "predict_at": batch.predict_at[row].tolist(),
        "roles": {role: int(at[row]) for role, at in batch.roles.items()},
        "facts": {fact: int(value[row]) for fact, value in batch.facts.items()},
        "parents": None if batch.parents is None else batch.parents[row, : len(tokens)].tolist(),
    }


def derivation(task: ATR, corpus: Corpus, row: int) -> Tree:
    """One document's derivation: each expansion with its nonterminal and head, children in document order."""
    if corpus.parents is None or corpus.rules is None:
        raise ValueError("this corpus has no trees")
    span = slice(corpus.starts[row], corpus.starts[row + 1])
    parents, rules, tokens = corpus.parents[span], corpus.rules[span], corpus.tokens[span]
    batch = corpus.batch([row])
    style_of = {int(batch.roles[role][0]): STYLES[role] for role in ("value", "key")}
    owner = [name for name in task.grammar.nonterminals for _ in task.grammar.rules[name]]

    def label(i: int) -> Text:
        text = Text().append(owner[rules[i]] + " ", "italic") if rules[i] >= 0 else Text()
        return text.append(task.symbol(int(tokens[i])), style_of.get(i, "")).append(f" @{i}", "dim")

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
    """Of a sample: lengths and facts, each with its quantiles and a histogram of at most 16 bins."""
    columns = {"length": batch.lengths.numpy(), **{name: batch.facts[name].numpy() for name in FACTS}}
    result = {}
    for name, values in columns.items():
        edges = np.histogram_bin_edges(values, bins=min(16, int(np.ptp(values)) + 1))
        result[name] = {
            "min": int(values.min()), "median": float(np.median(values)), "mean": float(values.mean()),
            "max": int(values.max()), "histogram": np.histogram(values, edges)[0].tolist(), "edges": edges.tolist(),
        }  # fmt: skip
    return result


def statistics_table(stats: dict[str, dict[str, Any]], n: int) -> Table:
    """The same for people."""
    table = Table(title=f"{n:,} documents", title_justify="left", box=None, header_style="bold")
    for column in ("", "min", "median", "mean", "max"):
        table.add_column(column, justify="right" if column else "left")
    table.add_column("distribution, min to max")
    for name, s in stats.items():
        numbers = (f"{s['min']}", f"{s['median']:g}", f"{s['mean']:.2f}", f"{s['max']}")
        table.add_row(name, *numbers, Text(bars(s["histogram"]), "cyan"))
    return table


def bars(counts: Sequence[int]) -> str:
    """A histogram one line high; a count that is not 0 is never drawn as 0."""
    top = max(counts)
    return "".join(" " if c == 0 else "▁▂▃▄▅▆▇█"[int(7 * c / top)] for c in counts)


def describe_options(model: type[BaseModel] | None) -> dict[str, Any]:
    """Names, defaults and meanings of options, as plain data."""
    fields = {} if model is None else model.model_fields
    return {name: {"default": info.default, "help": info.description} for name, info in fields.items()}


def describe_task(cls: type[Task]) -> dict[str, Any]:
    """A task's presets and options as plain data."""
    presets = {preset: dict(values) for preset, values in cls.presets.items()}
    return {"presets": presets, "options": describe_options(cls.Options)}


def task_table(tasks: dict[str, type[Task]]) -> Table:
    """Every task with its presets and options."""
    table = Table("task", "option", "default", "meaning", title="Tasks", title_justify="left", header_style="bold")
    for name, cls in tasks.items():
        about = (cls.__doc__ or "").strip().splitlines()[0]
        table.add_row(Text(name, "bold"), "", "", escape(about))
        for preset, values in cls.presets.items():
            changes = ", ".join(f"{k}={v}" for k, v in values.items()) or "the defaults"
            table.add_row("", Text(f"preset {preset}", "magenta"), "", escape(changes))
        for option, info in cls.Options.model_fields.items():
            default = ",".join(info.default) if isinstance(info.default, tuple) else str(info.default)
            table.add_row("", Text(option, "cyan"), escape(default), escape(info.description or ""))
        table.add_section()
    return table


def grammar_table(grammar: Grammar) -> Table:
    """Rules with their probabilities, and each nonterminal's three likeliest heads."""
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
