"""Stores that someone else made, or that are damaged or empty: every command says in a line what it leaves out."""

from __future__ import annotations

import json
import math
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from mecheval.store import Store
from report.stores import effect, forge, grid_points
from store.examples import write_run
from training.runs import tiny

LONG, COLOURED = "x" * 15_000, "\x1b[31mred\u202e"
ROLES = ("key", "value", "next_key", "query", "", LONG, COLOURED)
SITES = (
    "blocks.1.input",
    "blocks.0.mixer.conv",
    "blocks.99999999999.input",
    "blocks..",
    "",
    f"blocks.1.{LONG}",
    COLOURED,
)
VALUES = (0.5, 1e308, -1e308, math.inf, 5e-324, None)


def hostile(store: Store) -> list[str]:
    """Runs with all that a status and tables may hold; the ids of those that cannot be shown."""
    config = tiny(seed=5)
    data = config.to_dict()
    left_out = []
    changes: list[dict[str, Any]] = [
        {"model": {"n_layers": 10**9}},
        {"model": {"d_model": "64"}},
        {"mixer": {"name": ["attention"]}},
        {"mixer": {"name": "m", "deep": [[[[1]]]]}},
        {"task": {"name": "ar", "note": "y" * 30_000}},
    ]
    for number, change in enumerate(changes):
        left_out.append(f"{number:012x}")
        forge(store, left_out[-1], data | change, config, accuracy=0.5)
    for number, part in enumerate(data, start=16):  # a missing part is no harm
        rest = {name: value for name, value in data.items() if name != part}
        forge(store, f"{number:012x}", rest, config, accuracy=0.5, mixer=COLOURED if number % 2 else LONG)
    for number in range(32, 52):
        forge(
            store, f"{number:012x}", data | {"mixer": {"name": f"m{number}"}}, config, accuracy=0.5, mixer=f"m{number}"
        )
    for number, run in enumerate(f"{number:012x}" for number in range(64, 68)):
        forge(
            store, run, {**data, "seed": number}, config, accuracy=(0.5, 1e308, -1.0, 5e-324)[number], on_the_way=True
        )
        rows = [
            {**effect(state, step, "test", site, role), "share": value, "original": value, "restored": value}
            for state, step in (("last", 400), ("training", 2**62), ("training", 0), (COLOURED, -1))
            for site, value in zip(SITES, (*VALUES, 0.1), strict=True)
            for role in ROLES
        ]
        verdict = {
            "state": "last",
            "step": 2**62,
            "split": "test",
            "agreement": 1e308,
            "summary": COLOURED,
            "evidence": LONG,
        }
        finding = {"label": COLOURED if number else "induction", "layer": 2**31 - 1 if number else 1, "stored_by": -7}
        folder = store.folder(run)
        with folder.exclusive():
            folder.write("effects", rows + rows[:9])
            folder.write("verdicts", [{**verdict, **finding, "stored_at": LONG}] * 3)
    return left_out


def commands(store: Path, out: Path) -> list[list[str]]:
    at = ["--store", str(store)]
    return [
        ["report", "--out", str(out / "page.html"), *at],
        ["draw", "study", "ar", "--save", str(out / "study.svg"), *at],
        ["draw", "study", "ar", "--curves", "--save", str(out / "curves.png"), *at],
        ["draw", "mechanisms", "--save", str(out / "mechanisms.png"), *at],
        ["draw", "mechanisms", "--save", str(out / "mechanisms.svg"), *at],
        ["draw", "example", "0", "--save", str(out / "example.svg"), *at],
        ["compare", "ar", *at],
        ["list", "studies", *at],
        ["runs", *at],
    ]


def run_all(command: Command, store: Path, out: Path) -> dict[str, tuple[int, str]]:
    """Exit code and standard error of every command; all of it in lines, none with a control character."""
    said = {}
    for words in commands(store, out):
        code, printed, err = command(*words)
        assert code in (0, 2)
        assert all(line.startswith("mecheval: ") for line in err.splitlines()), err
        assert all(sign.isprintable() or sign == "\n" for sign in printed + err)
        said[" ".join(takewhile(lambda word: word not in ("--out", "--save", "--store"), words))] = code, err
    return said


def test_runs_beyond_the_limits_are_named_and_the_others_shown(command: Command, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (healthy, *_) = grid_points(seeds=(0,))
    forge(store, healthy.config.id, healthy.config.to_dict(), healthy.config, accuracy=0.9)
    left_out = hostile(store)
    said = run_all(command, store.path, tmp_path)
    for name in ("report", "draw study ar", "compare ar", "list studies", "draw mechanisms"):
        code, err = said[name]
        assert code == 0, err
        assert all(f"run {run} is left out: " in err for run in left_out)
    page = (tmp_path / "page.html").read_text()
    assert healthy.config.id in page
    assert all(run in page for run in left_out)
    assert COLOURED not in page
    assert LONG not in page
    assert (tmp_path / "mechanisms.svg").stat().st_size < 2_000_000


@pytest.mark.parametrize("kind", ["empty", "failed", "unreadable", "without effects"])
def test_stores_with_nothing_to_show(kind: str, command: Command, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (store.path / "runs").mkdir(parents=True)
    run = store.folder("0" * 12)
    if kind == "failed":
        with run.exclusive():
            run.set_status(status="failed", message="no reason")
    elif kind == "unreadable":  # a status that is no JSON, and a lock that cannot be opened
        run.path.mkdir()
        (run.path / "status.json").write_text("{ not JSON")
        other = write_run(store.folder("1" * 12), "running")
        (other.path / "lock").unlink()
        (other.path / "lock").mkdir()
    elif kind == "without effects":
        write_run(run, d_model=16, n_layers=2, lr=1e-3)
        with run.exclusive():
            run.write("effects", [])
            run.write("verdicts", [])
    said = run_all(command, store.path, tmp_path)
    assert said["report"][0] == (2 if kind == "empty" else 0), said["report"]
    assert said["compare ar"][0] == said["list studies"][0] == said["runs"][0] == said["draw study ar"][0] == 0
    assert said["draw mechanisms"][0] == said["draw example 0"][0] == 2
    if kind != "empty":
        page = (tmp_path / "page.html").read_text()
        known = kind in ("failed", "without effects")
        assert ("an unknown time" in page) != known
        data = json.loads(page.split('id="data">')[1].split("</script>")[0])
        assert data["runs"]["map"] == [None] * len(data["runs"]["run"])
