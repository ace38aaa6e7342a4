"""The Slurm engine, on submitit's own local executor: the same jobs, files and signals, without a cluster."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from mecheval.errors import UserError
from mecheval.store import Store
from mecheval.sweep import ENGINES, Event, Job, sweep
from mecheval.sweep.slurm_engine import PROGRAMS, SlurmEngine, Task, _Arrays, _Submitted
from sweep.jobs import Heard, Here, bytes_of
from sweep.test_local import until
from training.runs import in_child, outcome, tiny

pytest.importorskip("submitit", reason="the extra `dev` brings submitit")
local = pytest.importorskip("submitit.local.local")


def below(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Forked:
    """Stands in for `subprocess.Popen` in submitit: forks this process, which has imported torch, to run a module.

    The first process that is asked for is a real program, so that a job also shows that it can be started as one.
    """

    real: ClassVar[list[Any]] = []

    def __new__(cls, words: list[str], **given: Any) -> Any:
        if cls.real:
            return super().__new__(cls)
        cls.real.append(subprocess.Popen(words, **given))
        return cls.real[0]

    def __init__(self, words: list[str], *, env: dict[str, str], **given: Any) -> None:
        *_, module, folder = words

        def run() -> None:
            for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                signal.signal(number, handler)
            for place, name in ((1, "stdout"), (2, "stderr")):
                if name in given:
                    os.dup2(given[name].fileno(), place)
                    setattr(sys, name, os.fdopen(place, "w"))
            os.environ.update(env)
            sys.argv = [module, folder]
            runpy.run_module(module, run_name="__main__")

        self.pid = in_child(run)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.returncode = outcome(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def programs(folder: Path, script: str) -> None:
    """Slurm's programs, each replaced by this script: the machine of the test may have none or real ones."""
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)


def test_a_killed_job_of_an_array_is_submitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(tiny(steps=60, every=20, seed=seed)) for seed in range(2)]
    wanted = Store(tmp_path / "wanted")
    sweep(jobs, wanted, Here(), Heard())
    sizes, killed, heard = list[int](), list[int](), Heard()
    submit = _Arrays.submit

    def counted(self: _Arrays) -> None:
        if self.new:
            sizes.append(len(self.new))
        submit(self)
        crew.append(self)

    crew: list[_Arrays] = []
    monkeypatch.setattr(_Arrays, "submit", counted)
    monkeypatch.setattr(Forked, "real", [])
    monkeypatch.setattr(local, "subprocess", SimpleNamespace(Popen=Forked))

    class Killer(Heard):
        def event(self, event: Event) -> None:
            heard.event(event)
            if event.kind == "begin" and event.run == jobs[0].run and not killed:
                [mine] = [each for each in crew[-1].under_way if each.job.run == event.run]
                killed.extend(below(int(mine.handle.job_id)))
                os.kill(killed[0], signal.SIGKILL)

    swept = sweep(jobs, Store(tmp_path / "found"), SlurmEngine(cluster="local", checkpoint_seconds=0.01), Killer())
    assert killed
    assert swept.failures == ()
    assert sizes == [2, 1]  # an array of both, then the one that died
    assert any("its Slurm job is gone" in event.message for event in heard.of("say"))
    assert bytes_of(tmp_path / "found", jobs) == bytes_of(wanted, jobs)
    assert not list((tmp_path / "found").glob(".slurm-*"))  # nothing is left of submitit's files


def test_at_the_time_limit_a_run_is_saved_before_its_job_is_queued_again(tmp_path: Path) -> None:
    """Though no checkpoint was due. What submitit does then ends the process; here it writes a file."""
    job, events, again = Job(tiny(steps=100_000, every=100_000)), tmp_path / "events", tmp_path / "again"
    (tmp_path / "marker").touch()
    given = {"job": {"run": job.run, **job.to_dict()}, "store": str(tmp_path), "marker": "marker",
             "file": str(events), "seconds": 1000, "environment": {}}  # fmt: skip

    def at_a_node() -> None:
        signal.alarm(60)  # without the first signal it would train for long
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.signal(signal.SIGUSR2, lambda number, frame: again.write_text(str(number)))
        Task()(json.dumps(given))

    child = in_child(at_a_node)
    until(lambda: events.exists() and '"step"' in events.read_text())
    os.kill(child, signal.SIGUSR2)
    assert outcome(child) == 0
    assert again.read_text() == str(int(signal.SIGUSR2))
    status = Store(tmp_path).folder(job.run).status()
    assert (status["status"], status["step"] > 0) == ("interrupted", True)


def test_at_the_time_limit_a_job_is_the_same_again() -> None:
    again: Any = Task().checkpoint("given")
    assert isinstance(again.function, Task)
    assert again.args == ("given",)


def test_a_killed_job_is_reported_with_its_own_last_words() -> None:
    said = "slurmstepd: error: *** STEP CANCELLED ***\nsubmitit WARNING (2026-11-17) - Bypassing signal SIGCONT\n"
    lost = _Submitted(Job(tiny()), SimpleNamespace(stderr=lambda: said), Path("none"))
    assert lost.last_words() == "its Slurm job is gone (slurmstepd: error: *** STEP CANCELLED ***)"


def test_what_cannot_work_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="there is no sbatch and no srun and no squeue on this machine"):
        SlurmEngine()
    options: list[dict[str, Any]] = [{"cpus": 0.5}, {"gpus": 0.5}, {"minutes": 0}]
    for wrong in options:
        with pytest.raises(UserError, match="whole numbers"):
            SlurmEngine(cluster="local", **wrong)
    with pytest.raises(UserError, match="is a URL"), SlurmEngine(cluster="local").crew([], "s3://bucket", print):
        pass
    assert "partition" in ENGINES["slurm"].options


def test_why_sbatch_refuses_jobs_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "sbatch: error: invalid partition: gpu\nsbatch: error: submission failed"
    programs(tmp_path / "bin", f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"sbatch refused the jobs: invalid partition: gpu; submission failed\.$"):
        sweep([Job(tiny())], Store(tmp_path / "store"), SlurmEngine(partition="gpu"), Heard())
    assert capsys.readouterr().err == ""
    assert not list((tmp_path / "store").glob(".s*"))  # neither a marker nor submitit's files
