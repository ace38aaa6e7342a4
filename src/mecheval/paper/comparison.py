"""Compares a study with the paper: its numbers cell by cell, where runs are restored, and the claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from mecheval.paper.arms import FLOOR, Arms, compare_arms, in_new_order
from mecheval.paper.claims import all_claims
from mecheval.paper.judging import Judged, Spread, judge_claims, spreads_in
from mecheval.paper.limits import BENEFITS, USUAL
from mecheval.paper.numbers import PUBLISHED, Setting, published, settings_of
from mecheval.store import Store
from mecheval.store.store import snapshot_of
from mecheval.studies import STUDIES, StudyTable, seeds_in, study_points, study_table
from mecheval.studies.table import GAP
from mecheval.sweep.driver import rows_of

if TYPE_CHECKING:  # slow to import
    import pandas as pd


CELLS = ("mixer", "lr", "d_model", "quantity", "ours", "low", "high", "seeds", "paper", "difference")
PATTERNS = ("mixer", "ours", "paper", "main", "learnt", "same")
NOT_LEARNT, NOWHERE = "not learnt", "nowhere"
SPELT_OUT = 6
"""Largest number of models that a pattern names; of more, it gives the count."""


@dataclass(frozen=True)
class Comparison:
    """A study's numbers beside the paper's; both tables are empty if the paper printed no numbers.

    `cells`: mixer, lr (NaN where it was chosen), d_model, quantity; ours (mean over seeds), low, high, seeds (how many
    have a number), paper, difference (ours - paper). All fractions; NaN where a side has no such cell.
    `patterns`: mixer; in words where our runs and the paper's are restored most; `main`, where most of the paper's are
    ("" where none of them learnt); of our `learnt` runs how many are restored most where the paper's are (`same`): at
    the paper's scale where its run of the same setting is, if that learnt, else at `main`.
    """

    study: str
    scale: str
    cells: pd.DataFrame
    patterns: pd.DataFrame

    @property
    def titles(self) -> dict[str, str]:
        return _titles(self.study)

    @property
    def agreement(self) -> str:
        """How many numbers agree: of those above the floor on either side, and of those near zero on both."""
        both = self.cells.dropna(subset=["difference"])
        near = both["difference"].abs() <= USUAL.tolerance + 1e-9
        above = both[["ours", "paper"]].max(axis=1) >= FLOOR
        return (
            f"{(near & above).sum()} of {above.sum()} numbers that are {FLOOR:.0%} or more on either side are within "
            f"{100 * USUAL.tolerance:g} points; {(~above).sum()} others are near zero on both sides."
        )


@dataclass(frozen=True)
class Compared:
    """The comparison of a study with the paper; `table` has all runs, not only the chosen ones.

    `shuffled` has the same runs with a new order in every epoch, as far as the store has them.
    """

    table: StudyTable
    shuffled: StudyTable
    settings: dict[str, Setting]
    spreads: dict[str, Spread]
    comparison: Comparison
    claims: list[Judged]

    @property
    def arms(self) -> Arms | None:
        """Both arms beside the paper's numbers, if it printed any."""
        name = self.table.study.name
        return compare_arms(name, self.table.best().frame, self.shuffled.best().frame) if name in PUBLISHED else None


def compare_studies(names: Sequence[str], store: Store, scale: str, seeds: int | None = None) -> list[Compared]:
    """Studies beside the paper's numbers and claims, by the runs of a store: with seeds 0, 1, ..., or all it has."""
    also = (other for claim in all_claims() if claim.study in names for other in claim.also)
    grids = {}
    for name in dict.fromkeys([*names, *also]):
        n = seeds_in(STUDIES[name], scale, store) if seeds is None else seeds
        grids[name] = study_points(STUDIES[name], scale, n)
    there = {row["run"] for row in rows_of(store)}
    both = [name for name in (*PUBLISHED, "atr") if name in names and scale == "paper"]  # figures that have both orders
    twins = {name: in_new_order(grids[name]) if name in both else [] for name in names}
    others = {name: [point for point in points if point.config.id in there] for name, points in twins.items()}
    asked = {p.config.id for points in (*grids.values(), *others.values()) for p in points}
    store = snapshot_of(store, "effects", "verdicts", among=asked)
    tables = {name: study_table(STUDIES[name], points, store) for name, points in grids.items()}
    shuffled = {
        name: study_table(STUDIES[name], others[name], store) if others[name] else replace(table, frame=table.frame[:0])
        for name, table in tables.items()
        if name in names
    }
    frames = {name: table.best().frame for name, table in tables.items()}
    settings = {name: settings_of(point.config for point in points) for name, points in grids.items()}
    spreads = spreads_in(rows_of(store), [setting for each in settings.values() for setting in each.values()])
    judged = judge_claims(frames, scale, settings, spreads)
    return [
        Compared(
            tables[name], shuffled[name], settings[name], {task: spreads[task] for task in settings[name]},
            compare(name, frames[name], scale), [one for one in judged if one.study == name],
        )
        for name in names
    ]  # fmt: skip


