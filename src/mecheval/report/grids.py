"""Which studies a store has runs of, and those runs with every seed that is there."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mecheval.store import Store
from mecheval.store.store import snapshot_of
from mecheval.studies import STUDIES, Study, StudyTable, study_points, study_table, with_seed
from mecheval.sweep import Point

if TYPE_CHECKING:  # slow to import
    pass

MOST_SEEDS = 200
"""Seeds of a study that are shown, the smallest."""


@dataclass(frozen=True)
class Found:
    """A study that the store has runs of."""

    study: Study
    points: list[Point]  # its grid, with the seeds of which there is a run
    table: StudyTable  # a row for each of these points
    best: StudyTable  # those at the best learning rate

    @property
    def seeds(self) -> list[int]:
        """All of them, sorted."""
        return sorted({point.config.seed for point in self.points})


def found_studies(store: Store, scale: str) -> list[Found]:
    """The studies of which the store has runs, in the order of the paper.

    Studies share runs. One is shown, and each seed of it, only where it adds a run to those of the studies before it:
    else the seven runs of a quickstart would stand for half the paper.
    """
    store = snapshot_of(store, "effects", "verdicts")
    seeds: dict[str, set[int]] = defaultdict(set)
    for row in store.rows():
        config = row["config"]
        if config is not None and config.get("seed") is not None:
            seeds[_without_seed(config)].add(config["seed"])
    found: list[Found] = []
    shown: set[tuple[str, int]] = set()
    for study in STUDIES.values():
        grid = study_points(study, scale)
        own = {_without_seed(point.config.to_dict()) for point in grid}
        runs = {(config, seed) for config in own for seed in seeds.get(config, ())}
        there = sorted({seed for _, seed in runs - shown})[:MOST_SEEDS]
        shown |= runs
        points = [with_seed(point, seed) for seed in there for point in grid]
        if points:
            table = study_table(study, points, store)
            found.append(Found(study, points, table, table.best()))
    return found


def _without_seed(config: Mapping[str, Any]) -> str:
    """What runs that differ in their seed alone have in common."""
    return json.dumps({name: value for name, value in config.items() if name != "seed"}, sort_keys=True)
