"""What counts for a claim besides runs; and numbers in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mecheval.paper import limits as fixed
from mecheval.paper.estimates import SPREAD, Estimate, Tally, estimate
from mecheval.paper.limits import Limits

NAMED = 4
"""Largest number of settings that the evidence names; it counts the others."""


class Named(NamedTuple):
    """A setting with its number."""

    name: str
    number: Estimate

    def __str__(self) -> str:
        return f"{self.name} {percents(self.number)}"


@dataclass(frozen=True)
class About:
    """What else counts: guessing's accuracy (NaN on trees), the documents of a number, limits, the spread of seeds."""

    floor: float
    documents: int
    limits: Limits = fixed.USUAL
    spread: float = SPREAD

    @property
    def success(self) -> float:
        """The accuracy from which a model can do the task."""
        return self.floor + fixed.SUCCEEDS * (1 - self.floor)

    @property
    def near_zero(self) -> float:
        """The accuracy up to which a model is near guessing."""
        return self.floor + self.limits.tolerance

    def mean(self, values: Sequence[float]) -> Estimate:
        """The mean over seeds."""
        return estimate(values, self.documents, self.spread)


def listed(names: Sequence[str]) -> str:
    """a; b; and 12 more"""
    few = names[:NAMED] if len(names) > NAMED + 1 else names
    return "; ".join(few) + (f"; and {len(names) - len(few)} more" if len(names) > len(few) else "")


def percents(number: Estimate) -> str:
    """97.5 % [95.1, 99.9]"""
    low, high = (100 * min(1.0, max(0.0, end)) for end in number.interval())
    return f"{100 * number.value:.1f} % [{low:.1f}, {high:.1f}]"


def tallied(tally: Tally) -> str:
    """9 of 10 [55 %, 100 %]"""
    low, high = tally.interval()
    return f"{tally.hits} of {tally.of} [{100 * low:.0f} %, {100 * high:.0f} %]"
