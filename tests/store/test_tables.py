from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

from mecheval.store import tables
from mecheval.store.schema import EFFECTS, HISTORY, RUNS, TABLES, Table
from mecheval.store.tables import connect, load_files, load_rows, load_runs, scratch, to_parquet
from store.examples import EFFECT, ID
from store.examples import HISTORY as WITHOUT_RUN
from training.runs import in_child, outcome

ROWS: list[dict[str, Any]] = [{"run": ID, **row} for row in WITHOUT_RUN]


def write_parquet(path: str | Path, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    Path(path).write_bytes(to_parquet(table, rows, Path(path)))


def read(path: Path, table: Table = HISTORY) -> list[dict[str, Any]]:
    with connect() as connection:
        load_files(connection, table, [path])
        names = [column.name for column in table.columns]
        return [dict(zip(names, row, strict=True)) for row in connection.table(table.name).fetchall()]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rows = [
        *ROWS,
        {**ROWS[0], "step": 2**63 - 1, "lr": 5e-324, "loss": float("inf"), "dev_loss": 0.1 + 0.2},
        {**ROWS[0], "run": "ü 🦆 '\"\n", "step": -1},
    ]
    write_parquet(tmp_path / "a.parquet", HISTORY, rows)
    assert read(tmp_path / "a.parquet") == rows


def test_missing_numbers_are_null(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", HISTORY, [{**ROWS[0], "lr": float("nan"), "loss": None}])
    [row] = read(tmp_path / "a.parquet")
    assert row["lr"] is None
    assert row["loss"] is None


@pytest.mark.parametrize("table", TABLES.values(), ids=str)
def test_a_file_has_the_columns_and_types_of_the_schema_also_when_empty(tmp_path: Path, table: Table) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, table, [])
    with connect() as connection:
        described = connection.execute("DESCRIBE FROM read_parquet(?)", [str(path)]).fetchall()
    assert [row[:2] for row in described] == [(column.name, column.type) for column in table.columns]


def test_files_are_compressed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, HISTORY, ROWS * 100)
    with connect() as connection:
        found = connection.execute("SELECT DISTINCT compression FROM parquet_metadata(?)", [str(path)]).fetchall()
    assert found == [("ZSTD",)]


