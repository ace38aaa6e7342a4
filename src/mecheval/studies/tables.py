"""The table of a study, from the store: a row for each run of its grid, with what is read off it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mecheval.config import RunConfig
from mecheval.errors import UnknownName, UserError
from mecheval.store import Store
from mecheval.store.snapshot import snapshot_of
from mecheval.studies.study import SCALES, Study
from mecheval.sweep import Point, only
from mecheval.sweep.sweeping import rows_of
from mecheval.types import CARRIERS

if TYPE_CHECKING:  # both are slow to import
    import pandas as pd  # type: ignore[import-untyped]
    from altair.typing import ChartType

SCORES = ("status", "step", "seconds", "dev_accuracy", "dev_likelihood", "test_accuracy", "test_likelihood")
STATE = "last"
"""The state that is reported, as in the paper."""


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
        points = [_with_rate(point, rate) for point in _one_rate(points) for rate in rates]
    points = [with_seed(point, seed) for point in points for seed in range(seeds)]
    return only(points, wanted)


def results(study: Study, points: Sequence[Point], store: Store) -> pd.DataFrame:
    """A row for each run: its axes, its status (`missing` where the store has none), its scores and readings."""
    import pandas as pd

    store = snapshot_of(store, "effects", "verdicts", among={point.config.id for point in points})
    rows = {row["run"]: row for row in rows_of(store)}
    records = []
    for point in points:
        row = rows.get(point.config.id, {})
        scores = {name: row.get(name) for name in SCORES} | {"status": row.get("status", "missing")}
        records.append({**_axes(point), "run": point.config.id, **scores})
    frame = pd.DataFrame(records)
    numbers = [name for name in SCORES if name != "status"]
    frame[numbers] = frame[numbers].astype(float)
    return frame.join(_readings(study, frame, store), on="run").join(_verdicts(frame, store), on="run")


def chosen(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """For each combination of axes but the learning rate: the run with the highest dev accuracy, then likelihood.

    Where no run of a combination has an accuracy (all diverged, failed or missing), its first row stands for it.
    """
    if study.every_rate or frame.empty:
        return frame
    columns = list(frame.columns)
    axes = [name for name in columns[: columns.index("run")] if name != "lr"]
    ranked = frame.sort_values(["dev_accuracy", "dev_likelihood"], ascending=False, na_position="last", kind="stable")
    best = ranked.groupby(axes, sort=False, dropna=False).head(1)
    return best.sort_index().reset_index(drop=True)


def restoring(store: Store, runs: Sequence[str]) -> pd.DataFrame:
    """By run, the role whose clean activation restores most at the input of block 1, with the share and its interval.

    Columns: role, share, share_low, share_high. A run that learnt nothing has no shares, and no row.
    """
    effects = snapshot_of(store, "effects", among=set(runs)).query(
        "select run, role, share, share_low, share_high from effects "
        f"where state = '{STATE}' and split = 'test' and site = 'blocks.1.input' and share is not null"
    )
    carried = effects[effects["run"].isin(runs) & effects["role"].isin(CARRIERS)]
    return carried.sort_values("share", ascending=False, kind="stable").drop_duplicates("run").set_index("run")


def charts(study: Study, frame: pd.DataFrame, store: Store, scale: str) -> dict[str, ChartType]:
    """The study's figure and its learning curves, by the name of their files; `frame` has every run."""
    from mecheval.figures import curves

    about = f"(figure {study.figure}, scale {scale})"
    store = snapshot_of(store, "history", among=set(frame["run"]))
    history = store.query("select * from history") if (frame["status"] != "missing").any() else frame[:0]
    drawn = {f"{study.name}-{scale}": study.draw(chosen(study, frame), f"{study.question} {about}")}
    if len(history):
        drawn[f"{study.name}-{scale}-curves"] = curves(history, frame, f"{study.name}: learning curves {about}")
    return drawn


def _readings(study: Study, frame: pd.DataFrame, store: Store) -> pd.DataFrame:
    """original, corrupted and the study's readings, by run."""
    import pandas as pd

    names = ["original", "corrupted", *(reading.name for reading in study.readings)]
    found = pd.DataFrame(index=pd.Index(frame["run"].unique(), name="run"), columns=names, dtype=float)
    if (frame["status"] == "missing").all():
        return found
    effects = store.query(f"select * from effects where state = '{STATE}'")
    effects = effects[effects["run"].isin(found.index)]
    test = effects[effects["split"] == "test"].groupby("run").first()
    for name in ("original", "corrupted"):
        found[name] = test[name].reindex(found.index)
    for reading in study.readings:
        here = effects[(effects["split"] == reading.split) & (effects["role"] == reading.role)]
        here = here[here["site"] == reading.site].set_index("run")[reading.column]
        found[reading.name] = here.reindex(found.index)
    return found


def _verdicts(frame: pd.DataFrame, store: Store) -> pd.DataFrame:
    """verdict, agreement and summary, by run."""
    import pandas as pd

    index = pd.Index(frame["run"].unique(), name="run")
    if (frame["status"] == "missing").all():
        return pd.DataFrame(index=index, columns=["verdict", "agreement", "summary"])
    found = store.query(
        f"select run, label as verdict, agreement, summary from verdicts where state = '{STATE}' and split = 'test'"
    )
    return found.set_index("run").reindex(index)


def _axes(point: Point) -> dict[str, Any]:
    """The point's axes, and always mixer, d_model, lr and seed."""
    config = point.config
    usual = {"mixer": config.mixer.name, "d_model": config.model.d_model, "lr": config.optimiser.lr}
    return {**point.axes, **usual, "seed": config.seed}


def _one_rate(points: Sequence[Point]) -> list[Point]:
    """One of the points that differ in the learning rate only."""
    rest = {tuple((axis, value) for axis, value in point.axes.items() if axis != "lr"): point for point in points}
    return list(rest.values())


def _with_rate(point: Point, rate: float) -> Point:
    data = point.config.to_dict()
    data["optimiser"]["lr"] = rate
    return Point({**point.axes, "lr": rate}, RunConfig.read(data))


def with_seed(point: Point, seed: int) -> Point:
    """The same run with another seed."""
    config = point.config if seed == point.config.seed else replace(point.config, seed=seed)
    return Point({**point.axes, "seed": seed}, config)
