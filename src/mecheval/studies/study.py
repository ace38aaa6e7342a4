"""What a study is: a question, a grid of runs for each scale, what is read off them, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mecheval.sweep import Point

if TYPE_CHECKING:  # both are slow to import
    import pandas as pd  # type: ignore[import-untyped]
    from altair.typing import ChartType

SCALES = ("laptop", "paper")


@dataclass(frozen=True)
class Reading:
    """A number read off a run's interventions, by the name of its column."""

    name: str  # e.g. restored_value
    site: str
    role: str
    column: str = "restored"  # of table effects: restored, attribution or share
    split: str = "test"


@dataclass(frozen=True)
class Study:
    """One of the paper's studies.

    Learning rates are not of interest in themselves: for every other combination of axes the run with the highest dev
    accuracy counts (ties: dev likelihood), unless `every_rate` shows them all.
    """

    name: str
    figure: str  # number in the paper
    question: str
    points: Callable[[str], list[Point]]  # by scale, for one seed
    draw: Callable[[pd.DataFrame, str], ChartType]  # the table of `chosen`, and a title
    readings: Sequence[Reading] = field(default=())
    every_rate: bool = False
    splits: tuple[str, ...] = ("test",)

    def __post_init__(self) -> None:
        for reading in self.readings:
            assert reading.split in self.splits, f"{self.name} reads split {reading.split} but does not ask for it"
