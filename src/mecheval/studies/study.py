"""The parts of a study: a question, a grid of runs for each scale, readings and a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mecheval.sweep import Point

SCALES = ("laptop", "paper")


@dataclass(frozen=True)
class Reading:
    """A number that a study reads from a run's interventions, with its name and title."""

    name: str  # column of the study's table, e.g. restored_value
    title: str  # the title in tables and charts, e.g. restored at value
    site: str  # or a `Site`, where a chart shows readings layer by layer
    role: str
    column: str = "restored"  # of table effects: restored, attribution or share
    split: str = "test"


@dataclass(frozen=True)
class Study:
    """A question to a grid of runs.

    Learning rates are not of interest in themselves: for every other combination of axes the run with the highest dev
    accuracy counts (ties: dev likelihood), unless `every_rate` shows them all.
    """

    name: str
    figure: str  # number in the paper, or a dash
    question: str
    points: Callable[[str], list[Point]]  # by scale, for one seed
    draw: str | Callable[..., Any] = "panels"  # a figure of mecheval.figures by name, or (StudyTable, title) -> chart
    readings: Sequence[Reading] = field(default=())
    every_rate: bool = False
    splits: tuple[str, ...] = ("test",)
    prepare: Callable[..., None] | None = None  # (points, store, workers): computes what `columns` reads, once
    columns: Callable[..., Any] | None = None  # from the rows of its table and the store to more columns, by run
    kept: Callable[..., Any] | None = None  # (store, run) -> what a figure needs of a run that is no column, or None
    says: Callable[..., list[str]] | None = None  # from the StudyTable of all runs to sentences about them

    def __post_init__(self) -> None:
        for reading in self.readings:
            assert reading.split in self.splits, f"{self.name} reads split {reading.split} but does not ask for it"
