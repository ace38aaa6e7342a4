"""How a claim is decided: by an interval for each number that it mentions, and by where that interval lies.

A claim is one or more parts, and a part says that a number lies in a range: an accuracy above 0.84, a difference of two
mixers above 0, a difference from the paper's number within 10 points. The number is estimated from our runs, with an
interval over what could have come out otherwise:

- Documents. A likelihood or accuracy p is a mean over n test documents. Numbers between 0 and 1 with the mean p have a
  variance of at most p (1 - p), so the mean has one of at most p (1 - p) / n. p is first moved towards 1/2 as by two
  right and two wrong answers more (Agresti and Coull), so that a run without mistakes has an error, too. Our seeds
  share their test documents, so more seeds do not make this part smaller.
- Seeds. Runs of one setting differ by their seeds, and a single run cannot say by how much. Until more is known, the
  standard deviation is SPREAD on the logit scale, SPREAD p (1 - p) on that of p; it counts for as much as PRIOR
  degrees of freedom. The settings of the same task that have three seeds or more are pooled with it (`spread_of`), and
  so is the variance over the setting's own seeds. An interval is Student's.
- The paper. Its number is one more run, with one seed and its own documents: its variance is added.

A part *holds* if its 95 % interval lies inside the range that the claim states, and *fails* if it lies outside. A
claim is reproduced if all its parts hold. It is contradicted if one part fails; because any of k parts could do so by
accident, the interval for this has the level 1 - 0.05 / k. So, where seeds spread as estimated, either decision is
wrong in at most 5 % of all cases. All else is inconclusive. Mixers at the edge of what they can learn fail with some
seeds and not with others, which no spread covers, and failing happens by accident, while learning does not. So fewer
than MANY seeds never contradict, and never show that something fails.

`tests/paper/test_error_rates.py` draws runs from known truths and counts the wrong decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, variance
from typing import Literal, NamedTuple, Protocol

LEVEL = 0.95
"""How often an interval holds the true value."""
SPREAD = 1 / 4
"""Assumed standard deviation over seeds, on the logit scale: 6 points at 50 %, 2 at 90 %, 0.2 at 99 %."""
PRIOR = 4
"""Degrees of freedom of this assumption: it counts as much as five seeds would."""
MANY = 3
"""Number of seeds needed to contradict a claim, or to show that something fails."""
EVEN = 4
"""Answers, half of them right, that are added to those of a run before its error is computed."""
MOST_SEEDS, MOST_RUNS = 12, 40
"""Largest numbers of seeds of a setting, and of runs, up to which it is computed how many would decide a part."""

Ends = tuple[float, float]
State = Literal["holds", "fails", "unsure", "open"]


class Quantity(Protocol):
    """What a part is about: anything that has an interval and a number of seeds behind it."""

    @property
    def seeds(self) -> int: ...

    def interval(self, level: float = LEVEL) -> Ends:
        """The low and the high end."""
        ...

    def more(self) -> Iterator[tuple[Quantity, str]]:
        """The same finding from more seeds or runs, the fewest first, and what these are."""
        ...


@dataclass(frozen=True)
class Estimate:
    """A number with the variance of its error.

    `fixed` is what more seeds do not lessen; `drawn` has, of each setting behind the number, the variance of one run
    over seeds, and how many there are.
    """

    value: float
    fixed: float
    drawn: tuple[tuple[float, int], ...]

    @property
    def seeds(self) -> int:
        return min(seeds for _, seeds in self.drawn)

    @property
    def freedom(self) -> int:
        return PRIOR + self.seeds - 1

    @property
    def variance(self) -> float:
        return self.fixed + sum(variance / seeds for variance, seeds in self.drawn)

    def interval(self, level: float = LEVEL) -> Ends:
        half = student(level, self.freedom) * math.sqrt(self.variance)
        return self.value - half, self.value + half

    def more(self) -> Iterator[tuple[Estimate, str]]:
        for seeds in range(self.seeds + 1, MOST_SEEDS + 1):
            yield replace(self, drawn=tuple((each, max(seeds, has)) for each, has in self.drawn)), f"{seeds} seeds"

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.value - other.value, self.fixed + other.fixed, self.drawn + other.drawn)

    def scaled(self, factor: float) -> Estimate:
        """The same number, scaled."""
        drawn = tuple((factor**2 * variance, seeds) for variance, seeds in self.drawn)
        return Estimate(factor * self.value, factor**2 * self.fixed, drawn)

    def shifted(self, by: float) -> Estimate:
        """The same number, shifted."""
        return replace(self, value=self.value + by)


@dataclass(frozen=True)
class Tally:
    """How many of some runs do what a claim says; the interval of their share is Clopper and Pearson's."""

    hits: int
    of: int
    seeds: int = MANY

    def interval(self, level: float = LEVEL) -> Ends:
        """The shares under which neither this number of hits or more, nor this number or fewer, would be rare."""
        rare = (1 - level) / 2
        low = 0.0 if self.hits == 0 else _solve(lambda p: at_least(self.hits, self.of, p) < rare)
        high = 1.0 if self.hits == self.of else _solve(lambda p: 1 - at_least(self.hits + 1, self.of, p) > rare)
        return low, high

    def more(self) -> Iterator[tuple[Tally, str]]:
        for of in range(self.of + 1, MOST_RUNS + 1):
            yield Tally(round(self.hits / self.of * of), of, MANY), f"{of} runs"


