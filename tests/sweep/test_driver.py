from __future__ import annotations

import dataclasses
import errno
import os
import tempfile
from pathlib import Path

import pytest

from mecheval.store import Store, StoreError
from mecheval.sweep import Estimate, Event, Job, Stopped, standing, sweep
from mecheval.sweep.job import Report
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


def test_a_store_that_is_moved_ends_the_sweep_and_is_not_begun_anew(tmp_path: Path) -> None:
    place, elsewhere, jobs = tmp_path / "store", tmp_path / "elsewhere", small_jobs(2)

    class Moving(Heard):
        def event(self, event: Event) -> None:
            super().event(event)
            if event.kind == "end" and place.exists():
                place.rename(elsewhere)

    with pytest.raises(StoreError, match=r"the store .*/store was moved or removed; where it is now, the same command"):
        sweep(jobs, Store(place), Here(), Moving())
    assert not place.exists()
    heard = Heard()
    sweep(jobs, Store(elsewhere), Here(), heard)
    assert [event.status for event in heard.of("end")] == ["done"]


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
    store, jobs = Store(tmp_path), small_jobs(1, lr=1e18)
    assert sweep(jobs, store, Here(), Heard()).diverged == 1
    engine = Here()
    assert sweep(jobs, store, engine, Heard()).diverged == 1
    assert engine.worked_on == []


def test_the_watcher_ends_also_when_the_sweep_is_stopped(tmp_path: Path) -> None:
    class Stops:
        workers = 1

        def run(self, jobs: list[Job], store: str, report: Report) -> None:
            report(Event(jobs[0].run, "begin"))
            raise Stopped(2)

    heard = Heard()
    with pytest.raises(Stopped):
        sweep(small_jobs(1), Store(tmp_path), Stops(), heard)
    assert heard.ended


@pytest.mark.parametrize("problem", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_store_that_cannot_be_written_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    def refuse(**given: object) -> None:
        raise OSError(problem, os.strerror(problem))

    engine, jobs = Here(), small_jobs(1)
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", refuse)
        with pytest.raises(StoreError, match=rf"cannot write to the store .*: {os.strerror(problem)}\."):
            sweep(jobs, Store(tmp_path), engine, Heard())
    assert engine.worked_on == []


def test_a_store_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "runs").touch()
    for name, problem in (
        ("file", "is a file, not a folder"), ("file/store", "is a file, not a folder"), ("half", "is a file"),
        ("link", "is a link to .*gone, which does not exist"), ("link/store", "is a link to"),
        ("round", "is a link to"),
    ):  # fmt: skip
        with pytest.raises(StoreError, match=problem) as refused:
            sweep(small_jobs(1), Store(tmp_path / name), Here(), Heard())
        assert "\n" not in str(refused.value)
    assert (tmp_path / "file").read_text() == "mine"


def test_how_far_a_sweep_is(tmp_path: Path) -> None:
    store, jobs = Store(tmp_path), small_jobs(4)
    none = standing(jobs, store, 2)
    assert (none.runs, none.done, none.running, none.failed, none.left) == (4, 0, (), 0, 4)
    sweep(jobs[:1], store, Here(), Heard())
    for job, status in zip(jobs[1:3], ("failed", "running"), strict=True):
        store.folder(job.run).path.mkdir(parents=True)
        store.folder(job.run).set_status(status=status, step=15, steps=60, seconds=5.0, config=job.config.to_dict())
    with store.folder(jobs[2].run).exclusive():
        some = standing(jobs, store, 1)
    assert (some.done, some.failed, some.left) == (1, 1, 1)
    assert [(run.run, run.step, run.steps) for run in some.running] == [(jobs[2].run, 15, 60)]
    estimate = Estimate(store.rows())
    assert some.seconds == pytest.approx(
        15.0 + 0.75 * estimate.seconds(jobs[1].config) + estimate.seconds(jobs[3].config)
    )
    assert standing(jobs, store, 1).left == 2, "whoever trained it has died"
    assert standing(jobs, store, 2).seconds < some.seconds
    done = standing(jobs[:1], store, 1)
    assert (done.done, done.left, done.seconds) == (1, 0, 0.0)


def test_long_runs_come_before_short_ones(tmp_path: Path) -> None:
    class Lists(Here):
        def run(self, jobs: list[Job], store: str, report: Report) -> None:
            self.worked_on = [job.run for job in jobs]

    engine = Lists()
    short, long, middle = (small_jobs(1, steps=steps)[0] for steps in (10, 1000, 100))
    sweep([short, long, middle], Store(tmp_path), engine, Heard())
    assert engine.worked_on == [long.run, middle.run, short.run]