def test_same_rows_same_bytes_in_any_process(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from store.test_tables import HISTORY, ROWS, write_parquet
write_parquet(sys.argv[1], HISTORY, ROWS * 1000)
"""
    for name in "ab":
        write_parquet(tmp_path / name, HISTORY, ROWS * 1000)
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "c")], check=True)
    assert len({(tmp_path / name).read_bytes() for name in "abc"}) == 1


def test_threads_and_forked_children_each_have_a_scratch_database(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for _ in range(5):
            write_parquet(tmp_path / name, HISTORY, ROWS * 100)
        with scratch() as connection:  # tables of another connection are not there
            assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchone() == (0,)

    write("here")
    children = [in_child(lambda name=name: write(name)) for name in "ab"]  # type: ignore[misc]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "cdef"))
    assert [outcome(child) for child in children] == [0, 0]
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_only_the_file_itself_is_left(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", HISTORY, ROWS)
    write_parquet(tmp_path / "a.parquet", HISTORY, ROWS[:1])
    assert read(tmp_path / "a.parquet") == ROWS[:1]
    with pytest.raises(ValueError, match="unknown column 'x'"):
        write_parquet(tmp_path / "a.parquet", HISTORY, [{**ROWS[0], "x": 1}])
    assert read(tmp_path / "a.parquet") == ROWS[:1]
    assert list(tmp_path.iterdir()) == [tmp_path / "a.parquet"]


def test_files_of_another_version_are_read(tmp_path: Path) -> None:
    older = Table("history", tuple(column for column in HISTORY.columns if column.name != "lr"), ())
    newer = Table("history", (*HISTORY.columns[::-1], EFFECTS.columns[4]), ())
    write_parquet(tmp_path / "older", older, [{name: value for name, value in ROWS[1].items() if name != "lr"}])
    write_parquet(tmp_path / "newer", newer, [{**ROWS[2], "site": "s"}])
    assert read(tmp_path / "older") == [{**ROWS[1], "lr": None}]
    assert read(tmp_path / "newer") == [ROWS[2]]
    with connect() as connection:
        load_files(connection, HISTORY, [tmp_path / "older", tmp_path / "newer"])
        assert connection.execute("SELECT step, lr FROM history ORDER BY step").fetchall() == [(1, None), (2, 1e-3)]


def test_json_and_times_are_queried_as_such() -> None:
    row = dict.fromkeys((column.name for column in RUNS.columns), None) | {
        "run": ID, "config": {"task": {"pairs": 8, "name": "\ud800"}}, "started": "2026-01-01T00:00:00.5Z",
    }  # fmt: skip
    with connect() as connection:
        load_rows(connection, RUNS, [row])
        answer = connection.execute("SELECT (config->>'$.task.pairs')::INT, hour(started), lr FROM runs").fetchall()
    assert answer == [(8, 0, None)]


def test_no_progress_bar_stands_in_an_answer() -> None:
    for opened in (connect(), scratch()):
        with opened as connection:
            assert connection.execute("SELECT current_setting('enable_progress_bar')").fetchone() == (False,)


def test_a_name_in_sql_is_never_a_python_variable() -> None:
    frame = pd.DataFrame({"x": [1]})
    with connect() as connection, pytest.raises(duckdb.CatalogException, match="Table with name frame does not exist"):
        connection.execute("FROM frame")
    assert len(frame) == 1


def test_ten_thousand_rows_take_no_more_than_a_few_seconds(tmp_path: Path) -> None:
    write_parquet(tmp_path / "warm", EFFECTS, [])
    rows = [{"run": ID, **EFFECT, "step": i} for i in range(10_000)]
    began = time.process_time()  # others may be using the machine
    write_parquet(tmp_path / "a.parquet", EFFECTS, rows)
    assert time.process_time() - began < 5


def test_files_that_vanish_while_they_are_read_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {run: tmp_path / run / "history.parquet" for run in ("a" * 12, "b" * 12, "c" * 12)}
    for run, path in files.items():
        path.parent.mkdir()
        write_parquet(path, HISTORY, [{**ROWS[0], "run": run}])
    files["b" * 12].write_bytes(b"no Parquet")
    load, calls = tables._load_runs, []

    def vanishing(connection: Any, table: Table, some: Mapping[str, Path], where: str) -> None:
        calls.append(list(some))
        if len(calls) == 5:  # all, each of the three, and those that are left
            files["c" * 12].unlink()
        load(connection, table, some, where)

    monkeypatch.setattr(tables, "_load_runs", vanishing)
    with connect() as connection:
        problems = load_runs(connection, HISTORY, files)
        assert connection.execute("SELECT DISTINCT run FROM history").fetchall() == [("a" * 12,)]
    assert list(problems) == ["b" * 12, "c" * 12]
    assert "No such file" in problems["c" * 12] or "No files found" in problems["c" * 12]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("1 as step, [[1.5]] as loss", "it has nested columns."),
        ("1 as step, {'a': {'b': 1}} as more", "it has nested columns."),
        ("unnest(range(5000)) as step", "it has 3 row groups; the limit is 2."),
        ("1 as step, repeat('x', 80001) as run", "Invalid Input Error: column run has a text of 80001 bytes."),
    ],
)
def test_small_files_that_would_take_long_are_left_out(
    columns: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB's time to cast a nested column doubles with each level, and a dictionary repeats a text for nothing."""
    monkeypatch.setattr(tables, "MOST_GROUPS", 2)
    folder = tmp_path / "aaaaaaaaaaaa"
    folder.mkdir()
    run = "" if " as run" in columns else f"'{folder.name}' as run, "
    file = folder / "history.parquet"
    duckdb.execute(f"copy (select {run}{columns}) to '{file}' (format parquet, row_group_size 2048)")
    with connect() as connection:
        assert load_runs(connection, HISTORY, {folder.name: file}) == {folder.name: problem}
