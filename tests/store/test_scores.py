"""Scores are kept as one row per metric, and shown as one column per metric, also those of older runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mecheval.store import RunFolder, Store, StoreWarning
from mecheval.store.schema import EVALUATIONS
from mecheval.store.store import Snapshot
from mecheval.store.tables import MOST_METRICS, to_parquet
from mecheval.store.upkeep import verify
from store.examples import EVALUATION, ID, scores, write_run

OLDER = "f" * 12


def write_older(store: Store, *rows: dict[str, Any]) -> RunFolder:
    """A run as it was written before the long form: `evaluations.parquet` and no `scores.parquet`."""
    folder = write_run(store.folder(OLDER))
    with folder.exclusive():
        folder.set_status(status="running")
        folder.table("scores").unlink()
        wide = folder.path / "evaluations.parquet"
        folder.write_files({wide.name: to_parquet(EVALUATIONS, [{"run": OLDER, **row} for row in rows], wide)})
        folder.set_status(status="done")
    return folder


def test_older_runs_are_read_as_the_same_rows(tmp_path: Path) -> None:
    store = Store(tmp_path)
    older = write_older(store, EVALUATION, EVALUATION | {"split": "test", "loss": None})
    assert store.scores().drop(columns="run").to_dict("records") == [
        pytest.approx(row, nan_ok=True) for row in (
            *scores(**EVALUATION), *scores(**EVALUATION | {"split": "test", "loss": float("nan")})
        )
    ]  # fmt: skip
    assert older.read("evaluations")[0] == {"run": OLDER, **EVALUATION}
    write_run(store.folder(ID))
    both = store.evaluations()
    assert list(both["run"]) == [ID, ID, OLDER, OLDER]
    assert list(both["accuracy"]) == [0.25] * 4
    assert both["loss"].isna().tolist() == [False, False, False, True]
    assert [found.problems for found in verify(store)] == [("its config belongs to another run.",)] * 2  # and no more
    (older.path / "evaluations.parquet").unlink()
    with pytest.warns(StoreWarning, match=rf"run {OLDER} is left out: .*evaluations\.parquet is missing"):
        assert set(store.query("from scores")["run"]) == {ID}
    [problem] = older.problems()
    assert "evaluations.parquet is missing" in problem


def test_a_metric_of_a_plug_in_has_rows_and_a_column(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_older(store, EVALUATION)
    folder = write_run(store.folder(ID))
    odd = 'it\'s a "metric"'
    more: dict[str, Any] = {"rank": 3.5, odd: -1.0, "N": 7.0, "Loss": 8.0}
    with folder.exclusive():
        folder.write("scores", scores(**EVALUATION, **more))
    [mine, other] = store.evaluations().to_dict("records")
    assert list(mine) == ["run", "state", "step", "split", "likelihood", "accuracy", "loss", odd, "rank", "n"]
    assert (mine["loss"], mine[odd], mine["rank"], mine["n"]) == (0.7, -1.0, 3.5, 100)
    assert other["rank"] != other["rank"]
    assert set(store.scores()["metric"]) == {"likelihood", "accuracy", "loss", *more}
    assert store.query("select max(rank) as most from evaluations")["most"].tolist() == [3.5]
    assert folder.read("evaluations")[0]["rank"] == 3.5


def test_the_view_of_a_snapshot_is_within_limits(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = write_run(store.folder(ID))
    many = {f"metric_{i:04}": float(i) for i in range(MOST_METRICS + 5)}
    row = EVALUATION | {"accuracy": 7.0, "loss": 1e12}
    with folder.exclusive():
        folder.write("scores", [*scores(**row, **many), *scores(**row)])
    with pytest.warns(StoreWarning, match=r"3 rows of table scores are duplicates"):
        taken = Snapshot(store, ("runs", "evaluations"))
    [found] = taken.evaluations().to_dict("records")
    assert (found["likelihood"], found["n"]) == (0.5, 100)
    assert found["accuracy"] != found["accuracy"]
    assert found["loss"] != found["loss"]
    assert sum(name in many for name in found) == MOST_METRICS
    assert len(taken.scores()) == 3 + len(many)
