"""How a claim is decided: by an interval for each number that it mentions, and by where that interval lies.

A claim is one or more parts, and a part says that a number lies in a range: an accuracy above 0.84, a difference of two
mixers above 0, a difference from the paper's number within 10 points. The number is estimated from our runs, with an
interval over what could have come out otherwise:

- Documents. A likelihood or accuracy p is a mean over n test documents. Numbers between 0 and 1 with the mean p have a
  variance of at most p (1 - p), so the mean has one of at most p (1 - p) / n. p is first moved towards 1/2 as by two
  right and two wrong answers more (Agresti and Coull), so that a run without mistakes has an error, too. Our seeds
  share their test documents, so more seeds do not make this part smaller.
- Seeds. Runs of one setting differ by their seeds, and a single run cannot say by how much. Until more is known, the
  standard deviation is SPREAD on the logit scale, SPREAD p (1 - p) on that of p. The variance over our seeds replaces
  this as they become more: the assumption counts for as much as PRIOR degrees of freedom. An interval is Student's.
- The paper. Its number is one more run, with one seed and its own documents: its variance is added.

A part *holds* if its 95 % interval lies inside the range that the claim states, and *fails* if it lies outside. A claim
is reproduced if all its parts hold. It is contradicted if one part fails; because any of k parts could do so by
accident, the interval for this has the level 1 - 0.05 / k. So, where seeds spread as assumed, either decision is wrong
in at most 5 % of all cases. All else is inconclusive. Fewer than MANY seeds never contradict: mixers that are at the
edge of what they can learn fail with some seeds and not with others, which no assumption about a spread covers.
Training does not succeed by accident.

`tests/paper/test_error_rates.py` draws runs from known truths and counts the wrong decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance
from typing import Literal, NamedTuple, Protocol

LEVEL = 0.95
"""How often an interval holds the true value."""
SPREAD = 1 / 4
"""Assumed standard deviation over seeds, on the logit scale: 6 points at 50 %, 2 at 90 %, 0.2 at 99 %."""
PRIOR = 4
"""Degrees of freedom of this assumption: it counts as much as five seeds would."""
MANY = 3
"""Number of seeds needed to contradict a claim."""
EVEN = 4
"""Answers, half of them right, that are added to those of a run before its error is computed."""

Ends = tuple[float, float]
State = Literal["holds", "fails", "unsure", "open"]


class Quantity(Protocol):
    """What a part is about: anything that has an interval and a number of seeds behind it."""

    @property
    def seeds(self) -> int: ...

    def interval(self, level: float = LEVEL) -> Ends:
        """The low and the high end."""
        ...


@dataclass(frozen=True)
class Estimate:
    """A number with the variance of its error, the degrees of freedom of that, and the seeds behind it."""

    value: float
    variance: float
    freedom: int
    seeds: int

    def interval(self, level: float = LEVEL) -> Ends:
        half = student(level, self.freedom) * math.sqrt(self.variance)
        return self.value - half, self.value + half

    def __sub__(self, other: Estimate) -> Estimate:
        error = self.variance + other.variance
        freedom, seeds = min(self.freedom, other.freedom), min(self.seeds, other.seeds)
        return Estimate(self.value - other.value, error, freedom, seeds)

    def scaled(self, factor: float) -> Estimate:
        """The same number, scaled."""
        return Estimate(factor * self.value, factor**2 * self.variance, self.freedom, self.seeds)

    def shifted(self, by: float) -> Estimate:
        """The same number, shifted."""
        return Estimate(self.value + by, self.variance, self.freedom, self.seeds)


@dataclass(frozen=True)
class Tally:
    """How many of some runs do what a claim says; the interval of their share is Clopper and Pearson's."""

    hits: int
    of: int
    seeds: int = MANY  # it takes six runs that agree to decide anything

    def interval(self, level: float = LEVEL) -> Ends:
        """The shares under which neither this number of hits or more, nor this number or fewer, would be rare."""
        rare = (1 - level) / 2
        low = 0.0 if self.hits == 0 else _solve(lambda p: _at_least(self.hits, self.of, p) < rare)
        high = 1.0 if self.hits == self.of else _solve(lambda p: 1 - _at_least(self.hits + 1, self.of, p) > rare)
        return low, high