@dataclass(frozen=True)
class Apart:
    """The share of our runs less that of the paper's; the interval is Newcombe's, from Wilson's of both."""

    ours: Tally
    paper: Tally

    @property
    def seeds(self) -> int:
        return self.ours.seeds

    def interval(self, level: float = LEVEL) -> Ends:
        (p, low, high), (q, least, most) = (_wilson(each, level) for each in (self.ours, self.paper))
        return p - q - math.hypot(p - low, most - q), p - q + math.hypot(high - p, q - least)

    def more(self) -> Iterator[tuple[Apart, str]]:
        for tally, said in self.ours.more():
            yield Apart(tally, self.paper), said


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

    def more(self) -> Iterator[tuple[Count, str]]:
        for grown in zip(*(each.more() for each in self.differences), strict=False):
            yield Count(tuple(each for each, _ in grown)), grown[0][1]


class Part(NamedTuple):
    """What a claim says of one number: that it lies from `low` to `high`. Without a quantity, runs are missing."""

    name: str  # of a setting, or of what is missing
    quantity: Quantity | None
    low: float = -math.inf
    high: float = math.inf
    group: str = ""  # parts of one width belong together
    said: str = ""  # the number in words
    failing: bool = False  # it claims that something fails
    label: str = ""  # what it is about, if that is more than the name

    @property
    def words(self) -> str:
        return ": ".join(filter(None, (self.name, self.said)))

    def state(self, parts: int) -> State:
        """Where the interval lies, if the claim has this many parts."""
        if self.quantity is None:
            return "open"
        low, high = self.quantity.interval()
        many = self.quantity.seeds >= MANY
        if self.low <= low and high <= self.high:
            return "holds" if many or not self.failing else "unsure"
        low, high = self.quantity.interval(1 - (1 - LEVEL) / parts)
        return "fails" if many and (high < self.low or low > self.high) else "unsure"

    def margin(self) -> float:
        """How far the interval lies inside the range; negative if it reaches beyond. Infinite if runs are missing."""
        low, high = (math.inf, -math.inf) if self.quantity is None else self.quantity.interval()
        return min(low - self.low, self.high - high)

    def needs(self, parts: int) -> str | None:
        """The fewest seeds or runs that would decide it if they found the same; None if no number of them would."""
        more = () if self.quantity is None else self.quantity.more()
        found = (said for grown, said in more if self._replace(quantity=grown).state(parts) != "unsure")
        return next(found, None)


def estimate(values: Sequence[float], documents: int, spread: float = SPREAD) -> Estimate:
    """The mean over runs of one setting, which differ in their seeds, of a likelihood or an accuracy."""
    p = fmean(values)
    return Estimate(p, _of_documents(p, documents), ((_of_seeds(values, documents, spread), len(values)),))


def from_paper(
    values: Sequence[float], documents: int, paper: float, papers_documents: int, spread: float = SPREAD
) -> Estimate:
    """The difference between the mean over our runs and the number of the paper, which counts as one more run."""
    ours, one = estimate(values, documents, spread), _of_seeds(values, documents, spread)
    return replace(ours, value=ours.value - paper, fixed=ours.fixed + _of_documents(paper, papers_documents) + one)


def estimate_share(runs: Sequence[tuple[float, float, float]], documents: int, spread: float = SPREAD) -> Estimate:
    """The mean over runs of a restored share, from the likelihoods (original, corrupted, restored) of each.

    The three are of the same documents. What an intervention leaves to restore, or what it restores if that is less, is
    a mean of numbers between 0 and 1 over the documents, and so is the gap (original - corrupted).
    """
    shares, errors = [], []
    for original, corrupted, restored in runs:
        gap, rest = original - corrupted, min(abs(original - restored), abs(restored - corrupted))
        shares.append((restored - corrupted) / gap)
        errors.append((_of_documents(rest, documents) + (rest / gap) ** 2 * _of_documents(gap, documents)) / gap**2)
    drawn = _of_seeds([min(1.0, max(0.0, share)) for share in shares], documents, spread)
    return Estimate(fmean(shares), fmean(errors), ((drawn, len(runs)),))


def spread_of(settings: Sequence[Sequence[float]]) -> float:
    """The standard deviation over seeds on the logit scale: what was seen in these settings, pooled with SPREAD."""
    seen = [(len(values) - 1, variance(values) / _slope(fmean(values)) ** 2) for values in settings]
    total = PRIOR * SPREAD**2 + sum(freedom * each for freedom, each in seen)
    return math.sqrt(total / (PRIOR + sum(freedom for freedom, _ in seen)))


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


def _of_seeds(values: Sequence[float], documents: int, spread: float) -> float:
    """The variance of one run over seeds: the assumption and what was seen, pooled."""
    seen = len(values) - 1
    assumed = (spread * _slope(_even(fmean(values), documents))) ** 2
    return (PRIOR * assumed + (seen * variance(values) if seen else 0.0)) / (PRIOR + seen)


def _slope(p: float) -> float:
    """How much a likelihood or accuracy changes with its logit."""
    return p * (1 - p)


def _wilson(tally: Tally, level: float) -> tuple[float, float, float]:
    """A share with its interval by Wilson's score."""
    z, n, p = NormalDist().inv_cdf((1 + level) / 2), tally.of, tally.hits / tally.of
    middle, half = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return p, (middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)


def at_least(hits: int, of: int, p: float) -> float:
    """The probability of at least `hits` hits."""
    return sum(math.comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(hits, of + 1))


def _solve(is_below: Callable[[float], bool]) -> float:
    """The point of [0, 1] at which a condition that holds at 0 stops holding."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low
