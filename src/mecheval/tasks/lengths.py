"""Exact lengths of a grammar's documents, computed without sampling and in almost linear time."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mecheval.errors import UserError
from mecheval.tasks.pcfg import Grammar, Rule

MAX_NUMBERS, MAX_PRODUCTS = 1 << 25, 10**9
"""Largest numbers of values and of multiplications in `length_distribution`, which take a few seconds."""
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


def length_distribution(grammar: Grammar, max_length: int) -> NDArray[np.float64]:
    """P(the yield has l terminals) for l = 0..max_length, (max_length + 1,); longer yields have the rest of 1.

    A rule's length is 1 plus the sum of its children's lengths, which is a product of generating functions, computed by
    FFT. Without recursion, one round in the right order is enough; with recursion, rounds repeat until nothing changes.
    """
    order = children_first(grammar)
    names = reachable(grammar) if order is None else order
    number = {name: i for i, name in enumerate(names)}
    rules = {name: [rule for rule in _live(grammar, name) if len(rule.children) < max_length] for name in names}
    widths = [len(rule.children) for name in names for rule in rules[name]]
    size = 1 << math.ceil(math.log2((max(widths, default=0) + 1) * (max_length + 1)))
    half = size // 2 + 1
    rounds = 1 if order is not None else MAX_PRODUCTS // (half * (sum(widths) + len(names) * size.bit_length()))
    if len(names) * size > MAX_NUMBERS or half * sum(widths) > MAX_PRODUCTS:
        raise UserError("this grammar is too large to compute the lengths of its documents.")
    one = np.exp(-2j * np.pi * np.arange(half) / size)  # the transform of a length of exactly 1
    lengths = np.zeros((len(names), max_length + 1))
    transformed = np.zeros((len(names), half), dtype=complex)
    for _ in range(min(rounds, max_length + 1)):
        change = 0.0
        for i, name in enumerate(names):
            total = np.zeros(half, dtype=complex)
            for rule in rules[name]:
                product = rule.probability * one
                for child in rule.children:
                    product = product * (transformed[number[child]] if child in grammar.rules else one)
                total += product
            new = np.fft.irfft(total, size)[: max_length + 1]
            new[np.abs(new) < 1e-15] = 0  # rounding errors of the transform
            change = max(change, float(np.abs(new - lengths[i]).max()))
            lengths[i] = new
            transformed[i] = np.fft.rfft(new, size)
        if change < 1e-12 or order is not None:
            break
    else:
        if rounds <= max_length:
            raise UserError("this grammar is too large to compute the lengths of its documents.")
    mean: NDArray[np.float64] = np.mean([lengths[number[name]] for name in grammar.start], axis=0)
    return mean
