"""Study inside: its columns are what `reads` says of the run's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import mecheval as me
from mecheval.analysis.runs import documents, load_run
from mecheval.figures import draw
from mecheval.store import Store
from mecheval.studies import StudyTable, get_study, study_points
from mecheval.studies.inside import DOCUMENTS, READS, reads_of


def test_columns_come_from_the_weights(tmp_path: Path) -> None:
    few: dict[str, Any] = {"data.documents": None, "evaluate.documents": 16, "batch_size": 4, "steps": 2}
    config = me.run_config("ar", "mamba", pairs=2, keys=4, values=4, d_model=8, **few)
    folder, store = me.train(config, tmp_path), Store(tmp_path)
    frame = pd.DataFrame({"run": [config.id, "0" * 12], "status": ["done", "missing"]})
    found = reads_of(frame, store)
    trained = load_run(folder)
    clean, _ = documents(trained.task, config, "test", DOCUMENTS)
    expected = me.reads(trained.lm, clean).table(["value", "key", "next_key"])
    for row in expected.to_dict("records"):
        assert found.loc[config.id, f"layer_{row['layer']}_{row['role']}"] == pytest.approx(row["share"])
    assert found.loc["0" * 12].isna().all()


def test_the_figure_shows_means_and_what_is_missing() -> None:
    rows = [
        {"mixer": mixer, "d_model": 128, "lr": 1e-3, "seed": seed, "status": "done", "run": f"{mixer}{seed}",
         **dict.fromkeys(READS, share)}
        for mixer, seed, share in [("attention", 0, 0.2), ("attention", 1, 0.4), ("mamba", 0, float("nan"))]
    ]  # fmt: skip
    table = StudyTable(get_study("inside"), ("mixer", "d_model", "lr", "seed"), (), pd.DataFrame(rows))
    drawn = draw(table, "What?")
    cells = [row for rows in drawn.spec["datasets"].values() for row in rows]
    assert {row["mixer"] for row in cells} == {"attention"}
    assert {row["share"] for row in cells} == {0.3}
    assert "attention, layer 0: most from value (0.30)" in drawn.description


def test_its_runs_are_those_of_newer() -> None:
    ids = {point.config.id for point in study_points(get_study("newer"), "laptop")}
    assert {point.config.id for point in study_points(get_study("inside"), "laptop")} < ids
