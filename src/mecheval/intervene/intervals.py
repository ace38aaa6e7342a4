"""Confidence intervals of means and of restored shares, for few documents and near the ends of the possible range.

A trained model often restores everything, or nothing, in nearly every document. A bootstrap then repeats the same
number, and Student's interval is too short, because the few documents that were not drawn make the difference. These
intervals need only the mean, its standard error and the number of documents, so nothing in them is random:

1. The mean lies in [0, 1], at a distance m from the nearer end. A Beta distribution with mean m and the squared
   standard error as its variance describes the uncertainty of the mean. Its quantile towards the nearer end is one end
   of the interval, as Korn and Graubard extended Clopper and Pearson's end to numbers other than 0 and 1. The error is
   widened by t / z, with fewer degrees of freedom (CARRIED) if few documents carry the distance m.
2. The other end is equally far from the mean on the logit scale: a mean that can be too high by a factor can be too low
   by the same factor. Far from the ends of the range, these two steps give Student's interval.
3. The other end goes no farther than Gaffke's bound, which adds one more document at the far end of the range. If all
   documents are alike (RESOLUTION), they do not show how much others may differ, so both ends are then this bound: if
   all n documents are 1, the lower end is 0.025 ** (1 / n), known as the rule of three.
4. The spread of all-or-nothing documents follows from their mean, so nothing has to be widened for it: both ends are
   Jeffreys's, the quantiles of a Beta distribution with half a document more on either side. The distance of documents
   from this case is the mean of x (1 - x), relative to m (1 - m); GRADED is the scale of the transition.

A mean is treated as a share with gaps of one. A share is a ratio of sums, so its error comes from the residuals, and
documents with unequal gaps count as fewer (Kish). A cluster counts as one document, with the sum of its members. With
several runs, the error is that between the runs' shares or that between documents, whichever is larger, because runs
are sampled, too.
`python -m benchmarks.coverage` measures how often the intervals hold the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mecheval.errors import UserError

Floats = NDArray[np.float64]
Runs = NDArray[np.floating[Any]] | Sequence[NDArray[np.floating[Any]]]
"""Values of documents, (n,) or (cells, n), NaN if a document has none; or a sequence of these, one for each run."""
Clusters = ArrayLike | Sequence[ArrayLike]
"""The document to which each value belongs, (n,); or a sequence of these, one for each run."""

LEVEL = 0.95
"""The confidence level."""
RESOLUTION = 0.002
"""Standard deviation, relative to the possible range, below which documents count as alike."""
ROUNDING = 1e-5
"""Largest distance of likelihoods in single precision from [0, 1]."""
POINTS = 160
"""Number of points at which a Beta distribution is integrated; quantiles are then right to three digits."""
CARRIED = 4
"""Degrees of freedom of the variance per document that carries the distance from the nearer end; found empirically."""
GRADED = 0.5
"""Mean of x (1 - x), relative to m (1 - m), above which documents are not all-or-nothing; found empirically."""
SMALLEST = 0.05
"""Smallest parameter of a Beta distribution; below it, its outer quantiles are the ends of the range."""


def mean_interval(x: Runs, clusters: Clusters | None = None, level: float = LEVEL) -> tuple[Floats, Floats]:
    """The ends of the interval of the mean of values in [0, 1], such as likelihoods, or 0 and 1 for wrong and right.

    Values (n,) give two numbers, and (cells, n) two arrays (cells,). If documents have several values each, `clusters`
    is the document of each value.
    """
    return _shaped(_mean(_runs(x), clusters, level, "mean_interval: all numbers must lie in [0, 1]."), x)


def difference_interval(
    a: Runs, b: Runs, clusters: Clusters | None = None, level: float = LEVEL
) -> tuple[Floats, Floats]:
    """The ends of the interval of the mean of a - b, for pairs of values in [0, 1]."""
    runs = [(one - other + 1) / 2 for one, other in _pairs(a, b)]
    low, high = _mean(runs, clusters, level, "difference_interval: all differences must lie in [-1, 1].")
    return _shaped((2 * low - 1, 2 * high - 1), a)


def share_interval(
    attribution: Runs, gap: Runs, clusters: Clusters | None = None, level: float = LEVEL
) -> tuple[Floats, Floats]:
    """The ends of the interval of Σ attribution / Σ gap, the share of what was lost that is restored.

    The possible range is [0, 1], extended as far as single documents lie outside it. For a single document, or if the
    mean gap could be zero, the interval is this whole range; its ends are NaN if nothing was lost.
    """
    pairs = _pairs(attribution, gap)
    grouped = _grouped([one for one, _ in pairs], [other for _, other in pairs], clusters)
    return _shaped(_interval(grouped, level), attribution)


def surely_above(a: Runs, b: Runs, level: float = LEVEL) -> NDArray[np.bool_]:
    """Whether the mean of a exceeds that of b, that is, whether the whole interval of their difference is above 0."""
    return np.asarray(difference_interval(a, b, level=level)[0] > 0)


def _mean(runs: list[Floats], clusters: Clusters | None, level: float, outside: str) -> tuple[Floats, Floats]:
    if any((np.abs(run - 0.5) > 0.5 + ROUNDING).any() for run in runs):
        raise UserError(outside)
    return _interval(_grouped([run.clip(0, 1) for run in runs], [np.ones_like(run) for run in runs], clusters), level)


@dataclass(frozen=True)
class _Run:
    """The independent documents (or clusters) of a run, (cells, n) each; zero if a cell has none."""

    attribution: Floats
    gap: Floats
    there: NDArray[np.bool_]


def _runs(x: Runs) -> list[Floats]:
    """Each run as (cells, n)."""
    several = isinstance(x, Sequence) and any(np.ndim(run) for run in x)
    runs = [np.asarray(run, np.float64) for run in (x if several else [x])]
    runs = [run[None] if run.ndim == 1 else run for run in runs]
    if not runs or any(run.ndim != 2 or len(run) != len(runs[0]) for run in runs):
        raise UserError("intervals: give numbers (documents,) or (cells, documents), with the same cells in every run.")
    return runs


def _pairs(a: Runs, b: Runs) -> list[tuple[Floats, Floats]]:
    """The runs of both, with a single cell broadcast to all cells of the other."""
    ones, others = _runs(a), _runs(b)
    if [run.shape[1] for run in ones] != [run.shape[1] for run in others]:
        raise UserError("intervals: both must have the same runs and documents.")
    if len({len(ones[0]), len(others[0]), 1}) > 2:
        raise UserError(f"intervals: {len(ones[0])} cells do not go with {len(others[0])}.")
    return [(one + 0 * other, other + 0 * one) for one, other in zip(ones, others, strict=True)]


def _shaped(ends: tuple[Floats, Floats], x: Runs) -> tuple[Floats, Floats]:
    """The ends without the axis of cells if the values had none."""
    flat = np.ndim(x[0]) < 2 if isinstance(x, Sequence) else np.ndim(x) < 2
    return (ends[0][0], ends[1][0]) if flat else ends


def _grouped(attribution: list[Floats], gap: list[Floats], clusters: Clusters | None) -> list[_Run]:
    names: list[ArrayLike | None] = [None] * len(gap)
    if clusters is not None:
        names = [clusters] if len(gap) == 1 and np.ndim(clusters) == 1 else list(clusters)  # type: ignore[arg-type, list-item]
    if len(names) != len(gap):
        raise UserError(f"intervals: {len(gap)} runs need as many arrays of clusters, not {len(names)}.")
    return [_run(a, g, of) for a, g, of in zip(attribution, gap, names, strict=True)]


def _run(attribution: Floats, gap: Floats, clusters: ArrayLike | None) -> _Run:
    there = ~np.isnan(attribution + gap)
    a, g = np.where(there, attribution, 0), np.where(there, gap, 0)
    if clusters is None:
        return _Run(a, g, there)
    index = np.unique(np.asarray(clusters), return_inverse=True)[1]
    if index.shape != a.shape[1:]:
        raise UserError(f"intervals: {a.shape[1]} numbers need as many clusters, not {index.size}.")
    member = np.eye(int(index.max(initial=-1)) + 1)[index]  # (n, clusters)
    return _Run(a @ member, g @ member, there @ member > 0)


def _interval(runs: Sequence[_Run], level: float) -> tuple[Floats, Floats]:
    """Both ends, (cells,) each."""
    if not 0 < level < 1:
        raise UserError(f"intervals: the level must be between 0 and 1 (got {level}).")
    n = np.stack([run.there.sum(-1) for run in runs])  # (runs, cells)
    with np.errstate(divide="ignore", invalid="ignore"):  # cells without documents become NaN
        gaps = np.stack([run.gap.sum(-1) for run in runs]) / n
        gap = gaps.mean(0)
        share = (np.stack([run.attribution.sum(-1) for run in runs]) / n).mean(0) / gap
        squares = np.stack([np.square(run.gap).sum(-1) for run in runs])
        documents = (np.square(gaps * n) / squares).sum(0)  # as many as equal gaps would be
        bottom, top = _range(runs, gap, share)
        span = top - bottom
        nearest = np.minimum(share - bottom, top - share)
        variance, error, widened = (x / span**2 for x in _spread(runs, n, share, gap, nearest, level))
        graded = _graded(runs, bottom, top) / (squares.sum(0) * (share - bottom) * (top - share))
        low, high = _ends((share - bottom) / span, variance, error, widened, documents, graded, level)
        unsure = np.sqrt((squares / n - np.square(gaps)).sum(0) / n.sum(0)) * _z(level) >= gap
        whole = (n < 2).any(0) | (unsure & np.any([(run.gap < 0).any(-1) for run in runs], axis=0))
        low, high = np.where(whole, bottom, bottom + span * low), np.where(whole, top, bottom + span * high)
        lost = gap > 0
        return np.where(lost, np.fmin(low, share), np.nan), np.where(lost, np.fmax(high, share), np.nan)


def _range(runs: Sequence[_Run], gap: Floats, share: Floats) -> tuple[Floats, Floats]:
    """The possible range of the share: [0, 1], extended by twice the distance of the farthest document."""
    under = [np.max(-np.sign(run.gap) * run.attribution, -1, initial=0) for run in runs]
    over = [np.max(np.sign(run.gap) * (run.attribution - run.gap), -1, initial=0) for run in runs]
    return np.fmin(0 - 2 * np.max(under, 0) / gap, share), np.fmax(1 + 2 * np.max(over, 0) / gap, share)


def _graded(runs: Sequence[_Run], bottom: Floats, top: Floats) -> Floats:
    """(cells,) sums over documents of the product of their distances from the ends of the range."""
    apart = [(run.attribution - bottom[:, None] * run.gap) * (top[:, None] * run.gap - run.attribution) for run in runs]
    total: Floats = np.sum([each.sum(-1) for each in apart], axis=0)
    return total


def _spread(
    runs: Sequence[_Run], n: NDArray[np.int64], share: Floats, gap: Floats, nearest: Floats, level: float
) -> tuple[Floats, Floats, Floats]:
    """The variance of one document, the squared standard error of the share, and this times (t / z)²; (cells,) each.

    The error between runs is widened in both, because there are too few runs for Gaffke's bound.
    """
    means, variances = np.empty(n.shape), np.empty(n.shape)
    for r, run in enumerate(runs):
        residual = (run.attribution - share[:, None] * run.gap) / gap[:, None]
        means[r] = residual.sum(-1) / n[r]
        variances[r] = np.square(np.where(run.there, residual - means[r, :, None], 0)).sum(-1) / (n[r] - 1)
    variance = variances.mean(0)
    carriers = n.sum(0) * np.square(nearest) / variance
    freedom = np.fmin((n - 1).sum(0), CARRIED * carriers)
    error = (variances / n).sum(0) / len(n) ** 2
    widened = error * _widening(freedom, level)
    if len(n) == 1:
        return variance, error, widened
    between = means.var(0, ddof=1)
    by_runs = between / len(n) * _widening(np.full_like(between, len(n) - 1), level)
    return variance + between, np.fmax(error, by_runs), np.fmax(widened, by_runs)


def _ends(
    mean: Floats, variance: Floats, error: Floats, widened: Floats, documents: Floats, graded: Floats, level: float
) -> tuple[Floats, Floats]:
    """Both ends for means in [0, 1]; steps 1 to 4 of the argument above."""
    m = np.clip(np.minimum(mean, 1 - mean), 1e-12, 0.5)
    tail = (1 - level) / 2
    near, other = _beta_logits(m, widened, (tail, 1 - tail))
    (most,) = _beta_logits(*_joined(m, error, documents), (1 - tail,))
    (least,) = _beta_logits(*_joined(1 - m, error, documents), (1 - tail,))
    far = np.minimum(np.maximum(other, 2 * _logit(m) - near), most)
    size = np.clip(m * (1 - m) / np.maximum(error, 1e-30) + 1, 0, 1e12)
    jeffreys = _logit_quantiles(m * size + 0.5, (1 - m) * size + 0.5, (tail, 1 - tail))
    whole = np.exp(-np.square(np.nan_to_num(graded, nan=1.0).clip(-1, 1) / GRADED))
    inner, outer = (_logistic(end + whole * (at - end)) for end, at in zip((near, far), jeffreys, strict=True))
    alike = np.exp(-((variance / RESOLUTION**2) ** 2))
    inner = inner + alike * np.minimum(_logistic(-least) - inner, 0)
    outer = outer + alike * (_logistic(most) - outer)
    swap = mean > 0.5
    return np.where(swap, 1 - outer, inner), np.where(swap, 1 - inner, outer)


def _joined(m: Floats, error: Floats, documents: Floats) -> tuple[Floats, Floats]:
    """Mean and squared error after adding a document with the value 1 and the same uncertain weight as the others."""
    n = documents + 1
    ones = documents * np.square(1 - m) / (n**2 * (n + 1))
    return (documents * m + 1) / n, error * np.square(documents / n) + ones


def _beta_logits(mean: Floats, variance: Floats, tails: Sequence[float]) -> list[Floats]:
    """Quantiles, as logits, of the Beta distributions with these means and variances."""
    size = np.clip(mean * (1 - mean) / np.maximum(variance, 1e-30) - 1, 0, 1e12)
    return _logit_quantiles(mean * size, (1 - mean) * size, tails)


def _logit_quantiles(a: Floats, b: Floats, tails: Sequence[float]) -> list[Floats]:
    """Quantiles of u = logit(x), x ~ Beta(a, b), whose density exp(a u) / (1 + exp(u)) ** (a + b) is smooth."""
    a, b = (np.maximum(np.nan_to_num(p, nan=1.0), SMALLEST)[:, None] for p in (a, b))
    mode, width = np.log(a / b), 6 * np.sqrt(1 / a + 1 / b)
    steps = np.sinh(np.linspace(-3, 3, POINTS)) / np.sinh(3)  # denser in the middle
    offset = np.where(steps < 0, width + 20 / a, width + 20 / b) * steps
    u = mode + offset
    density = np.exp(a * offset - (a + b) * (_softplus(u) - _softplus(mode)))
    mass = np.cumsum((density[:, 1:] + density[:, :-1]) * np.diff(u), axis=1)
    mass = np.concatenate([np.zeros_like(a), mass / mass[:, -1:]], axis=1)
    rows, found = np.arange(len(u)), []
    for tail in tails:
        i = np.clip((mass < tail).sum(1), 1, POINTS - 1)
        before, after = mass[rows, i - 1], mass[rows, i]
        found.append(u[rows, i - 1] + (u[rows, i] - u[rows, i - 1]) * (tail - before) / (after - before))
    return found


def _widening(freedom: Floats, level: float) -> Floats:
    """(t / z)², the factor by which a variance estimated with these degrees of freedom is widened."""
    whole = np.floor(np.fmax(freedom, 1).astype(np.float64))  # few different ones
    known, index = np.unique(whole, return_inverse=True)
    (logits,) = _logit_quantiles(np.full_like(known, 0.5), known / 2, (level,))  # t² / (f + t²) ~ Beta(1/2, f/2)
    widening: Floats = (known * np.exp(logits) / _z(level) ** 2)[index]
    return widening


def _z(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)


def _logit(p: Floats) -> Floats:
    return np.asarray(np.log(p) - np.log1p(-p))


def _softplus(u: Floats) -> Floats:
    return np.asarray(np.maximum(u, 0) + np.log(1 + np.exp(-np.abs(u))))


def _logistic(u: Floats) -> Floats:
    return np.asarray(np.exp(-_softplus(-u)))
