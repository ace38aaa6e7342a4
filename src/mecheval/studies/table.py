"""The table of a study, from the store: a row for each run of its grid, with its scores, readings and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mecheval.config import RunConfig
from mecheval.errors import UnknownName, UserError
from mecheval.store import Store
from mecheval.store.schema import AS_IN_THE_PAPER
from mecheval.store.store import snapshot_of
from mecheval.studies.axes import USUAL, ordered
from mecheval.studies.study import SCALES, Reading, Study
from mecheval.sweep import Point, only
from mecheval.sweep.driver import rows_of
from mecheval.types import carriers

if TYPE_CHECKING:  # slow to import
    import pandas as pd

STATUS = ("status", "step", "seconds", "dev_accuracy", "dev_likelihood", "test_accuracy", "test_likelihood")
"""Columns of a row that come from its run's status."""
GAP = {"original": "original", "corrupted": "corrupted"}
"""Likelihoods of the answer without an intervention, which every study reads, and their titles."""
RANK = ["dev_accuracy", "dev_likelihood"]
"""Columns that decide which of several runs is the best, in this order."""
STATE = "last"
"""The state of a run that studies report, as the paper does."""


@dataclass(frozen=True, eq=False)
class StudyTable:
    """A study's runs: `frame` has a row for each, with these columns in any order.

    - the `axes` that distinguish runs, e.g. mixer, d_conv, d_model, lr, seed;
    - `run`, and `STATUS`; a run that the store does not have has the status `missing`;
    - `original`, `corrupted` and the `readings` by name;
    - `verdict`, `agreement`, `chance` (what guessing without recall achieves) and `summary`; and the columns that the
      study adds.
    """

    study: Study
    axes: tuple[str, ...]
    readings: tuple[Reading, ...]
    frame: pd.DataFrame
    kept: Mapping[str, Any] = field(default_factory=dict)  # by run, what the study keeps of it that is no column

    @property
    def options(self) -> list[str]:
        """The axes that are options of the task or the mixer, such as d_conv."""
        return [axis for axis in self.axes if axis not in USUAL]

    @property
    def titles(self) -> dict[str, str]:
        """Every column of likelihoods, with its title: original, corrupted, then what the study reads."""
        return GAP | {reading.name: reading.title for reading in self.readings}

    def axis(self, name: str) -> list[Any]:
        """The different values of an axis, in the order in which tables and charts show them."""
        if name not in self.axes:
            raise UnknownName("axis", name, self.axes)
        return ordered(name, self.frame[name])

    def varying(self) -> list[str]:
        """The axes in which these runs differ."""
        return [axis for axis in self.axes if self.frame[axis].nunique(dropna=False) > 1]

    def where(self, **values: Any) -> StudyTable:
        """The rows whose axes have these values."""
        frame = self.frame
        for axis, value in values.items():
            frame = frame[frame[axis] == value]
        return replace(self, frame=frame)

    def best(self) -> StudyTable:
        """One run for each setting, chosen on dev among its learning rates; all of them if the study shows them all."""
        if self.study.every_rate or self.frame.empty:
            return self
        setting = [axis for axis in self.axes if axis != "lr"]
        return replace(self, frame=best_rows(self.frame, setting).reset_index(drop=True))


def best_rows(frame: pd.DataFrame, setting: Sequence[str]) -> pd.DataFrame:
    """One of the rows that agree in the columns `setting`: that with the highest dev accuracy, then dev likelihood.

    Only runs that are done compete. Where there is none (all diverged, failed or missing), the first stands for them.
    The order of the rows is kept.
    """
    done = frame["status"] == "done"
    scores = frame.assign(**{name: frame[name].where(done) for name in RANK})
    ranked = scores.sort_values(RANK, ascending=False, na_position="last", kind="stable")
    return frame.loc[ranked.groupby(list(setting), sort=False, dropna=False).head(1).sort_index().index]


def study_points(
    study: Study, scale: str, seeds: int = 1, wanted: Mapping[str, Sequence[Any]] = {}, rates: Sequence[float] = ()
) -> list[Point]:  # fmt: skip
    """The runs of a study: its grid with seeds 0, 1, ..., other learning rates if given, and only what is wanted."""
    if scale not in SCALES:
        raise UnknownName("scale", scale, SCALES)
    if seeds < 1:
        raise UserError(f"seeds: must be at least 1 (got {seeds}).")
    points = study.points(scale)
    if rates:
        points = [with_rate(point, rate) for point in one_rate(points) for rate in rates]
    points = [with_seed(point, seed) for point in points for seed in range(seeds)]
    return only(points, wanted)


def seeds_in(study: Study, scale: str, store: Store) -> int:
    """The number of seeds, counted from 0, that the store has of any run of a study; at least 1."""
    there, grid, seeds = {row["run"] for row in rows_of(store)}, study_points(study, scale), 1
    while any(with_seed(point, seeds).config.id in there for point in grid):
        seeds += 1
    return seeds


