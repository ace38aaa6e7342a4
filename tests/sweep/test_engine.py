"""The queue that all engines share, with a crew that does nothing but say what happened to its jobs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mecheval.errors import UserError
from mecheval.sweep import ENGINES, Crew, CrewEngine, Event, Job, LocalEngine, Stopped, make_engine
from mecheval.sweep.engine import Kind
from mecheval.sweep.job import Report
from sweep.jobs import small_jobs


class Scripted(CrewEngine, Crew):
    """An engine whose jobs end as they are told to, one word for each time that a job is begun."""

    workers, tries = 2, 3

    def __init__(self, **ends: list[str]) -> None:
        self.ends, self.begun = ends, list[str]()
        self.under_way: list[Job] = []
        self.asked = self.closed = False

    @contextmanager
    def crew(self, jobs: list[Job], store: str, report: Report) -> Iterator[Crew]:
        self.places = {job.run: f"job{place}" for place, job in enumerate(jobs)}
        yield self

    def has_room(self) -> bool:
        return len(self.under_way) < self.workers

    def start(self, job: Job) -> None:
        self.begun.append(self.places[job.run])
        self.under_way.append(job)

    def hear(self, take: Report) -> None:
        job = self.under_way.pop(0)
        status = self.ends.get(self.places[job.run], []).pop(0) if self.ends.get(self.places[job.run]) else "done"
        if status == "signal":
            self.under_way.append(job)
            signal.raise_signal(signal.SIGINT)
            return
        take(Event(job.run, "step", 1))
        take(Event(job.run, "end", status=status, message="why"))

    def stop(self, take: Report) -> None:
        self.asked = True
        for job in self.under_way:
            take(Event(job.run, "end", status="died", message="it was stopped"))

    def close(self) -> None:
        self.closed = True


def run(engine: Scripted, store: Path, n: int = 3) -> list[tuple[str, str, str]]:
    heard: list[Event] = []
    engine.run(small_jobs(n), str(store), heard.append)
    return [(engine.places[event.run], event.kind, event.status) for event in heard if event.kind != "step"]


def test_a_job_whose_worker_dies_is_begun_again_before_the_others_and_given_up_in_the_end(tmp_path: Path) -> None:
    engine = Scripted(job0=["died", "died", "died"], job1=["died"])
    heard = run(engine, tmp_path)
    assert engine.begun == ["job0", "job1", "job0", "job1", "job0", "job2"]
    assert [each for each in heard if each[1] == "end"] == [
        ("job1", "end", "done"), ("job0", "end", "failed"), ("job2", "end", "done"),
    ]  # fmt: skip
    assert sum(kind == "say" for _, kind, _ in heard) == 3
    assert engine.closed


def test_a_run_that_another_process_held_comes_last_and_its_end_is_told_once(tmp_path: Path) -> None:
    engine = Scripted(job0=["held"])
    assert run(engine, tmp_path) == [("job1", "end", "done"), ("job2", "end", "done"), ("job0", "end", "done")]
    assert engine.begun == ["job0", "job1", "job2", "job0"]


def test_a_signal_stops_the_crew_and_nothing_is_begun_again(tmp_path: Path) -> None:
    engine = Scripted(job1=["signal"])
    heard: list[Event] = []
    with pytest.raises(Stopped):
        engine.run(small_jobs(4), str(tmp_path), heard.append)
    assert engine.asked
    assert engine.closed
    assert [event.status for event in heard if event.kind == "end"] == ["done"]


def test_an_error_of_whoever_listens_leaves_no_worker(tmp_path: Path) -> None:
    engine = Scripted()

    def broken(event: Event) -> None:
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        engine.run(small_jobs(2), str(tmp_path), broken)
    assert engine.closed


def test_a_new_engine_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_engine("local", {"workers": 3}), LocalEngine)
    monkeypatch.setitem(ENGINES, "scripted", Kind(f"{__name__}:Scripted", ("job0",)))
    assert make_engine("scripted", {"job0": ["died"]}).workers == 2
    with pytest.raises(UserError, match="unknown engine 'cloud'"):
        make_engine("cloud", {})
