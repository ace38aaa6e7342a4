"""Learning rates that are searched for: on dev, the same again from the same seed, and never trained twice."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from mecheval.errors import UserError
from mecheval.store import Store
from mecheval.studies import get_study, study_points
from mecheval.studies.search import WINDOW, search
from mecheval.sweep import Point

pytest.importorskip("optuna", reason="the extra `dev` brings optuna")
BEST = {"attention": 1e-3, "mamba": 8e-3}


def grid() -> list[Point]:
    return study_points(get_study("ar"), "laptop", wanted={"mixer": list(BEST), "d_model": [64]})


class Trainer:
    """Trains nothing: a run is the better on dev the nearer its rate is to its mixer's best, and the worse on test."""

    def __init__(self, store: Store) -> None:
        self.store, self.trained = store, list[str]()

    def __call__(self, points: list[Point]) -> None:
        for point in points:
            folder = self.store.folder(point.config.id)
            if folder.path.exists():
                continue
            self.trained.append(point.config.id)
            far = abs(math.log10(point.axes["lr"] / BEST[point.axes["mixer"]]))
            with folder.exclusive():
                folder.write_files({"config.yaml": point.config.to_yaml().encode()})
                folder.set_status(
                    status="diverged" if point.axes["lr"] > 0.02 else "done", task="ar", mixer=point.axes["mixer"],
                    lr=point.axes["lr"], step=1, steps=1, config=point.config.to_dict(),
                    dev_accuracy=max(0.0, 1 - far), dev_likelihood=0.5, test_accuracy=min(1.0, far),
                )  # fmt: skip


def tried(store: Store, tries: int) -> tuple[list[Point], Trainer]:
    trainer = Trainer(store)
    return search(grid(), tries, WINDOW, trainer, store), trainer


def rates(points: list[Point], mixer: str) -> list[float]:
    return [point.axes["lr"] for point in points if point.axes["mixer"] == mixer]


def test_a_search_comes_near_the_best_rate_on_dev(tmp_path: Path) -> None:
    points, _ = tried(Store(tmp_path), 24)
    for mixer, best in BEST.items():
        found = rates(points, mixer)
        assert len(found) <= 24
        assert all(WINDOW[0] <= rate <= WINDOW[1] and rate == float(f"{rate:.1e}") for rate in found)
        nearest = sorted(abs(math.log10(rate / best)) for rate in found)
        assert nearest[0] < 0.1
        assert nearest[len(found) // 2] < 0.5 * math.log10(WINDOW[1] / WINDOW[0]) / 2  # not all over the window
    assert rates(points, "attention") != rates(points, "mamba")


def test_a_search_resumes_and_its_runs_are_the_same_anywhere(tmp_path: Path) -> None:
    whole, _ = tried(Store(tmp_path / "whole"), 8)
    store = Store(tmp_path / "parts")
    first, begun = tried(store, 5)
    assert [point.config.id for point in first] == [point.config.id for point in whole if point in first]
    again, went_on = tried(store, 8)
    assert {point.config.id for point in again} == {point.config.id for point in whole}
    assert not set(begun.trained) & set(went_on.trained)
    assert len(begun.trained) + len(went_on.trained) == len(whole)


def test_what_cannot_be_searched_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    for window in ([1e-3], [1e-2, 1e-3], [1e-3, 1e-3]):
        with pytest.raises(UserError, match=r"--search takes --lr LOWEST,HIGHEST"):
            search(grid(), 2, window, Trainer(store), store)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"optuna is not installed; pip install 'mecheval\[search\]'"):
        search(grid(), 2, WINDOW, Trainer(store), store)
