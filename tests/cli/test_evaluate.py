from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path

import pytest

from commands import Command
from mecheval import custom as own
from mecheval.mixers import MIXERS
from mecheval.store import Store
from mecheval.studies import scales
from mecheval.sweep import Event, HereEngine, Job, LocalEngine, Stopped, sweep
from mecheval.sweep.job import Report
from sweep.jobs import Heard

FAULTY = Path(__file__).parents[1] / "evaluation" / "faulty.py"
TINY = {
    "preset": "laptop", "pairs": 2, "queries": 1, "batch_size": 8, "steps": 20, "evaluate.documents": 16,
    "evaluate.every": 10,
}  # fmt: skip


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line, with runs that take a moment; and nothing that a test announces stays."""
    monkeypatch.setattr(scales, "BASE", {**scales.BASE, ("ar", "laptop"): TINY})
    monkeypatch.setattr(scales, "WIDTHS", {**scales.WIDTHS, ("ar", "laptop"): (16,)})
    monkeypatch.setattr(MIXERS, "_classes", dict(MIXERS._classes))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(own.VARIABLE, "")
    monkeypatch.setenv("COLUMNS", "100")
    return Command(monkeypatch, capsys)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file of one's own."""
    path = tmp_path / "my mixers.py"
    path.write_text(FAULTY.read_text())
    return path


def stamps(store: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (store / "runs").rglob("*") if path.is_file()}


