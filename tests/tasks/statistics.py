"""Chi-square comparisons of samples, for samplers that should have one distribution."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mecheval.tasks.pcfg import Grammar


def merged(counts: NDArray[np.float64], expected_smallest: float) -> NDArray[np.float64]:
    """Columns of (rows, bins) merged from the rarest up until every merged bin holds enough."""
    order = np.argsort(counts.sum(axis=0))
    bins, current = [], np.zeros(len(counts))
    for column in order:
        current = current + counts[:, column]
        if current.min() >= expected_smallest:
            bins.append(current)
            current = np.zeros(len(counts))
    if current.sum() and bins:
        bins[-1] = bins[-1] + current
    return np.array(bins).T


def same_distribution(a: Iterable[int], b: Iterable[int]) -> float:
    """p-value that two samples of integers come from one distribution."""
    a, b = np.asarray(a), np.asarray(b)
    values = np.union1d(a, b)
    counts = np.array([[(sample == v).sum() for v in values] for sample in (a, b)], dtype=np.float64)
    table = merged(counts, 8)
    return 1.0 if table.ndim < 2 or table.shape[1] < 2 else float(stats.chi2_contingency(table).pvalue)


def follows(sample: Iterable[int], probabilities: NDArray[np.float64]) -> float:
    """p-value that integers 0.. come from these probabilities."""
    counts = np.bincount(np.asarray(sample), minlength=len(probabilities)).astype(np.float64)
    assert len(counts) == len(probabilities)
    assert counts[probabilities < 1e-12].sum() == 0
    table = merged(np.array([counts, probabilities * counts.sum()]), 8)
    return float(stats.chisquare(table[0], table[1] * table[0].sum() / table[1].sum()).pvalue)


def length_distribution(grammar: Grammar, longest: int) -> NDArray[np.float64]:
    """P(a document of the grammar has l terminals) for l = 0..longest; longer ones have the rest of 1.

    A rule's length is one, for its head, plus the lengths of its children, so its distribution is their convolution. A
    round over all rules is right for derivations that are one level deeper than those of the round before.
    """
    one = np.zeros(longest + 1)
    one[min(1, longest)] = 1
    lengths = {name: np.zeros(longest + 1) for name in grammar.nonterminals}
    for _ in range(longest):
        before, lengths = lengths, {}
        for name in grammar.nonterminals:
            lengths[name] = np.zeros(longest + 1)
            for rule in grammar.rules[name]:
                own = one
                for child in rule.children if rule.probability > 0 else ():
                    own = np.convolve(own, before.get(child, one))[: longest + 1]
                lengths[name] = lengths[name] + rule.probability * own
        if all(np.array_equal(before[name], lengths[name]) for name in lengths):
            break
    mean: NDArray[np.float64] = np.mean([lengths[name] for name in grammar.start], axis=0)
    return mean
