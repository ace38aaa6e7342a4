from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from rich.table import Table

from mecheval.cli.show.runs import RunTable, frame_table, run_table
from mecheval.store import Store
from store.examples import ID, write_run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    write_run(
        store.folder(ID), "done", d_model=1024, n_layers=2, lr=3.16e-4, steps=31260, step=31260, mixer="attention",
        dev_likelihood=0.98765, dev_accuracy=1.0, test_accuracy=0.5, seconds=8000,
    )  # fmt: skip
    write_run(store.folder("f" * 12), "interrupted", mixer="[red]mine[/red]", seconds=59.7)
    return store


def printed(table: RunTable | Table, width: int, colour: bool = False) -> list[str]:
    console = Console(width=width, force_terminal=colour, color_system="standard" if colour else None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def words(line: str) -> str:
    return " ".join(line.split())


def test_runs_in_a_narrow_terminal(store: Store) -> None:
    lines = printed(run_table(store.runs(), 80), 80)
    assert words(lines[1]) == "run status task mixer d lr step lik acc time"
    assert words(lines[2]) == f"{ID[:8]} done ar attention 1024 0.000316 31260/31260 0.988 0.500 2h13m"
    assert lines[3].split()[:3] == ["ffffffff", "interrupted", "ar"]
    assert lines[3].split()[4:] == ["–", "–", "–/–", "–", "–", "1m00s"]
    assert len(lines) == 4


def test_runs_in_a_wide_terminal_and_data_is_not_markup(store: Store) -> None:
    lines = printed(run_table(store.runs(), 120), 120)
    assert lines[0].split() == ["dev", "dev", "test"]
    assert words(lines[1]) == "run status task mixer d layers lr seed step lik acc acc time"
    assert words(lines[2]) == f"{ID} done ar attention 1024 2 0.000316 1 31260/31260 0.988 1.000 0.500 2h13m"
    assert words(lines[3]) == "ffffffffffff interrupted ar [red]mine[/red] – – – 1 –/– – – – 1m00s"


def test_status_is_coloured(store: Store) -> None:
    lines = printed(run_table(store.runs(), 120), 120, colour=True)
    assert "\x1b[32mdone" in lines[2]
    assert "\x1b[33minterrupted" in lines[3]


def test_no_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert len(printed(run_table(Store(tmp_path).runs()), 80)) == 2


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0s"), (59.4, "59s"), (185, "3m05s"), (3600, "1h00m"), (90000, "1d01h")]
)
def test_durations(store: Store, seconds: float, shown: str) -> None:
    write_run(store.folder(ID), seconds=seconds)
    assert printed(run_table(store.runs()), 80)[2].endswith(f" {shown}")


def test_any_frame(store: Store) -> None:
    frame = store.query("""
        select '[b]x[/b]' as "[i]name", 7::bigint as n, 0.123456 as a, 1234567.89 as b, 1e-7 as c, true as d,
               null::bigint as e, timestamp '2026-01-02 03:04:05.6' as f, [1, 2] as g
    """)
    head, row = printed(frame_table(frame), 120)
    assert words(head) == "[i]name n a b c d e f g"
    assert words(row) == "[b]x[/b] 7 0.1235 1234567.9 1e-07 True – 2026-01-02 03:04:05 [1 2]"


def test_numbers_are_right_aligned() -> None:
    frame = pd.DataFrame({"text": ["a", "bbb"], "n": [1, 100]})
    assert printed(frame_table(frame), 80) == ["text    n", "a       1", "bbb   100"]


def test_what_is_cut_is_told() -> None:
    frame = pd.DataFrame({"n": range(1000)})
    lines = printed(frame_table(frame, 20), 80)
    assert len(lines) == 22
    assert lines[-1] == "… 980 more rows"
    assert printed(frame_table(frame.head(3), 2), 80)[-1] == "… 1 more row"
    assert printed(frame_table(frame.head(2), 2), 80)[-1].strip() == "1"
    wide = pd.DataFrame({f"c{i}": [i, i] for i in range(15)})
    assert printed(frame_table(wide, 1), 80)[-1] == "… 1 more row, 3 more columns"


def test_long_text_is_cut() -> None:
    frame = pd.DataFrame({"text": ["x" * 1000]})
    assert printed(frame_table(frame), 200)[1] == "x" * 59 + "…"
