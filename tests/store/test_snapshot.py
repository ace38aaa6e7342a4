"""What is shown of a store that someone else may have made: bounded, and each run that is left out is named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mecheval.store import Store, StoreWarning, tables
from mecheval.store.bounds import (
    LONGEST_NAME,
    MOST_PLACES,
    MOST_STEPS,
    bounded_row,
    config_problem,
    is_site,
    name_of,
    row_problem,
    text_of,
)
from mecheval.store.store import Snapshot, snapshot_of
from store.examples import EFFECT, HISTORY, ID, VERDICT, write_run

OTHER = "f" * 12


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    write_run(store.folder(OTHER))
    return store


def put(store: Store, table: str, rows: list[dict[str, Any]]) -> None:
    """Another run, which has these rows in a table."""
    folder = write_run(store.folder(ID))
    with folder.exclusive():
        folder.write(table, rows)


def test_names_and_texts_are_short_and_printable_and_names_stay_different() -> None:
    assert name_of("MyMixer@3f9a2c") == "MyMixer@3f9a2c"
    long = name_of("x" * 10**6), name_of("x" * 10**6 + "y")
    assert long[0] != long[1]
    assert [len(each) for each in long] == [LONGEST_NAME] * 2
    for text in ("\x1b[31mred", "\u202eabc", "a\nb", "\ud800", "\0"):
        assert name_of(text).isprintable()
        assert name_of(text) != name_of(text + "\0")
    assert text_of("One.\nTwo\x1b.") == "One.\nTwo�."
    assert len(text_of("x" * 10**6)) < 10**4
    assert [site for site in ("blocks.0.input", "blocks.127.x", "encoder", "blocks..") if not is_site(site)] == []
    for site in (
        "",
        "blocks.128.input",
        "blocks.99999999999.input",
        "blocks.٩٩٩٩٩٩.input",
        "blocks." + "9" * 5000 + ".x",
    ):
        assert not is_site(site)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, None),
        ({"task": {"pairs": 8}, "seed": 3, "extra": {"a": [1, None, "x"]}}, None),
        ([], "its config is a list, not a mapping"),
        ({"mixer": []}, "its config has a list in place of the options of its mixer"),
        ({"model": None}, "its config has nothing in place of the options of its model"),
        ({"task": {"name": 3}}, "in its config, the name of its task is a number"),
        ({"model": {"n_layers": 10**9}}, "config model.n_layers is 1,000,000,000, but must be from 1 to 128"),
        ({"model": {"d_model": "64"}}, "config model.d_model is text"),
        ({"model": {"n_layers": True}}, "config model.n_layers is true or false"),
        ({"seed": -1}, "config seed is -1, but must be from 0 to 9,223,372,036,854,775,807"),
        ({"mixer": {"x": 10**30}}, "its config is nested more than 5 levels deep, or is not plain data"),
        ({"mixer": {"x": math.inf}}, "its config is nested more than 5 levels deep, or is not plain data"),
        ({"mixer": {"x": [[[[1]]]]}}, "its config is nested more than 5 levels deep, or is not plain data"),
        ({"mixer": {"x": "y" * 30_000}}, "its config has more than 20,000 characters"),
    ],
)
def test_configs_that_cannot_be_used(config: Any, problem: str | None) -> None:
    assert config_problem(config) == problem


def test_rows_beyond_the_limits(store: Store) -> None:
    row = store.folder(OTHER).status()
    assert row_problem(row) is None
    assert row_problem({**row, "status": "\x1bfine"}) == "its status is '�fine…{}'".format(name_of("\x1bfine")[-8:])
    assert row_problem({**row, "d_model": -3}) == "d_model is -3, but must be from 1 to 1,048,576"
    wild = bounded_row({**row, "mixer": "m" * 500, "dev_accuracy": 1e308, "lr": math.inf, "test_accuracy": 0.5})
    assert (wild["dev_accuracy"], wild["lr"], wild["test_accuracy"]) == (None, None, 0.5)
    assert len(wild["mixer"]) == LONGEST_NAME


def test_a_run_that_cannot_be_shown_is_listed_as_failed_and_the_others_are_taken(store: Store) -> None:
    write_run(store.folder(ID), n_layers=10**9)
    with pytest.warns(
        StoreWarning, match=f"run {ID} is left out: n_layers is 1,000,000,000, but must be from 1 to 128"
    ):
        taken = Snapshot(store)
    rows = {row["run"]: row for row in taken.rows()}
    assert (rows[ID]["status"], rows[ID]["mixer"], rows[OTHER]["status"]) == ("failed", None, "done")
    assert rows[ID]["message"].startswith("n_layers is")
    assert set(taken.effects()["run"]) == set(taken.verdicts()["run"]) == {OTHER}
    assert snapshot_of(taken, "effects") is taken


def test_numbers_that_cannot_be_are_missing_and_possible_ones_stay(store: Store) -> None:
    wild = {"original": 1e308, "corrupted": math.inf, "restored": -1.0, "attribution": 5.0, "share": -2.5, "n": -1}
    put(store, "effects", [{**EFFECT, "role": "value"}, {**EFFECT, **wild}])
    [row] = Snapshot(store, ("effects",)).query(f"from effects where run = '{ID}' and role = 'key'").to_dict("records")
    missing = [name for name in wild if pd.isna(row[name])]
    assert missing == ["original", "corrupted", "restored", "attribution", "n"]
    assert row["share"] == -2.5


@pytest.mark.parametrize(
    ("table", "rows", "left", "said"),
    [
        ("effects", [{"site": None}, {"site": ""}, {"site": "blocks.99999999999.input"}, {}], 1, "3 rows .* lack"),
        ("effects", [{"role": ""}, {"step": -(2**62)}, {"step": 2**62}, {"state": None}, {}], 1, "4 rows .* lack"),
        ("effects", [{}, {"share": 0.0}, {"role": "value"}], 2, "1 row .* duplicate"),
        ("effects", [{"role": f"r{i}"} for i in range(MOST_PLACES + 1)], 0, "more than 2,000 sites and roles"),
        ("verdicts", [{"label": None}, {"label": ""}, {}], 1, "2 rows .* lack one of"),
        ("verdicts", [{}, {"step": 7}, {"split": "test"}], 2, "1 row .* duplicate"),
        ("history", [{"step": 2**62}, {"step": 3}, {"step": 3}], 1, "1 row .*"),
    ],
)  # fmt: skip
def test_rows_that_say_nothing_are_left_out_and_told(
    store: Store, table: str, rows: list[dict[str, Any]], left: int, said: str
) -> None:
    examples: dict[str, dict[str, Any]] = {"effects": EFFECT, "verdicts": VERDICT, "history": HISTORY[0]}
    usual = examples[table]
    put(store, table, [{**usual, **row} for row in rows])
    with pytest.warns(StoreWarning, match=f"run {ID} is shown without some of its rows: .*{said}"):
        taken = Snapshot(store, (table,))
    assert (getattr(taken, table)()["run"] == ID).sum() == left
    assert (getattr(taken, table)()["run"] == OTHER).sum() > 0


def test_layers_of_verdicts_are_those_of_a_model(store: Store) -> None:
    put(store, "verdicts", [{**VERDICT, "layer": 2**31 - 1, "stored_by": -5}])
    row = Snapshot(store, ("verdicts",)).verdicts().set_index("run").loc[ID]
    assert row[["layer", "stored_by"]].isna().all()


def test_of_very_many_steps_some_are_kept_evenly_and_the_last(store: Store) -> None:
    n = 2 * MOST_STEPS + 1
    put(store, "history", [{**HISTORY[0], "step": step} for step in range(n)])
    steps = Snapshot(store, ("history",)).query(f"select step from history where run = '{ID}' order by step")["step"]
    assert MOST_STEPS / 2 < len(steps) <= MOST_STEPS + 1
    assert steps.iloc[-1] == n - 1
    assert set(steps.diff().dropna().iloc[:-1]) == {3}
    put(store, "effects", [{**EFFECT, "state": "training", "step": step} for step in range(n)])
    assert len(Snapshot(store).on_the_way([ID])) <= MOST_STEPS + 1


def test_a_file_that_says_it_is_huge_is_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "history", [{**HISTORY[0], "step": step} for step in range(50)])
    monkeypatch.setattr(tables, "MOST_ROWS", 40)
    with pytest.warns(
        StoreWarning, match=rf"run {ID} is left out: .*history\.parquet .* it has 50 rows and .* bytes; the limits"
    ):
        taken = Snapshot(store, ("history",))
    assert set(taken.history()["run"]) == {OTHER}
