from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mecheval.store import Store
from mecheval.studies import STUDIES, StudyTable, restoring, study_points, study_table
from mecheval.sweep import Point


def put(store: Store, point: Point, accuracy: float, likelihood: float = 0.5, status: str = "done") -> None:
    """A run as if it had been trained and intervened on: what is read at a role is its number in the alphabet."""
    folder, config = store.folder(point.config.id), point.config
    with folder.exclusive():
        folder.write("history", [])
        folder.write("scores", [])
        if status == "done":
            place = {"state": "last", "step": 10, "split": "test"}
            rows = [
                {**place, "site": f"blocks.1.{site}", "role": role, "original": 0.9, "corrupted": 0.2, "n": 8,
                 "restored": i / 10, "attribution": i / 10 - 0.2, "share": 0.5 + i / 100, "share_low": 0.4,
                 "share_high": 0.6, "share_apart": 0.45 + i / 100}
                for site in ("input", "output") for i, role in enumerate(("key", "value", "query"), start=1)
            ]  # fmt: skip
            folder.write("effects", rows + [{**row, "state": "training", "restored": 0.0} for row in rows])
            verdict = {"label": "induction", "layer": 1, "stored_by": 0, "stored_at": "value", "agreement": 1.0}
            folder.write("verdicts", [{**place, **verdict, "summary": "in words", "evidence": "numbers"}])
        folder.set_status(
            status=status, task=config.task.name, mixer=config.mixer.name, lr=config.optimiser.lr, seed=config.seed,
            dev_accuracy=accuracy, dev_likelihood=likelihood, test_accuracy=accuracy, seconds=3.0, step=10,
        )  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Callable[[dict[float, tuple[Any, ...]]], StudyTable]:
    """Results of Mamba at one width, from what each learning rate is to give."""

    def make(by_rate: dict[float, tuple[Any, ...]]) -> StudyTable:
        store, study = Store(tmp_path), STUDIES["ar"]
        wanted: dict[str, list[Any]] = {"mixer": ["mamba"], "d_model": [128]}
        points = study_points(study, "laptop", wanted=wanted, rates=list(by_rate))
        for point in points:
            given = by_rate[point.axes["lr"]]
            if given:
                put(store, point, *given)
        return study_table(study, points, store)

    return make


def test_a_row_has_axes_scores_readings_and_verdict(made: Callable[..., StudyTable]) -> None:
    (row,) = made({1e-3: (0.75, 0.5)}).frame.to_dict("records")
    assert (row["mixer"], row["d_model"], row["lr"], row["seed"], row["status"]) == ("mamba", 128, 1e-3, 0, "done")
    assert (row["dev_accuracy"], row["original"], row["corrupted"]) == (0.75, 0.9, 0.2)
    assert [row[f"restored_{role}"] for role in ("key", "value", "query")] == [0.1, 0.2, 0.3]
    assert (row["verdict"], row["agreement"], row["summary"]) == ("induction", 1.0, "in words")


def test_what_is_not_there_is_missing_and_not_zero(made: Callable[..., StudyTable]) -> None:
    frame = made({1e-3: (), 3e-3: (0.5, 0.4), 1e-2: (0.1, 0.1, "diverged")}).frame
    missing, done, diverged = frame.to_dict("records")
    assert [row["status"] for row in (missing, done, diverged)] == ["missing", "done", "diverged"]
    for row in (missing, diverged):
        assert all(math.isnan(row[name]) for name in ("original", "corrupted", "restored_key"))
        assert not isinstance(row["verdict"], str)


def test_nothing_in_the_store_is_all_missing(made: Callable[..., StudyTable]) -> None:
    table = made({1e-3: (), 3e-3: ()})
    assert list(table.frame["status"]) == ["missing", "missing"]
    assert len(table.best().frame) == 1


def test_the_highest_dev_accuracy_is_chosen_and_likelihood_settles_ties(made: Callable[..., StudyTable]) -> None:
    table = made({1e-4: (0.9, 0.3), 1e-3: (0.9, 0.6), 3e-3: (0.8, 0.9), 1e-2: (), 3e-2: (0.2, 0.1, "diverged")})
    (best,) = table.best().frame.to_dict("records")
    assert best["lr"] == 1e-3


def test_a_study_of_rates_keeps_them_all(made: Callable[..., StudyTable]) -> None:
    table = replace(made({1e-4: (0.9, 0.3), 1e-3: (0.9, 0.6)}), study=STUDIES["ar_mamba_inside"])
    assert len(table.best().frame) == 2


def test_seeds_are_chosen_one_by_one(tmp_path: Path) -> None:
    study, store = STUDIES["ar"], Store(tmp_path)
    points = study_points(study, "laptop", seeds=2, wanted={"mixer": ["mamba"], "d_model": [128]})
    for point in points:
        better = point.axes["lr"] == (1e-3 if point.axes["seed"] else 3e-3)
        put(store, point, 0.9 if better else 0.1)
    found = study_table(study, points, store).best().frame
    assert {(row["seed"], row["lr"]) for row in found.to_dict("records")} == {(0, 3e-3), (1, 1e-3)}


def test_the_role_that_restores_most(tmp_path: Path) -> None:
    store, study = Store(tmp_path), STUDIES["ar"]
    done, diverged = study_points(study, "laptop", wanted={"mixer": ["mamba"], "d_model": [128]})
    put(store, done, 0.9)
    put(store, diverged, 0.1, status="diverged")
    found = restoring(store, [done.config.id, diverged.config.id])
    assert found.index.tolist() == [done.config.id]
    assert found.loc[done.config.id].to_dict() == {
        "role": "query", "share": pytest.approx(0.48), "share_low": 0.4, "share_high": 0.6,  # of the same documents
    }  # fmt: skip
    assert restoring(store, []).empty