def study_table(study: Study, points: Sequence[Point], store: Store) -> StudyTable:
    """The table of these runs, from what the store has of them."""
    import pandas as pd

    tables = ("effects", "verdicts", "history") if study.columns else ("effects", "verdicts")
    store = snapshot_of(store, *tables, among={point.config.id for point in points})
    rows = {row["run"]: row for row in rows_of(store)}
    records, axes = [], dict[str, None]()
    for point in points:
        row, place = rows.get(point.config.id, {}), _axes(point)
        axes |= dict.fromkeys(place)
        scores = {name: row.get(name) for name in STATUS} | {"status": row.get("status", "missing")}
        records.append({**place, "run": point.config.id, **scores})
    frame = pd.DataFrame(records)
    numbers = [name for name in STATUS if name != "status"]
    frame[numbers] = frame[numbers].astype(float)
    frame = frame.join(_readings(study, frame, store), on="run").join(_verdicts(frame, store), on="run")
    if study.columns is not None:
        added = study.columns(frame, store)
        frame = frame.join(added, on="run")
    found = {run: study.kept(store, run) for run in frame["run"].unique()} if study.kept is not None else {}
    kept = {run: each for run, each in found.items() if each is not None}
    return StudyTable(study, tuple(axes), tuple(study.readings), frame, kept)


def restoring(store: Store, runs: Sequence[str]) -> pd.DataFrame:
    """By run, the role whose clean activation restores most at the input of block 1, with the share and its interval.

    Columns: role, share, share_low, share_high. A run that learnt nothing has no shares, and no row.
    """
    effects = snapshot_of(store, "effects", among=set(runs)).query(
        "select run, role, share_apart as share, share_low, share_high from effects "
        f"where state = '{STATE}' and split = 'test' and site = 'blocks.1.input' and share is not null "
        f"and {AS_IN_THE_PAPER}"
    )
    carried = effects[effects["run"].isin(runs) & effects["role"].isin(carriers(effects["role"]))]
    return carried.sort_values("share", ascending=False, kind="stable").drop_duplicates("run").set_index("run")


def _readings(study: Study, frame: pd.DataFrame, store: Store) -> pd.DataFrame:
    """The columns original, corrupted and the study's readings, by run."""
    import pandas as pd

    names = [*GAP, *(reading.name for reading in study.readings)]
    found = pd.DataFrame(index=pd.Index(frame["run"].unique(), name="run"), columns=names, dtype=float)
    if (frame["status"] == "missing").all():
        return found
    used = ", ".join(sorted({*GAP, *(reading.column for reading in study.readings)}))
    effects = store.query(
        f"select run, split, site, role, {used} from effects where state = '{STATE}' and {AS_IN_THE_PAPER}"
    )
    effects = effects[effects["run"].isin(found.index)]
    test = effects[effects["split"] == "test"].groupby("run").first()
    for name in GAP:
        found[name] = test[name].reindex(found.index)
    for reading in study.readings:
        here = effects[(effects["split"] == reading.split) & (effects["role"] == reading.role)]
        here = here[here["site"] == reading.site].set_index("run")[reading.column]
        found[reading.name] = here.reindex(found.index)
    return found


def _verdicts(frame: pd.DataFrame, store: Store) -> pd.DataFrame:
    """The columns verdict, agreement, chance and summary, by run."""
    import pandas as pd

    index = pd.Index(frame["run"].unique(), name="run")
    if (frame["status"] == "missing").all():
        return pd.DataFrame(index=index, columns=["verdict", "agreement", "chance", "summary"])
    found = store.query(
        "select run, label as verdict, agreement, chance, summary from verdicts "
        f"where state = '{STATE}' and split = 'test'"
    )
    return found.set_index("run").reindex(index)


def _axes(point: Point) -> dict[str, Any]:
    """The point's axes, and always mixer, d_model, lr and seed."""
    config = point.config
    usual = {"mixer": config.mixer.name, "d_model": config.model.d_model, "lr": config.optimiser.lr}
    return {**point.axes, **usual, "seed": config.seed}


def one_rate(points: Sequence[Point]) -> list[Point]:
    """One point of each set of points that differ only in the learning rate."""
    rest = {tuple((axis, value) for axis, value in point.axes.items() if axis != "lr"): point for point in points}
    return list(rest.values())


def with_rate(point: Point, rate: float) -> Point:
    """The same run with another learning rate."""
    return Point({**point.axes, "lr": rate}, point.config.with_rate(rate))


def on_device(point: Point, device: str) -> Point:
    """The same run on another device, which is another run: its last digits differ."""
    data = point.config.to_dict()
    data["machine"]["device"] = device
    return Point(point.axes, RunConfig.read(data))


def with_seed(point: Point, seed: int) -> Point:
    """The same run with another seed."""
    config = point.config if seed == point.config.seed else replace(point.config, seed=seed)
    return Point({**point.axes, "seed": seed}, config)
