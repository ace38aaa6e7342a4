"""`mecheval evaluate --scale paper`: the mixer alone is trained, and stands among the published ones."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from commands import Command
from mecheval import custom as own
from mecheval.evaluation.ahead import loops, one_after_another
from mecheval.mixers import MIXERS
from mecheval.store import Store
from mecheval.studies.peers import placings

FAULTY = Path(__file__).parents[1] / "evaluation" / "faulty.py"
LOOP = """
import torch
from torch import nn


class Loop(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.map = nn.Linear(d_model, d_model)

    def forward(self, x):
        state, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = torch.tanh(self.map(state) + x[:, t])
            out.append(state)
        return torch.stack(out, 1)
"""
SHORT = [word for option in ("steps=20", "evaluate.every=10", "evaluate.documents=16") for word in ("--set", option)]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line; nothing that a test announces stays."""
    monkeypatch.setattr(MIXERS, "_classes", dict(MIXERS._classes))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(own.VARIABLE, "")
    monkeypatch.setenv("COLUMNS", "80")
    return Command(monkeypatch, capsys)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FAULTY.read_text())
    return f"{path}:Good"


def test_the_mixer_stands_among_published_ones_and_they_are_not_trained(
    command: Command, tmp_path: Path, mine: str, here: None
) -> None:
    store, page = str(tmp_path / "store"), tmp_path / "report.html"
    words = ["evaluate", mine, "--scale", "paper", "--tasks", "ar", "--store", store, "--report", str(page), *SHORT]
    code, out, err = command(*words)
    assert code == 0, err
    rows = Store(store).rows()
    name = own.Source.read(mine).name
    assert {row["mixer"] for row in rows} == {name}
    assert sorted(row["lr"] for row in rows) in ([3e-4, 1e-3, 3e-3], [1e-3, 3e-3, 1e-2]), "and the next outward"
    assert {row["d_model"] for row in rows} == {32}
    [sentence] = {line for line in " ".join(out.split()).split(". ") if "too few to say" in line}
    assert sentence.startswith("Good was trained for only 10 of 50,016 steps on pairs at width 32")
    assert "pairs at width 32\nmixer" in out
    published = [line.split()[0] for line in out.splitlines() if line.endswith("50,016")]
    assert {"attention", "based", "delta_net", "mamba"} <= set(published)
    assert "ended early: no better than guessing at step 10" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert f"{sentence.split(' (')[0]}" in err, "printed when the runs on pairs had ended"
    before = {path: path.stat().st_mtime_ns for path in Path(store).rglob("*.parquet")}
    assert command(*words)[:2] == (0, out)
    assert {path: path.stat().st_mtime_ns for path in Path(store).rglob("*.parquet")} == before
    assert name in page.read_text()


def test_a_run_that_was_trained_and_intervened_on_by_itself_stands_in_the_same_table(
    command: Command, tmp_path: Path, mine: str, here: None
) -> None:
    alone, store = str(tmp_path / "alone"), str(tmp_path / "store")
    words = ["--mixer", mine, "--preset", "paper", "--d-model", "32", "--lr", "1e-3", "--set", "early=true"]
    assert command("train", *words, *SHORT, "--store", alone)[0] == 0
    [run] = Store(alone).ids()
    assert command("intervene", run, "--mixer", mine, "--store", alone)[0] == 0
    words = ["--scale", "paper", "--tasks", "ar", "--lr", "1e-3", "--no-report"]
    assert command("evaluate", mine, *words, *SHORT, "--store", store)[0] == 0
    assert Store(store).ids() == [run]
    [one], [other] = placings(Store(alone)), placings(Store(store))
    assert one.frame.equals(other.frame)
    name = own.Source.read(mine).name
    assert one.sentence(name) == other.sentence(name)
    assert one.details(name) == other.details(name)


def test_a_run_to_the_last_step_stands_for_the_one_that_may_end_early(
    command: Command, tmp_path: Path, mine: str, here: None
) -> None:
    store = str(tmp_path / "store")
    words = ["--mixer", mine, "--preset", "paper", "--d-model", "32", "--lr", "1e-3"]
    assert command("train", *words, *SHORT, "--store", store)[0] == 0
    [run] = Store(store).ids()
    words = ["evaluate", mine, "--scale", "paper", "--task", "ar", "--lr", "1e-3", "--json", "--no-report", *SHORT]
    code, out, err = command(*words, "--store", store)
    assert code == 0, err
    assert Store(store).ids() == [run]
    row = next(row for row in json.loads(out)["table"] if row["own"])
    assert (row["runs"], row["steps"], row["note"]) == ([run], 20, "")