@dataclass(frozen=True)
class Count:
    """How many of several differences are above zero: those that certainly are, and those that may be."""

    differences: tuple[Estimate, ...]

    @property
    def seeds(self) -> int:
        return min(each.seeds for each in self.differences)

    def interval(self, level: float = LEVEL) -> Ends:
        """The smallest and the largest count; one level is shared by all differences."""
        each = 1 - (1 - level) / len(self.differences)
        ends = [difference.interval(each) for difference in self.differences]
        return float(sum(low > 0 for low, _ in ends)), float(sum(high > 0 for _, high in ends))


class Part(NamedTuple):
    """What a claim says of one number: that it lies from `low` to `high`. Without a quantity, runs are missing."""

    words: str
    quantity: Quantity | None
    low: float = -math.inf
    high: float = math.inf
    group: str = ""  # parts of one width belong together

    def state(self, parts: int) -> State:
        """Where the interval lies, if the claim has this many parts."""
        if self.quantity is None:
            return "open"
        low, high = self.quantity.interval()
        if self.low <= low and high <= self.high:
            return "holds"
        low, high = self.quantity.interval(1 - (1 - LEVEL) / parts)
        outside = high < self.low or low > self.high
        return "fails" if outside and self.quantity.seeds >= MANY else "unsure"


def estimate(values: Sequence[float], documents: int) -> Estimate:
    """The mean over runs of one setting, which differ in their seeds, of a likelihood or an accuracy."""
    p, error = fmean(values), _of_documents(fmean(values), documents)
    spread, freedom = _of_seeds(values, documents)
    return Estimate(p, error + spread / len(values), freedom, len(values))


def from_paper(values: Sequence[float], documents: int, paper: float, papers_documents: int) -> Estimate:
    """The difference between the mean over our runs and the number of the paper, which counts as one more run."""
    ours, (spread, freedom) = estimate(values, documents), _of_seeds(values, documents)
    return ours - Estimate(paper, _of_documents(paper, papers_documents) + spread, freedom, len(values))


def estimate_share(runs: Sequence[tuple[float, float, float]], documents: int) -> Estimate:
    """The mean over runs of a restored share, from the likelihoods (original, corrupted, restored) of each.

    The three are of the same documents. What an intervention leaves to restore, or what it restores if that is less, is
    a mean of numbers between 0 and 1 over the documents, and so is the gap (original - corrupted).
    """
    shares, errors = [], []
    for original, corrupted, restored in runs:
        gap, rest = original - corrupted, min(abs(original - restored), abs(restored - corrupted))
        shares.append((restored - corrupted) / gap)
        errors.append((_of_documents(rest, documents) + (rest / gap) ** 2 * _of_documents(gap, documents)) / gap**2)
    spread, freedom = _of_seeds([min(1.0, max(0.0, share)) for share in shares], documents)
    return Estimate(fmean(shares), fmean(errors) + spread / len(runs), freedom, len(runs))


def student(level: float, freedom: int) -> float:
    """The quantile of Student's distribution that the two ends of an interval are away, by its expansion around z."""
    z, f = NormalDist().inv_cdf((1 + level) / 2), float(freedom)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / f**power for power, term in enumerate(terms, start=1))


def _even(p: float, documents: int) -> float:
    return (p * documents + EVEN / 2) / (documents + EVEN)


def _of_documents(p: float, documents: int) -> float:
    """The largest possible variance of a mean over this many documents."""
    p = _even(p, documents)
    return p * (1 - p) / documents


def _of_seeds(values: Sequence[float], documents: int) -> tuple[float, int]:
    """The variance of one run over seeds, and its degrees of freedom: the assumption and what was seen, pooled."""
    p, seen = _even(fmean(values), documents), len(values) - 1
    assumed = (SPREAD * p * (1 - p)) ** 2
    found = variance(values) if seen else 0.0
    return (PRIOR * assumed + seen * found) / (PRIOR + seen), PRIOR + seen


def _at_least(hits: int, of: int, p: float) -> float:
    """The probability of at least `hits` hits."""
    return sum(math.comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(hits, of + 1))


def _solve(is_below: Callable[[float], bool]) -> float:
    """The point of [0, 1] at which a condition that holds at 0 stops holding."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low
