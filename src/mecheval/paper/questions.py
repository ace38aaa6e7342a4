"""Questions that test a claim of the paper, as data, and every limit that they rest on.

docs/studies.md says when the limits were fixed, and what was known then. `mecheval.paper.answers` puts the questions to
a study's table, and `mecheval.paper.estimates` says how an answer is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

TOLERANCE = 0.1
"""A number of ours agrees with the paper's if the two differ by less than this.

The paper has one seed and 320 documents. Near 0.9 the standard error of the difference of two such runs is about 4
points, of which 2.4 come from the documents: a smaller difference would mean nothing.
"""
NEAR_FLOOR = TOLERANCE
"""How far above guessing an accuracy may be and still count as a failure.

The paper's "near zero" includes guessing among the values of the document, which is right in 1 of 16 cases there.
"""
TIE = 0.02
"""A mixer is unbeaten if no other is better by more than this."""
LEARNT = 0.1
"""A run learnt to recall where original - corrupted is above this; where it is not, there is nothing to restore."""
RESTORED = 0.5
"""Share of (original - corrupted) from which a place counts as the one that restores a run."""
BENEFITS = 0.2
"""Restored share below which an intervention does not help: stricter than RESTORED, for claims that say "none"."""
SUCCEEDS = 0.5
"""Share of the way from guessing to 1 from which a model counts as one that can do the task."""
STEP = 0.5
"""Share of what the whole convolution gains over guessing that a step change must gain at once."""
ABOVE_80 = 0.8 - TOLERANCE
"""Accuracy that agrees with the paper's "above 80 %"."""
WELL_ABOVE_ZERO = 0.1
"""Corrupted likelihood on trees that counts as high: twice what guessing among 20 terminals gives."""
MOST = 0.5
"""Share of runs that "most" exceeds."""
DOCUMENTS = 320
"""Test documents of the paper."""


class Not(NamedTuple):
    """All rows but those with these values."""

    axes: Mapping[str, Any]


Where = Mapping[str, Any] | Not
"""A choice of rows by axis, such as `{"mixer": "mamba"}`; a tuple stands for any of its values."""


def success(floor: float) -> float:
    """The accuracy from which a model can do the task; `floor` is the accuracy of guessing."""
    return floor + SUCCEEDS * (1 - floor)


@dataclass(frozen=True)
class Number:
    """Is a setting's number within TOLERANCE of the paper's? Of several settings, the highest number, or `each`."""

    column: str
    paper: float
    where: Mapping[str, Any]
    each: bool = False


@dataclass(frozen=True)
class Runs:
    """Is a number of every setting, or of most runs, at least `least`, or below `below`?

    The number is a column, or its restored share: what of (original - corrupted) an intervention brings back; of
    several columns the highest counts. `among` says which runs count: those that are done, that ended (so that a
    diverged run counts as 0), or that learnt.
    """

    column: str | tuple[str, ...]
    words: str  # what evidence calls the number
    least: float | None = None
    below: float | None = None
    share: bool = True
    where: Where = field(default_factory=dict)
    among: Literal["done", "ended", "learnt"] = "learnt"
    mostly: bool = False


class Side(NamedTuple):
    """One side of a comparison; where it has several settings, each of them is compared."""

    where: Where
    column: str = "test_accuracy"
    name: str = ""  # default: the axes in words
    optional: bool = False  # left out if the grid has no such runs


@dataclass(frozen=True)
class Sides:
    """How do the sides compare, at every width (or in every other group)? Or, if `mostly`, in most pairs of runs?

    Only widths count where the `control` (a side by its index, None for any of them) does what `counts` says.
    """

    holds: Literal["above", "level or above", "succeeds", "others guess", "step"]
    sides: tuple[Side, ...]
    where: Where = field(default_factory=dict)
    counts: Literal["always", "succeeds", "learnt", "learnt on dev"] = "always"
    control: int | None = -1
    by: tuple[str, ...] = ("d_model",)
    mostly: bool = False


@dataclass(frozen=True)
class Second:
    """By the best number over all widths, is exactly one mixer above this one?"""

    mixer: str
    column: str


@dataclass(frozen=True)
class Layer:
    """Is attribution at the query highest in an `allowed` layer (-1: the last one) in most runs?

    Models of one layer have no choice, so they do not count. If `optional`, a mixer that did not learn is no gap.
    """

    mixer: str
    allowed: tuple[int, ...]
    optional: bool = False


Question = Number | Runs | Sides | Second | Layer