def test_workers_load_the_file_and_nothing_is_trained_twice(
    command: Command, tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    words = [
        "evaluate",
        f"{mine}:Good",
        "--no-compare",
        "--workers",
        "1",
        "--no-report",
        "--store",
        str(store),
        "--set",
        "width=2",
    ]
    code, out, err = command(*words)
    assert code == 0, err
    name = own.Source(mine, "Good").name
    assert f"{name} on ar (laptop)" in out
    assert f"▸ {name}" in out
    assert "It was trained for 20 of scale laptop's" in out
    assert "Verdict: not learnt" in out
    assert "at this small size" in out
    assert err.count("done ") == 2
    rows = Store(store).rows()
    assert {(row["mixer"], row["config"]["mixer"]["width"], row["lr"]) for row in rows} == {
        (name, 2, 1e-3),
        (name, 2, 3e-3),
    }
    before = stamps(store)
    code, again, err = command(*words)
    assert (code, again) == (0, out)
    told = [line.split()[:2] for line in err.splitlines()]
    assert told == [["next:"], ["mecheval", "intervene"], ["mecheval", "explain"]]
    assert stamps(store) == before
    command.monkeypatch.setenv("MECHEVAL_MIXERS", "")  # the printed commands need no variable
    code, shown, _ = command(*shlex.split(err.splitlines()[1])[1:])
    assert code == 0
    assert "Verdict: not learnt" in shown
    mine.write_text(mine.read_text() + "\n# an edit\n")
    monkeypatch.setattr(LocalEngine, "run", lambda _, jobs, store, report: HereEngine().run(jobs, store, report))
    code, _, err = command(*words, "--lr", "1e-3")
    assert code == 0, err
    assert len(Store(store).ids()) == 3, "another version, another run"
    assert {row["mixer"] for row in Store(store).rows()} == {name, own.Source(mine, "Good").name}


def test_the_built_in_mixers_stand_beside_it(command: Command, tmp_path: Path, mine: Path, here: None) -> None:
    words = [
        "evaluate",
        f"{mine}:Good",
        "--lr",
        "3e-3",
        "--seeds",
        "1",
        "--set",
        "steps=5",
        "--no-report",
        "--store",
        str(tmp_path / "s"),
    ]
    code, out, err = command(*words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [row["mixer"] for row in found["table"]] == [found["name"], *scales.MIXERS]
    assert {row["steps"] for row in Store(tmp_path / "s").rows()} == {5}
    assert found["verdict"]["label"] == found["table"][0]["verdict"] == "not_learnt"
    assert {"site", "role", "restored"} <= found["effects"][0].keys()
    assert (found["report"], found["warnings"]) == (None, [])


def test_later_commands_find_it_through_the_environment(
    command: Command, tmp_path: Path, mine: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "store")
    code, _, err = command("evaluate", f"{mine}:Good", "--no-compare", "--lr", "1e-3", "--no-report", "--store", store)
    assert code == 0, err
    [run] = Store(store).ids()
    name = own.Source(mine, "Good").name
    monkeypatch.setenv(own.VARIABLE, "")
    monkeypatch.setattr(MIXERS, "_found", {})  # as in a new process
    code, _, err = command("intervene", run, "--store", store)
    assert code == 2
    assert err == f"mecheval: mixer {name!r} is a custom mixer; to load it, set MECHEVAL_MIXERS=path/to/file.py:Good.\n"
    monkeypatch.setenv(own.VARIABLE, f"{mine}:Good")
    code, out, err = command("intervene", run, "--store", store)
    assert code == 0, err
    assert f"ar · {name} · d 16 · lr 0.001 · seed 0" in out
    assert "Verdict: not learnt" in out
    assert command("runs", "--store", store)[0] == 0


def test_a_file_that_changes_during_a_sweep_fails_its_runs_at_once(
    command: Command, tmp_path: Path, mine: Path
) -> None:
    from mecheval.config import run_config

    source = own.Source(mine, "Good")
    own.announce(source)
    job = Job(run_config("ar", source.name, **TINY))  # type: ignore[arg-type]
    mine.write_text(mine.read_text() + "\n# an edit\n")
    heard = Heard()
    swept = sweep([job], Store(tmp_path / "store"), LocalEngine(workers=1), heard)
    [failure] = swept.failures
    assert f"mixer {job.config.mixer.name!r} cannot be loaded: {mine} has changed since" in failure.message
    assert heard.of("say") == [], "and it is not tried again and again"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.py:Mine"], "cannot read gone.py: No such file or directory."),
        (["{mine}"], "name a class in the file, {mine}:MyMixer; torch modules there: Good, Plain, NoForward"),
        (["{mine}:Godo"], "unknown torch module in {mine} 'Godo'. Did you mean 'Good'? Choices: "),
        (["{mine}:number"], "number in {mine} is of type int; give a torch module class, or a function"),
        (["{mine}:NotAModule"], "NotAModule in {mine} is not a torch module"),
        (["{mine}:NoForward"], "NoForward has no forward"),
        (["{mine}:Needs"], "Needs needs d_state, heads; give --set d_state=VALUE --set heads=VALUE"),
        (["{mine}:Good", "--set", "widht=3"], "unknown option of Good 'widht'. Did you mean 'width'?"),
        (["{mine}:Good", "--set", "width"], "--set takes NAME=VALUE (got 'width')"),
        (["{mine}:Good", "--set", "width=zero"], "Good: width must be a whole number (got 'zero'); its default is 3."),
        (["{mine}:Halved"], "Halved.forward gives shape (3, 1, 8) for an input (B, L, D) of (3, 1, 16)"),
        (["{mine}:StateFirst"], "StateFirst.forward returns a tuple, whose first tensor has shape (3, 16) for"),
        (["{mine}:GivesNaN"], "GivesNaN gives NaN at position 0 of 1"),
        (["{mine}:BadGradient"], "BadGradient: the gradient of weight is NaN"),
        (["{mine}:Future"], "Future is not causal: changing the input at position "),
        (["{mine}:Normed"], "Normed mixes the documents of a batch in training mode"),
        (["{mine}:Noisy"], "Noisy gives two outputs for the same input in evaluation mode"),
        (["{mine}:BadTap"], "BadTap does not work in a model under interventions"),
        (["{mine}:Good", "--task", "arr"], "unknown task 'arr'. Did you mean 'ar'?"),
        (["{mine}:Good", "--scale", "huge"], "unknown scale 'huge'. Choices: laptop, paper."),
        (["{mine}:Good", "--lr", "fast"], "--lr takes positive numbers, comma-separated (got 'fast')"),
        (["{mine}:Good", "--seeds", "0"], "seeds: must be at least 1 (got 0)"),
        (["{mine}:Good", "--report", "report.pdf"], "cannot write a report as 'report.pdf'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_nothing_is_written(
    command: Command, tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command("evaluate", *(word.replace("{mine}", str(mine)) for word in words))
    assert (code, out) == (2, "")
    assert message.replace("{mine}", str(mine)) in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [mine.name]


def test_warnings_are_told_beside_the_answer(command: Command, tmp_path: Path, mine: Path, here: None) -> None:
    words = ["--no-compare", "--lr", "1e-3", "--no-report", "--store", str(tmp_path / "store")]
    code, out, err = command("evaluate", f"{mine}:Constant", *words)
    assert code == 0
    assert "warning: the output of Constant does not depend on its input at all." in err
    assert "warning:" not in out


def test_ctrl_c_says_how_to_go_on(
    command: Command, tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(engine: LocalEngine, jobs: list[Job], store: str, report: object) -> None:
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(LocalEngine, "run", stopped)
    code, out, err = command("evaluate", f"{mine}:Good", "--no-report", "--store", str(tmp_path / "store"))
    assert (code, out) == (128 + signal.SIGTERM, "")
    assert "stopped; finished work is saved. Run the same command again to resume." in err


def test_a_built_in_mixer_that_fails_is_told_and_the_rest_is_shown(
    command: Command, tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(engine: LocalEngine, jobs: list[Job], store: str, report: Report) -> None:
        [bad] = [job for job in jobs if job.config.mixer.name == "h3"]
        HereEngine().run([job for job in jobs if job is not bad], store, report)
        report(Event(bad.run, "end", status="failed", message="no luck"))

    monkeypatch.setattr(LocalEngine, "run", broken)
    words = [
        "evaluate",
        f"{mine}:Good",
        "--lr",
        "3e-3",
        "--set",
        "steps=3",
        "--no-report",
        "--store",
        str(tmp_path / "store"),
    ]
    code, out, err = command(*words)
    assert code == 0
    assert "failed: ar · h3 · d 16" in err
    assert any(line.split()[0] == "h3" and "missing" in line for line in out.splitlines() if line.strip())


def test_a_report_is_written(command: Command, tmp_path: Path, mine: Path, here: None) -> None:
    page = tmp_path / "report.html"
    words = ["--no-compare", "--lr", "1e-3", "--store", str(tmp_path / "store"), "--report", str(page)]
    code, _, err = command("evaluate", f"{mine}:Good", *words)
    assert code == 0, err
    assert own.Source(mine, "Good").name in page.read_text()
    assert f"report: {page}" in err
