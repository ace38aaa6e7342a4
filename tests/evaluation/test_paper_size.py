"""Which runs an evaluation at the paper's size has, and what it gives back in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mecheval as me
from evaluation.faulty import Good
from mecheval.config import RunConfig
from mecheval.errors import UserError
from mecheval.evaluation.paper_size import Asked
from mecheval.evaluation.result import PaperEvaluation
from mecheval.mixers import MIXERS
from mecheval.store import Store
from mecheval.store.folder import RunFolder
from mecheval.sweep import Point


@pytest.fixture(autouse=True)
def good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MIXERS, "_classes", {**MIXERS._classes, "Good": Good})


def finished(store: Path, point: Point, accuracy: float, status: str = "done") -> None:
    config = point.config
    folder = RunFolder(store / "runs" / config.id)
    folder.path.mkdir(parents=True)
    folder.write("history", [])
    folder.write("scores", [])
    folder.seal({
        **folder.status(), "run": config.id, "status": status, "task": config.task.name, "mixer": config.mixer.name,
        "d_model": config.model.d_model, "n_layers": 2, "lr": config.optimiser.lr, "seed": config.seed,
        "dev_accuracy": accuracy, "dev_likelihood": accuracy, "config": config.to_dict(),
    })  # fmt: skip


def test_pairs_come_first_and_every_run_may_end_early(tmp_path: Path) -> None:
    points = Asked("Good", {}, widths=(16, 32), seeds=2).points(Store(tmp_path))
    configs = [point.config for point in points]
    assert [config.task.name for config in configs] == ["ar"] * 8 + ["atr"] * 8
    assert [(config.model.d_model, config.seed, config.optimiser.lr) for config in configs[:4]] == [
        (16, 0, 1e-3), (16, 0, 3e-3), (16, 1, 1e-3), (16, 1, 3e-3),
    ]  # fmt: skip
    assert all(config.evaluate.early for config in configs)
    assert {config.data.steps for config in configs} == {50_016, 100_032}, "the schedule is the paper's"


@pytest.mark.parametrize(
    ("accuracies", "more"),
    [((0.9, 0.8), [3e-4]), ((0.8, 0.9), [1e-2]), ((0.99, 0.8), []), ((0.8, 1.0), []), ((0.01, 0.0), [3e-4])],
)
def test_the_next_rate_outward_follows_where_the_best_has_not_solved_the_task(
    tmp_path: Path, accuracies: tuple[float, ...], more: list[float]
) -> None:
    asked, store = Asked("Good", {}, tasks=("ar",)), Store(tmp_path)
    points = asked.points(store)
    for point, accuracy in zip(points, accuracies, strict=True):
        finished(tmp_path, point, accuracy)
    assert [point.config.optimiser.lr for point in asked.outward(points, store)] == more


def test_a_rate_that_diverged_is_not_the_best_and_given_rates_are_all(tmp_path: Path) -> None:
    asked, store = Asked("Good", {}, tasks=("ar",)), Store(tmp_path)
    points = asked.points(store)
    finished(tmp_path, points[0], 0.5)
    finished(tmp_path, points[1], 0.9, status="diverged")
    [point] = asked.outward(points, store)
    assert point.config.optimiser.lr == 3e-4
    assert point.config.evaluate.early
    given = Asked("Good", {}, tasks=("ar",), rates=(1e-3,))
    assert given.outward(given.points(store), store) == []


def test_a_run_to_the_last_step_is_taken_instead(tmp_path: Path) -> None:
    asked = Asked("Good", {}, tasks=("ar",), rates=(1e-3,))
    [point] = asked.points(Store(tmp_path))
    data: dict[str, Any] = point.config.to_dict()
    del data["evaluate"]["early"]
    whole = Point(point.axes, RunConfig.read(data))
    finished(tmp_path, whole, 0.5)
    assert asked.points(Store(tmp_path)) == [whole]


def test_python_gives_the_sentence_the_table_and_the_placings(tmp_path: Path) -> None:
    short = {"steps": 10, "evaluate.every": 5, "evaluate.documents": 16}
    result = me.evaluate(Good, "ar", scale="paper", lr=1e-3, options=short, store=tmp_path)
    assert isinstance(result, PaperEvaluation)
    [sentence], [place] = result.sentences, result.placings
    assert sentence.startswith("Good was trained for only 5 of 50,016 steps on pairs at width 32")
    assert sentence in str(result)
    assert f"<strong>{sentence}</strong>" in result._repr_html_()
    assert set(result.table["task"]) == {"ar"}
    assert list(result.table["mixer"]) == list(place.frame["mixer"])
    assert [line.startswith("▸") for line in str(result).splitlines()].count(True) == 1
    assert len(result.plot().spec["datasets"]) > 0
    with pytest.raises(UserError, match=r"nothing was evaluated on atr .* Choices: ar at width 32\."):
        result.plot("atr")
