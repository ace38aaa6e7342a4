"""Study landscape: kept once for each run, numbers that follow from what is kept, and hypotheses that can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mecheval as me
from mecheval.errors import UserError
from mecheval.figures import draw
from mecheval.store import Store
from mecheval.studies import StudyTable, get_study, study_points
from mecheval.studies import landscape as module
from mecheval.studies.landscape import COLUMNS, FOLDER, columns, kept, look, says
from mecheval.sweep import Point

SIDE = [-1.0, 0.0, 1.0]


def found(top: float, sharpness: float) -> dict[str, list[list[float]]]:
    """A plane whose loss grows from its middle, a line over a hill of this height, and an edge of 100."""
    return {
        "plane": [[a, b, 0.1 + a * a + b * b] for b in SIDE for a in SIDE],
        "line": [[0, 2.0], [0.5, top], [1, 0.1], [1.5, 9.0]],
        "sharpness": [[10, 1.5, 20.0, 100.0], [20, 0.1, sharpness, 100.0]],
    }


def table(tmp_path: Path, **landscapes: Any) -> StudyTable:
    """Runs of some mixers with these landscapes; None stands for one that has not been looked at."""
    (tmp_path / FOLDER).mkdir(parents=True, exist_ok=True)
    rows = []
    for i, (mixer, each) in enumerate(landscapes.items()):
        run = f"{i:012x}"
        rows.append({"mixer": mixer, "d_model": 64, "lr": 1e-3, "seed": 0, "run": run, "status": "done",
                     "test_accuracy": 0.9})  # fmt: skip
        if each is not None:
            (tmp_path / FOLDER / f"{run}.json").write_text(each if isinstance(each, str) else json.dumps(each))
    frame = pd.DataFrame(rows)
    frame = frame.join(columns(frame, Store(tmp_path)), on="run")
    there = {run: each for run in frame["run"] if (each := kept(Store(tmp_path), run)) is not None}
    return StudyTable(get_study("landscape"), ("mixer", "d_model", "lr", "seed"), (), frame, there)


def test_numbers_follow_from_what_is_kept(tmp_path: Path) -> None:
    made = table(tmp_path, attention=found(3.0, 150.0), mamba=found(1.0, 10.0), h3=None)
    numbers = made.frame.set_index("mixer")[list(COLUMNS)]
    assert list(numbers.loc["attention"]) == pytest.approx([1.5, 1.5, 20])  # what lies beyond the end does not count
    assert list(numbers.loc["mamba"]) == pytest.approx([1.0, 0.2, 10])
    assert numbers.loc["h3"].isna().all()
    nothing = draw(table(tmp_path / "new", h3=None), "What?")  # nothing has been looked at, and a report shows that
    assert not any(nothing.spec["datasets"][name] for name in ("rows0", "rows2"))
    first, second, *_ = says(made)
    assert "attention, lr 0.001, seed 0: on the line from start to end the loss rises to 1.50 of its start" in first
    assert "mamba, lr 0.001, seed 0: on the line from start to end the loss never rises above its start" in second
    drawn = draw(made, "What?")
    rows = [row for rows in drawn.spec["datasets"].values() for row in rows]
    assert {row["mixer"] for row in rows if "part" in row} == {"attention", "mamba"}
    assert {(row["mixer"], row["share"]) for row in rows if "step" in row} >= {("attention", 1.5), ("mamba", 0.2)}
    assert "never rises above its start" in drawn.description


@pytest.mark.parametrize(("top", "sharpness", "outcomes"), [(1.0, 200.0, "holds"), (3.0, 50.0, "contradicted")])
def test_hypotheses(tmp_path: Path, top: float, sharpness: float, outcomes: str) -> None:
    mixers = ("attention", "base_conv", "based", "delta_net", "h3", "hyena", "mamba")
    line, edge = says(table(tmp_path, **dict.fromkeys(mixers, found(top, sharpness))))[-2:]
    assert f"in most runs: {outcomes} (" in line
    assert f"Training reaches the edge of stability under AdamW, in most runs: {outcomes} (" in edge


@pytest.mark.parametrize(
    "text", ["", "[]", '{"plane": 1}', json.dumps({**found(1, 1), "line": [["a", "b"]]}),
             json.dumps({**found(1, 1), "plane": [[0, 0, 1]] * 5}), json.dumps(found(1, float("nan")))],
)  # fmt: skip
def test_a_file_of_another_kind_is_not_read(tmp_path: Path, text: str) -> None:
    assert table(tmp_path, attention=text, mamba=found(1, 1)).frame["edge"].notna().tolist() == [False, True]


def test_a_run_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few: dict[str, Any] = {"data.documents": None, "evaluate.documents": 16, "batch_size": 4, "steps": 2}
    config = me.run_config("ar", "attention", pairs=2, keys=4, values=4, d_model=8, **few)
    me.train(config, tmp_path)
    store, points = Store(tmp_path), [Point({}, config)]
    with monkeypatch.context() as broken:  # a process that fails at once; one with torch takes seconds to start
        fails = [sys.executable, "-Sc", "import sys; sys.exit('a warning\\nlandscape: give along >= 0')"]
        broken.setattr(module, "program", lambda *words: (fails, {}))
        with pytest.raises(UserError, match=f"^landscape of run {config.id}: landscape: give along >= 0"):
            look(points, store)
    look(points, store)
    first = kept(store, config.id)
    assert first is not None
    assert first["sharpness"][:, 0].tolist() == [1, 2]  # before the first step, AdamW has no moments
    assert (first["plane"].shape, len(first["line"])) == ((225, 3), 31)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it is there"))
    look(points, store)
    again = kept(store, config.id)
    assert again is not None
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_its_runs_are_those_of_convergence() -> None:
    ids = {point.config.id for point in study_points(get_study("convergence"), "laptop")}
    mine = {point.config.id for point in study_points(get_study("landscape"), "laptop")}
    assert len(mine) == 7
    assert mine < ids