def compare(study: str, frame: pd.DataFrame, scale: str) -> Comparison:
    """A study's table of chosen runs beside the paper's numbers."""
    import pandas as pd

    if study not in PUBLISHED:
        return Comparison(study, scale, pd.DataFrame(columns=list(CELLS)), pd.DataFrame(columns=list(PATTERNS)))
    theirs = published(study).assign(seed=0, status="done")
    return Comparison(study, scale, _cells(study, frame, theirs), _patterns(study, frame, theirs, scale))


def _cells(study: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    figure = PUBLISHED[study]
    axes = list(dict.fromkeys(("mixer", *figure.axes)))
    place = [*axes, "quantity"]
    long = [
        frame[frame["status"] == "done"].melt([*axes, "seed"], list(figure.quantities), "quantity", "value")
        for frame in (ours, theirs)
    ]
    summary = long[0].groupby(place)["value"].agg(ours="mean", low="min", high="max", seeds="count").reset_index()
    cells = summary.merge(long[1].rename(columns={"value": "paper"})[[*place, "paper"]], "outer", place)
    cells["seeds"] = cells["seeds"].fillna(0).astype(int)
    cells["difference"] = cells["ours"] - cells["paper"]
    cells["order"] = cells["quantity"].map(figure.quantities.index)
    cells = cells.sort_values([*axes, "order"], ignore_index=True)
    return cells.reindex(columns=list(CELLS))


def _patterns(study: str, ours: pd.DataFrame, theirs: pd.DataFrame, scale: str) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for mixer in sorted({*ours["mixer"], *theirs["mixer"]}):
        mine, paper = (_places(study, frame[frame["mixer"] == mixer]) for frame in (ours, theirs))
        places = {run.name: run.place for run in paper if run.place not in (NOT_LEARNT, NOWHERE)}
        main = Counter(places.values()).most_common(1)
        top = main[0][0] if main else ""
        same_setting = places if scale == "paper" else {}
        learnt = [run for run in mine if run.place != NOT_LEARNT]
        same = sum(run.place == same_setting.get(run.name, top) for run in learnt)
        said = (_in_words(study, side) for side in (mine, paper))
        rows.append((mixer, *said, top, len(learnt), same))
    return pd.DataFrame(rows, columns=list(PATTERNS))


class _Run(NamedTuple):
    """Where a finished run is restored most."""

    name: str  # what distinguishes it, besides the seed
    seed: int
    place: str


def _places(study: str, frame: pd.DataFrame) -> list[_Run]:
    figure, found = PUBLISHED[study], []
    for row in frame[(frame["status"] == "done") & frame["original"].notna()].to_dict("records"):
        name = f"d {row['d_model']}" + (f" lr {row['lr']:g}" if "lr" in figure.axes else "")
        gap = row["original"] - row["corrupted"]
        top = max(figure.places, key=lambda place: row[place])
        if not gap > USUAL.lost:
            top = NOT_LEARNT
        elif any(math.isnan(row[place]) for place in figure.places):
            continue  # the run has scores, but not these effects
        elif (row[top] - row["corrupted"]) / gap < BENEFITS:
            top = NOWHERE
        found.append(_Run(name, row["seed"], top))
    return found


def _titles(study: str) -> dict[str, str]:
    return GAP | {reading.name: reading.title for reading in STUDIES[study].readings}


def _in_words(study: str, runs: list[_Run]) -> str:
    """value (d 64, d 128); not learnt (d 32); seeds are named where they disagree."""
    titles = _titles(study)
    seen: dict[str, set[str]] = {}
    for run in runs:
        seen.setdefault(run.name, set()).add(run.place)
    by_place: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: run.place == NOT_LEARNT):
        names = by_place.setdefault(titles.get(run.place, run.place).removeprefix("restored at "), [])
        name = run.name if len(seen[run.name]) == 1 else f"{run.name} seed {run.seed}"
        if name not in names:
            names.append(name)
    return "; ".join(
        f"{place} ({', '.join(names) if len(names) <= SPELT_OUT else f'{len(names)} models'})"
        for place, names in by_place.items()
    )