def test_a_dry_run_says_what_would_be_trained_for_how_long_and_beside_what(
    command: Command, tmp_path: Path, mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mecheval.training.plan.TIMED", 2)
    words = ["evaluate", mine, "--scale", "paper", "--dry-run", "--widths", "16,32", "--workers", "2"]
    code, out, err = command(*words, "--store", str(tmp_path / "store"))
    assert code == 0, err
    assert "8 runs, 0 of them done" in out
    assert sum("learning rates 1e-3, 3e-3" in line for line in out.splitlines()) == 4
    assert "on 2 cores" in out
    assert "pairs at width 32 are compared with attention, BaseConv, Based, DeltaNet, H3" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scale", "paper", "--set", "d_model=32"], "the width is given separately (--widths, widths=)"),
        (["--scale", "paper", "--tasks", "ar", "--set", "pairs=8"], "at scale paper, tasks and layers are the paper's"),
        (["--scale", "paper", "--set", "n_layers=3"], "at scale paper, tasks and layers are the paper's"),
        (["--scale", "paper", "--no-compare"], "compare: scale paper trains no built-in mixers; it always compares"),
        (["--scale", "paper", "--tasks", "ar,mqar"], "mixers are compared on ar and atr (got task 'mqar')"),
        (["--scale", "paper", "--widths", "wide"], "--widths takes whole numbers, comma-separated (got 'wide')"),
        (["--scale", "paper", "--seeds", "0"], "seeds: must be at least 1 (got 0)"),
        (["--widths", "32"], "widths: only scale paper takes widths; scale laptop has one."),
        (["--tasks", "ar,atr"], "scale laptop takes one task (got ar,atr); scale paper takes several."),
        (["--dry-run"], "--dry-run is for scale paper; `mecheval check` says how long scale laptop takes."),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_nothing_is_written(
    command: Command, tmp_path: Path, mine: str, words: list[str], message: str
) -> None:
    code, out, err = command("evaluate", mine, *words, "--store", str(tmp_path / "store"))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_a_killed_evaluation_resumes(command: Command, tmp_path: Path, mine: str, here: None) -> None:
    """The runs are those of a sweep, whose interruptions tests/sweep covers; here one stops after its first run."""
    store = tmp_path / "store"
    words = [
        "evaluate",
        mine,
        "--scale",
        "paper",
        "--tasks",
        "ar",
        "--lr",
        "1e-3,3e-3",
        "--no-report",
        "--json",
        *SHORT,
    ]
    code, whole, _ = command(*words, "--store", str(tmp_path / "whole"))
    assert code == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mecheval.sweep.engine.work", _stopping_second())
        code, out, err = command(*words, "--store", str(store))
    assert (code, out) == (130, "")
    assert "Run the same command again to resume" in err
    assert len([row for row in Store(store).rows() if row["status"] == "done"]) == 1
    assert command(*words, "--store", str(store))[:2] == (0, whole)


def _stopping_second() -> object:
    from mecheval.sweep.job import work

    calls: list[int] = []

    def stopping(*args: object, **options: object) -> str:
        calls.append(1)
        return "interrupted" if len(calls) > 1 else work(*args, **options)  # type: ignore[arg-type]

    return stopping


def test_printed_commands_are_commands(command: Command, tmp_path: Path, mine: str, here: None) -> None:
    words = ["--scale", "paper", "--tasks", "ar", "--lr", "1e-3", "--no-report", *SHORT]
    code, _, err = command("evaluate", mine, *words, "--store", str(tmp_path / "store"))
    assert code == 0
    [line] = [line for line in err.splitlines() if line.startswith("  mecheval intervene")]
    assert command(*shlex.split(line)[1:])[0] == 0


def test_a_loop_over_tokens_is_told_from_work(tmp_path: Path) -> None:
    from mecheval.config import run_config

    source = tmp_path / "loop.py"
    source.write_text(LOOP)
    found = own.Source(source, "Loop")
    MIXERS.replace(found.name, found.load())
    assert loops(run_config("ar", found.name, "paper", d_model=32))
    assert not loops(run_config("ar", "attention", "paper", d_model=32))


@pytest.mark.parametrize(("seconds", "workers", "total"), [([3, 3, 5, 5], 2, 8), ([3, 1, 1], 2, 3), ([], 2, 0)])
def test_the_time_is_that_of_runs_taken_in_order(seconds: list[float], workers: int, total: float) -> None:
    assert one_after_another(seconds, workers) == total
