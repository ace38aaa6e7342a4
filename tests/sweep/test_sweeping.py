from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mecheval.store import Store
from mecheval.sweep import Event, Job, Stopped, sweep
from mecheval.sweep.job import Tell
from sweep.jobs import Heard, Here, small_jobs


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, list[Job]]:
    store, jobs = Store(tmp_path_factory.mktemp("done")), small_jobs(2)
    sweep(jobs, store, Here(), Heard())
    return store, jobs


def test_a_sweep_trains_and_intervenes(done: tuple[Store, list[Job]]) -> None:
    store, jobs = done
    for job in jobs:
        assert store.folder(job.run).status()["status"] == "done"
    assert set(store.verdicts()["run"]) == {job.run for job in jobs}
    assert set(store.effects()["split"]) == {"test"}


def test_done_runs_are_left_alone(done: tuple[Store, list[Job]]) -> None:
    store, jobs = done
    engine, heard = Here(), Heard()
    swept = sweep(jobs, store, engine, heard)
    assert (engine.worked_on, heard.todo, swept.worked_on, swept.jobs) == ([], [], 0, 2)


def test_only_what_is_missing_of_a_run_is_done(tmp_path: Path) -> None:
    store, (job,) = Store(tmp_path), small_jobs(1)
    sweep([job], store, Here(), Heard())
    trained = store.folder(job.run).status()["updated"]
    both = dataclasses.replace(job, splits=("dev", "test"))
    heard = Heard()
    assert sweep([both], store, Here(), heard).worked_on == 1
    assert heard.of("begin") == []
    assert store.folder(job.run).status()["updated"] == trained
    assert set(store.verdicts()["split"]) == {"dev", "test"}


def test_a_run_that_several_studies_want_is_worked_on_once_with_all_splits(tmp_path: Path) -> None:
    (job,) = small_jobs(1)
    heard = Heard()
    sweep([job, dataclasses.replace(job, splits=("dev",)), job], Store(tmp_path), Here(), heard)
    assert [each.splits for each in heard.todo] == [("test", "dev")]


def test_a_failure_is_reported_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, jobs = Store(tmp_path), small_jobs(2)

    def broken(*_: object) -> None:
        raise RuntimeError("no luck\ntoday")

    with monkeypatch.context() as patched:
        patched.setattr("mecheval.training.state.Training.advance", broken)
        swept = sweep(jobs[:1], store, Here(), Heard())
    assert [(failure.run, failure.message) for failure in swept.failures] == [
        (jobs[0].run, "RuntimeError: no luck today")
    ]
    engine = Here()
    swept = sweep(jobs, store, engine, Heard())
    assert engine.worked_on == [jobs[0].run, jobs[1].run]  # the one that was begun comes first
    assert swept.failures == ()


def test_divergence_is_a_result_and_not_tried_again(tmp_path: Path) -> None:
    store, jobs = Store(tmp_path), small_jobs(1, lr=1e30)
    assert sweep(jobs, store, Here(), Heard()).diverged == 1
    engine = Here()
    assert sweep(jobs, store, engine, Heard()).diverged == 1
    assert engine.worked_on == []


def test_the_watcher_ends_also_when_the_sweep_is_stopped(tmp_path: Path) -> None:
    class Stops:
        workers = 1

        def run(self, jobs: list[Job], store: str, tell: Tell) -> None:
            tell(Event(jobs[0].run, "begin"))
            raise Stopped(2)

    heard = Heard()
    with pytest.raises(Stopped):
        sweep(small_jobs(1), Store(tmp_path), Stops(), heard)
    assert heard.ended


def test_long_runs_come_before_short_ones(tmp_path: Path) -> None:
    class Lists(Here):
        def run(self, jobs: list[Job], store: str, tell: Tell) -> None:
            self.worked_on = [job.run for job in jobs]

    engine = Lists()
    short, long, middle = (small_jobs(1, steps=steps)[0] for steps in (10, 1000, 100))
    sweep([short, long, middle], Store(tmp_path), engine, Heard())
    assert engine.worked_on == [long.run, middle.run, short.run]
