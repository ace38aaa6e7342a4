"""How long a grammar's documents are: exact answers, no sampling."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mecheval.tasks.pcfg import Grammar


def reachable(grammar: Grammar) -> list[str]:
    """The nonterminals that a document can contain, in the grammar's order."""
    found, frontier = set(grammar.start), list(grammar.start)
    while frontier:
        for rule in grammar.rules[frontier.pop()]:
            new = {c for c in rule.children if c in grammar.rules and rule.probability > 0} - found
            found |= new
            frontier += new
    return [name for name in grammar.nonterminals if name in found]


def expected_length(grammar: Grammar) -> float:
    """Mean number of terminals of an unrestricted derivation; infinite where recursion feeds itself.

    The means solve e = 1 + terminals + M e, where M counts the expected nonterminal children of each nonterminal.
    """
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
    if max(abs(np.linalg.eigvals(M))) >= 1 - 1e-12:
        return math.inf
    means = np.linalg.solve(np.eye(len(names)) - M, own)
    return float(np.mean([means[number[name]] for name in grammar.start]))


def length_range(grammar: Grammar) -> tuple[float, float]:
    """Shortest and longest possible yield; infinity when there is no finite one."""
    names = reachable(grammar)
    shortest: dict[str, float] = dict.fromkeys(names, math.inf)
    longest: dict[str, float] = dict.fromkeys(names, 0.0)

    def total(rule_children: tuple[str, ...], of: dict[str, float]) -> float:
        return 1 + sum(of.get(child, 1) for child in rule_children)

    # A derivation without recursion is at most len(names) expansions deep: so many rounds settle both bounds,
    # and a longest yield that still grows afterwards grows without end.
    for _ in range(len(names) + 1):
        grew = False
        for name in names:
            rules = [rule for rule in grammar.rules[name] if rule.probability > 0]
            shortest[name] = min(total(rule.children, shortest) for rule in rules)
            new = max(total(rule.children, longest) for rule in rules)
            grew |= new > longest[name]
            longest[name] = new
    return (
        min(shortest[name] for name in grammar.start),
        math.inf if grew else max(longest[name] for name in grammar.start),
    )


def length_distribution(grammar: Grammar, max_length: int) -> NDArray[np.float64]:
    """P(yield has l terminals) for l = 0..max_length, (max_length + 1,); what is missing from 1 is longer.

    A rule's length is 1 plus the sum of its children's: a product of generating functions, here by FFT. Rounds
    repeat until nothing changes, which takes as many as the grammar is deep (recursion: until the rest is negligible).
    """
    names = reachable(grammar)
    number = {name: i for i, name in enumerate(names)}
    widest = max(len(rule.children) for name in names for rule in grammar.rules[name])
    size = 1 << math.ceil(math.log2((widest + 1) * (max_length + 1)))
    one = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)  # transform of "exactly 1"
    lengths = np.zeros((len(names), max_length + 1))
    for _ in range(max_length + 1):
        transformed = np.fft.rfft(lengths, size)
        sums = np.zeros((len(names), size // 2 + 1), dtype=complex)
        for name in names:
            for rule in grammar.rules[name]:
                product = rule.probability * one
                for child in rule.children:
                    product = product * (transformed[number[child]] if child in grammar.rules else one)
                sums[number[name]] += product
        new = np.fft.irfft(sums, size)[:, : max_length + 1]
        new[np.abs(new) < 1e-15] = 0  # the transform's rounding
        done = np.abs(new - lengths).max() < 1e-12
        lengths = new
        if done:
            break
    mean: NDArray[np.float64] = np.mean([lengths[number[name]] for name in grammar.start], axis=0)
    return mean
