"""Questions that test a claim of the paper, as data, and every limit that they rest on.

The limits were fixed before any result was seen. `mecheval.paper.answers` puts the questions to a study's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

TOLERANCE = 0.05
"""A number of ours agrees with the paper's within this.

The paper has one seed and 320 documents: the standard error of a likelihood near 0.9 is 1.7 points, that of the
difference of two such numbers 2.4 points, and 5 points are about twice that. The paper reports no spread over seeds.
"""
TIE = 0.02
"""Two numbers of ours that differ by at most this are level: about one standard error of 320 documents near 0.9."""
LEARNT = 0.1
"""A run learnt to recall where original - corrupted is above this; where it is not, there is nothing to restore."""
RESTORED = 0.5
"""Share of (original - corrupted) from which a place counts as the one that restores a run."""
BENEFITS = 0.2
"""Restored share below which an intervention does not help: stricter than RESTORED, for claims that say "none"."""
NEAR_FLOOR = 0.05
"""How far above guessing an accuracy may be and still count as a failure.

The paper's "near zero" includes guessing among the values of the document, which is right in 1 of 16 cases there.
"""
SUCCEEDS = 0.5
"""Share of the way from guessing to 1 from which a model counts as one that can do the task."""
STEP = 0.5
"""Share of what the whole convolution gains over guessing that a step change must gain at once."""
ABOVE_80 = 0.8 - TOLERANCE
"""Accuracy that agrees with the paper's "above 80 %"."""
WELL_ABOVE_ZERO = 0.1
"""Corrupted likelihood on trees that counts as high: twice what guessing among 20 terminals gives."""
MOST = 0.9
"""Share of runs that stands for the paper's "9 of 10"; smaller scales have too few runs and need more than half."""


class Not(NamedTuple):
    """All rows but those with these values."""

    axes: Mapping[str, Any]


Where = Mapping[str, Any] | Not
"""A choice of rows by axis, such as `{"mixer": "mamba"}`; a tuple stands for any of its values."""
Enough = Callable[[int, int], bool]
"""Whether it is enough that so many (first) of all (second) hold."""
COMPARISONS: dict[str, Callable[[Sequence[float], float], bool]] = {
    "above": lambda v, floor: v[0] > v[1],
    "clearly above": lambda v, floor: v[0] - v[1] > TIE,
    "level or above": lambda v, floor: v[0] >= v[1] - TIE,
    "succeeds": lambda v, floor: succeeds(v[0], floor),
    "others guess": lambda v, floor: max(v[:-1]) <= floor + NEAR_FLOOR,
    "step": lambda v, floor: max(v[:2]) <= floor + NEAR_FLOOR and v[2] - v[1] >= STEP * (v[3] - floor),
}
"""Comparisons of the numbers of several sides, given the accuracy of guessing."""


def succeeds(accuracy: float, floor: float) -> bool:
    """Whether a model of this accuracy can do the task; `floor` is the accuracy of guessing."""
    return accuracy >= floor + SUCCEEDS * (1 - floor)


def most(holding: int, of: int) -> bool:
    """More than half."""
    return 2 * holding > of


@dataclass(frozen=True)
class Number:
    """Is a run's number within TOLERANCE of the paper's? Of several runs, the highest number counts."""

    column: str
    paper: float
    where: Mapping[str, Any]


@dataclass(frozen=True)
class Runs:
    """Is a number of every run, or of `enough` of them, at least `least`, or below `below`?

    The number is a column, or its restored share: what of (original - corrupted) an intervention brings back.
    `among` says which runs count: those that are done, that ended (so that a diverged run fails), or that learnt.
    """

    column: str
    words: str  # what evidence calls the number
    least: float | None = None
    below: float | None = None
    share: bool = True
    where: Where = field(default_factory=dict)
    among: Literal["done", "ended", "learnt"] = "learnt"
    enough: Enough | None = None
    instead: tuple[str, str] | None = None  # another column, and words, that evidence adds for exceptions


class Side(NamedTuple):
    """One side of a comparison: its best run, or its worst."""

    where: Where
    column: str = "test_accuracy"
    name: str = ""  # default: the axes in words
    worst: bool = False
    optional: bool = False  # left out if the grid has no such runs


@dataclass(frozen=True)
class Sides:
    """How do the sides compare, at every width (or in every other group), or at `enough` of them?

    Only widths count where the `control` (a side by its index, None for any of them) does what `counts` says.
    """

    holds: str  # one of COMPARISONS
    sides: tuple[Side, ...]
    where: Where = field(default_factory=dict)
    counts: Literal["always", "succeeds", "learnt", "learnt on dev"] = "always"
    control: int | None = -1
    by: tuple[str, ...] = ("d_model",)
    enough: Enough | None = None
    waits: bool = False  # a width is open until all of its runs have ended
    skips: bool = False  # a group with a diverged run does not count


@dataclass(frozen=True)
class Second:
    """By the best number over all widths, is exactly one mixer above this one?"""

    mixer: str
    column: str


@dataclass(frozen=True)
class Layer:
    """Is attribution at the query highest in layer `main` in most runs, and always in an `allowed` layer (-1: last)?

    Models of one layer have no choice, so they do not count. If `optional`, a mixer that did not learn is no gap.
    """

    mixer: str
    main: int
    allowed: tuple[int, ...]
    optional: bool = False


Question = Number | Runs | Sides | Second | Layer
