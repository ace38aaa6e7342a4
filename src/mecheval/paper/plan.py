"""The plan of runs at the paper's size, as data: what is wanted, why, and what is next by its value for claims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mecheval.paper.about import About
from mecheval.paper.arms import in_new_order
from mecheval.paper.claims import all_claims
from mecheval.paper.comparison import Compared
from mecheval.paper.estimates import MANY
from mecheval.paper.judging import Judged, answers_of
from mecheval.paper.limits import DOCUMENTS
from mecheval.paper.rows import AXES, Row, different, grouped, rows_of
from mecheval.paper.selection import Runs
from mecheval.store import Store
from mecheval.store.schema import WHOLE
from mecheval.studies import STUDIES, study_points, with_seed
from mecheval.studies.table import one_rate, with_rate
from mecheval.sweep import Estimate, Point
from mecheval.sweep.driver import rows_of as runs_of

ORDER = "the order of the paper's documents"
"""What runs in a new order are for."""
FIRST = (1e-3, 3e-3)
"""The rates of a setting of which no rate is known to be better; best first, of those that are."""
START, NOW = "2026-11-16", "2026-11-19"
CHANGES = {
    START: "fixed before its first run; four runs had been made to see how long they take",
    NOW: "widths 16 and 32 with seeds 1 and 2, three seeds of what fails, the newer mixers, the new order, and widths "
    "128 and 256 were added when all results published so far were known",
}  # fmt: skip
"""When the plan changed, and what was known then."""


@dataclass(frozen=True)
class Step:
    """Runs of a study with these values of axes: so many of the best rates of each setting, or `rates` themselves."""

    study: str
    why: str
    only: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...] = (0,)
    best: int = 2
    new_order: bool = False
    added: str = NOW


def _at(*widths: int, **axes: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    return {"d_model": widths, **axes}


PLAN = (
    Step("ar", "figure 3", _at(16, 32, 64), added=START),
    Step("ar_mamba_conv", "figure 4a", _at(32), added=START),
    Step("ar_based_conv", "figure 4b", _at(32), added=START),
    Step("atr", "figure 7", _at(32), added=START),
    Step("atr_mamba_conv", "figure 8", _at(32), added=START),
    *(Step(study, f"figure {STUDIES[study].figure}", _at(32), added=START)
      for study in ("one_layer", "depth", "position", "atr_holdout", "sibling")),
    Step("ar", "three seeds of figure 3", _at(16, 32), (1, 2), 1),
    Step("atr", "three seeds of figure 7", _at(32), (1, 2), 1),
    Step("newer", "the newer mixers beside the paper's", _at(32)),
    Step("ar", "figure 3 in a new order", _at(32, 64), new_order=True),
    Step("ar", "figure 3 at 128", _at(128)),
    Step("atr", "figure 7 at 64", _at(64)),
    Step("atr", "figure 7 at 128", _at(128)),
    *(Step(study, "three seeds of what fails", _at(32), (1, 2), 1) for study in ("ar_mamba_conv", "ar_based_conv")),
    Step("one_layer", "three seeds of what fails", _at(32, n_layers=(1,)), (1, 2), 1),
    *(Step(study, f"figure {STUDIES[study].figure} at 128", _at(128), best=1)
      for study in ("one_layer", "depth", "position", "atr_holdout", "sibling")),
    Step("grandparent", "the paper's future work", _at(32)),
    Step("ar", "figure 3 at 256", _at(256), best=1),
    Step("atr", "figure 7 at 256", _at(256), best=1),
    *(Step(study, f"figure {STUDIES[study].figure} at 64 and 128", _at(64, 128), best=1)
      for study in ("ar_mamba_conv", "ar_based_conv", "atr_mamba_conv")),
    Step("ar_mamba_inside", "figure 5, all rates", _at(16, 32, 64, 128, 256), best=0),
    Step("newer", "the newer mixers at 64", _at(64)),
    *(Step(study, "three seeds of what decides a claim", _at(64, 128), (1, 2), 1) for study in ("ar", "atr")),
)  # fmt: skip
"""What is wanted, in the order in which it was planned."""


@dataclass(frozen=True)
class Standing:
    """How far a step is: its runs, the seconds that those left take on one core, and the open claims they serve."""

    step: Step
    runs: int
    left: Mapping[str, float]
    points: Sequence[Point] = field(repr=False)
    claims: Sequence[str] = ()

    @property
    def hours(self) -> float:
        return sum(self.left.values()) / 3600

    @property
    def value(self) -> float:
        """Open claims that the runs serve, for each hour."""
        return len(self.claims) / self.hours if self.left else 0.0


def standings(compared: Sequence[Compared], store: Store) -> list[Standing]:
    """The steps of the plan, those with runs left by their value, then those that are done.

    `compared` are all studies of the paper with all of their runs.
    """
    rows = {row["run"]: row for row in runs_of(store)}
    estimate, waiting = Estimate(rows.values()), _waiting(compared)
    found = []
    for step in PLAN:
        points = list(_points(step, rows))
        left = {p.config.id: p for p in points if rows.get(p.config.id, {"status": None})["status"] not in WHOLE}
        seconds = {run: estimate.seconds(point.config) for run, point in left.items()}
        keys = {(_key(point), point.config.seed > 0) for point in left.values()}
        claims = [ORDER] if step.new_order else [name for name, wanted in waiting.items() if keys & wanted]
        found.append(Standing(step, len(points), seconds, list(left.values()), claims))
    return sorted(found, key=lambda each: (not each.left, -each.value))


def _key(point: Point) -> str:
    """The id of a setting: that of its run with the first rate and seed 0."""
    return with_seed(with_rate(point, FIRST[0]), 0).config.id


def _points(step: Step, rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Point]:
    """The runs of a step; the best rates are those of seed 0 in the same order, or of the next smaller width."""
    grid = study_points(STUDIES[step.study], "paper")
    known: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for point in grid if step.best else ():
        if (row := rows.get(point.config.id)) and row["status"] == "done":
            known.setdefault(_place(point), []).append((-row["dev_accuracy"], point.config.optimiser.lr))
    wanted = [p for p in grid if all(p.config.model.d_model in v if a == "d_model" else p.axes[a] in v
                                     for a, v in step.only.items())]  # fmt: skip
    for point in one_rate(wanted) if step.best else wanted:
        *rest, width = _place(point)
        near = [each for each in known if [*each[:-1]] == rest and each[-1] <= width]
        tried = [lr for _, lr in sorted(known[max(near, key=lambda place: place[-1])])] if near else []
        rates = list(dict.fromkeys([*tried, *FIRST]))[: step.best] if step.best else [point.config.optimiser.lr]
        for run in (with_seed(with_rate(point, rate), seed) for rate in rates for seed in step.seeds):
            yield in_new_order([run])[0] if step.new_order else run


def _place(point: Point) -> tuple[Any, ...]:
    """A setting: its axes but for the rate, the width last."""
    rest = [value for axis, value in sorted(point.axes.items()) if axis not in ("lr", "seed", "d_model")]
    return (*rest, point.config.model.d_model)


def _waiting(compared: Sequence[Compared]) -> dict[str, set[tuple[str, bool]]]:
    """For each open claim the settings that it waits for: a first run, or further seeds (True)."""
    judged = {one.claim: one for each in compared for one in each.claims}
    rows = {each.table.study.name: rows_of(each.table.best().frame) for each in compared}
    keys = {name: _keys(name) for name in rows}
    found = {}
    for claim in all_claims():
        if judged[claim.name].outcome in ("inconclusive", "not tested"):
            wanted = set[tuple[str, bool]]()
            for study, concerned in _concerned(claim.name, rows, judged):
                for place, cell in grouped(concerned, AXES).items():
                    seeds = len(different([row for row in cell if row["status"] in WHOLE], "seed"))
                    if seeds < MANY and (key := keys[study].get(place)):
                        wanted.add((key, seeds > 0))
            found[claim.name] = wanted
    return found


def _keys(study: str) -> dict[tuple[Any, ...], str]:
    points = one_rate(study_points(STUDIES[study], "paper"))
    rows: list[tuple[Row, Point]] = [
        ({**p.axes, "mixer": p.config.mixer.name, "d_model": p.config.model.d_model}, p) for p in points
    ]
    return {tuple(row.get(axis) for axis in AXES): _key(point) for row, point in rows}


def _concerned(
    name: str, rows: Mapping[str, list[Row]], judged: Mapping[str, Judged]
) -> Iterator[tuple[str, Sequence[Row]]]:
    """The runs that a claim is about, by their studies."""
    claim = next(each for each in all_claims() if each.name == name)
    runs = Runs(rows[claim.study], rows[claim.study], About(math.nan, DOCUMENTS), others=rows)
    about = [row for answer in answers_of(claim.test, runs) for row in answer.runs]
    for study in (claim.study, *claim.also):
        own = {id(row) for row in rows[study]}
        yield study, [row for row in about if id(row) in own]
