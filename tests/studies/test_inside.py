"""Study inside: its columns are what `reads` says of the run's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import mecheval as me
from mecheval.analysis.runs import documents, load_run
from mecheval.figures import draw
from mecheval.mixers.options import BUILT_IN
from mecheval.store import Store
from mecheval.studies import StudyTable, get_study, study_points
from mecheval.studies.inside import CHANGES, DOCUMENTS, NORMS, READS, hypotheses, read_off, says


def test_columns_come_from_the_weights(tmp_path: Path) -> None:
    few: dict[str, Any] = {"data.documents": None, "evaluate.documents": 16, "batch_size": 4, "steps": 2}
    config, worse = (me.run_config("ar", "mamba", pairs=2, keys=4, values=4, d_model=8, lr=r, **few) for r in (1, 2))
    folder, store = me.train(config, tmp_path), Store(tmp_path)
    me.train(worse, tmp_path)
    frame = pd.DataFrame({"run": [worse.id, config.id, "0" * 12], "status": ["done", "done", "missing"],
                          "mixer": "mamba", "d_model": 8, "seed": [0, 0, 1], "dev_accuracy": [0.2, 0.3, None],
                          "dev_likelihood": [0.2, 0.2, None]})  # fmt: skip
    found = read_off(frame, store)
    assert found.loc[worse.id].isna().all(), "only the better learning rate counts"
    trained = load_run(folder)
    clean, _ = documents(trained.task, config, "test", DOCUMENTS)
    seen = me.reads(trained.lm, clean)
    for row in seen.table(["value", "key", "next_key"]).to_dict("records"):
        assert found.loc[config.id, f"layer_{row['layer']}_{row['role']}"] == pytest.approx(row["share"])
    rows, value, query = range(len(clean)), clean.roles["value"], clean.roles["query"]
    changes = (seen.changes[1, rows, value] / seen.norms[1, rows, value]).mean()
    assert found.loc[config.id, "layer_1_change_value"] == pytest.approx(float(changes))
    assert found.loc[config.id, "layer_0_norm"] == pytest.approx(float(seen.norms[0, rows, query].mean()))
    assert found.loc["0" * 12].isna().all()


def table(*runs: tuple[str, int, float, float, str]) -> StudyTable:
    """Runs of a mixer and seed, all of whose shares and changes are one number each, and their verdicts."""
    rows = [
        {"mixer": mixer, "d_model": 128, "lr": 1e-3, "seed": seed, "status": "done", "run": f"{mixer}{seed}",
         "verdict": verdict, **dict.fromkeys(READS, share), **dict.fromkeys((*CHANGES, *NORMS), change)}
        for mixer, seed, share, change, verdict in runs
    ]  # fmt: skip
    return StudyTable(get_study("inside"), ("mixer", "d_model", "lr", "seed"), (), pd.DataFrame(rows))


NAN = float("nan")


def test_the_figure_shows_means_and_what_is_missing() -> None:
    runs = [("attention", 0, 0.2, NAN, "induction"), ("attention", 1, 0.4, NAN, "induction"),
            ("based", 0, 0.1, 0.5, "induction"), ("mamba", 0, NAN, NAN, "induction")]  # fmt: skip
    drawn = draw(table(*runs), "What?")
    above, below = drawn.spec["vconcat"]
    cells = [
        [row for panel in line["hconcat"] for row in drawn.spec["datasets"][panel["data"]["name"]]]
        for line in (above, below)
    ]
    assert {(row["mixer"], row["share"]) for row in cells[0]} == {("attention", 0.3), ("based", 0.1)}
    assert {(row["mixer"], row["share"]) for row in cells[1]} == {("based", 0.5)}
    assert "attention, layer 0: most from value (0.30)" in drawn.description


def test_widths_are_rows_of_their_own_and_what_is_missing_is_named() -> None:
    both = table(("attention", 0, 0.2, NAN, "induction"), ("attention", 1, 0.4, NAN, "induction"),
                 ("mamba", 0, NAN, NAN, "induction"))  # fmt: skip
    both.frame["d_model"] = [32, 64, 64]
    drawn = draw(both, "What?")
    rows = [row for rows in drawn.spec["datasets"].values() for row in rows]
    assert {(row["mixer"], row["share"]) for row in rows} == {("attention, 32", 0.2), ("attention, 64", 0.4)}
    assert drawn.spec["title"]["subtitle"][-1] == "No results: mamba."
    first, second, *_ = says(both)
    assert (first[:22], second[:22]) == ("attention, d_model 32:", "attention, d_model 64:")


def test_what_it_says() -> None:
    first, second, *_ = says(table(("attention", 0, 0.6, NAN, "induction"), ("mamba", 0, 0.25, 0.5, "undetermined")))
    assert first.startswith("attention: layer 0 reads value 0.60, key 0.60, next_key 0.60; no state as a tensor. Layer")
    assert "state of norm 0.5 that changes by value 0.50, key 0.50" in second
    for share, outcome in ((0.6, "holds"), (0.4, "contradicted")):
        about, states = hypotheses(table(*(("based", seed, share, 0.5, "induction") for seed in range(9))).frame)
        assert about.startswith("Where the verdict is induction")
        assert f": {outcome} (" in about
        assert "contradicted (0 of 9 runs" in states  # equal changes are not larger


def test_its_runs_are_those_of_other_studies() -> None:
    def ids(name: str, scale: str) -> set[str]:
        return {point.config.id for point in study_points(get_study(name), scale)}

    assert ids("convergence", "laptop") < ids("inside", "laptop"), "which are then trained once"
    assert {point.axes["mixer"] for point in study_points(get_study("inside"), "laptop")} == set(BUILT_IN)
    assert ids("inside", "paper") < ids("newer", "paper")
