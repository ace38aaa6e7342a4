"""The mean, shortest and longest length of a grammar's documents, computed without sampling."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from mecheval.tasks.pcfg import Grammar, Rule

CERTAIN = 1e12
"""Mean length above which the mean is considered infinite, because a larger finite value is a rounding error."""


def _live(grammar: Grammar, name: str) -> list[Rule]:
    """The rules of a nonterminal that have a positive probability."""
    return [rule for rule in grammar.rules[name] if rule.probability > 0]


def reachable(grammar: Grammar) -> list[str]:
    """The nonterminals that a document can contain, in the grammar's order."""
    found, frontier = set(grammar.start), list(grammar.start)
    while frontier:
        for rule in _live(grammar, frontier.pop()):
            new = {child for child in rule.children if child in grammar.rules} - found
            found |= new
            frontier += new
    return [name for name in grammar.nonterminals if name in found]


def children_first(grammar: Grammar) -> list[str] | None:
    """The reachable nonterminals, each after all that occur in its rules; None if there is recursion."""
    names = reachable(grammar)
    above: dict[str, list[str]] = {name: [] for name in names}
    waiting = {}
    for name in names:
        inside = {child for rule in _live(grammar, name) for child in rule.children} & above.keys()
        waiting[name] = len(inside)
        for child in inside:
            above[child].append(name)
    ready = [name for name in names if not waiting[name]]
    for name in ready:  # the list grows during the loop
        for parent in above[name]:
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    return ready if len(ready) == len(names) else None


def _bottom_up(
    grammar: Grammar, order: list[str], combine: Callable[[list[tuple[float, float]]], float]
) -> dict[str, float]:
    """A length for each nonterminal, which `combine` computes from the (probability, length) of its rules."""
    found: dict[str, float] = {}
    for name in order:
        lengths = [
            (r.probability, 1 + sum(found.get(child, 1.0) for child in r.children)) for r in _live(grammar, name)
        ]
        found[name] = combine(lengths)
    return found


def expected_length(grammar: Grammar) -> float:
    """The mean number of terminals of an unrestricted derivation; infinite if the recursion does not die out.

    The means solve e = 1 + terminals + M e, where M holds the expected numbers of nonterminal children. As M and the
    constants are not negative, the mean is finite exactly if the solution is positive.
    """
    order = children_first(grammar)
    if order is not None:
        means = _bottom_up(grammar, order, lambda rules: sum(p * length for p, length in rules))
        return float(np.mean([means[name] for name in grammar.start]))
    names = reachable(grammar)
    number = {name: i for i, name in enumerate(names)}
    M, own = np.zeros((len(names), len(names))), np.ones(len(names))
    for name in names:
        for rule in grammar.rules[name]:
            for child in rule.children:
                if child in number:
                    M[number[name], number[child]] += rule.probability
                elif child not in grammar.rules:
                    own[number[name]] += rule.probability
    try:
        solved = np.linalg.solve(np.eye(len(names)) - M, own)
    except np.linalg.LinAlgError:
        return math.inf
    if not ((solved > 0) & (solved < CERTAIN)).all():
        return math.inf
    return float(np.mean([solved[number[name]] for name in grammar.start]))


def length_range(grammar: Grammar) -> tuple[float, float]:
    """The lengths of the shortest and the longest possible yield, or infinity if there is no finite one.

    Every expansion adds a terminal, so with recursion there is no longest yield.
    """
    shortest, order = _shortest(grammar), children_first(grammar)
    longest = {} if order is None else _bottom_up(grammar, order, lambda rules: max(length for _, length in rules))
    return min(shortest[name] for name in grammar.start), max(longest.get(name, math.inf) for name in grammar.start)


def _shortest(grammar: Grammar) -> dict[str, float]:
    """The length of the shortest yield of each reachable nonterminal, found in ascending order (Knuth, 1977)."""
    names = reachable(grammar)
    shortest: dict[str, float] = dict.fromkeys(names, math.inf)
    users: dict[str, list[tuple[list[float], str, int]]] = {name: [] for name in names}
    queue: list[tuple[float, str]] = []
    for name in names:
        for rule in _live(grammar, name):
            inside = Counter(child for child in rule.children if child in users)
            known = 1.0 + len(rule.children) - inside.total()
            state = [known, float(len(inside))]  # length so far, and number of nonterminals still unknown
            if not inside:
                heapq.heappush(queue, (known, name))
            for child, times in inside.items():
                users[child].append((state, name, times))
    while queue:
        length, name = heapq.heappop(queue)
        if length >= shortest[name]:
            continue
        shortest[name] = length
        for state, parent, times in users[name]:
            state[0] += times * length
            state[1] -= 1
            if not state[1]:
                heapq.heappush(queue, (state[0], parent))
    return shortest
