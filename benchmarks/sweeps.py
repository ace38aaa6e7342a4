"""Sweeps: two workers against one, and what it costs to add a sweep of 200 runs that is done."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence

from benchmarks.harness import Row, show
from mecheval.store import Store
from mecheval.sweep import Event, Job, LocalEngine, grid, sweep
from mecheval.sweep.job import Report

BASE = {"task": "ar", "preset": "laptop", "keys": 8, "d_model": 64, "batch_size": 64, "steps": 600, "stop_at": None}
LIMIT_SECONDS = 2.0


class Silent:
    def begin(self, jobs: Sequence[Job], todo: Sequence[Job], store: Store, workers: int) -> None: ...
    def event(self, event: Event) -> None: ...
    def end(self) -> None: ...


class Nothing:
    """An engine that must not be asked for anything."""

    workers = 1

    def run(self, jobs: list[Job], store: str, report: Report) -> None:
        raise AssertionError(f"{len(jobs)} runs are not done")


def seconds(workers: int, jobs: list[Job]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        before = time.perf_counter()
        sweep(jobs, Store(folder), LocalEngine(workers), Silent())
        return time.perf_counter() - before


def run() -> list[Row]:
    """Twelve runs of about 15 seconds each, shorter than most of a study; the start of the workers counts."""
    points = grid(BASE, mixer=("attention", "mamba"), seed=range(6))
    jobs = [Job(point.config) for point in points]
    sweep(jobs[:2], Store(tempfile.mkdtemp()), LocalEngine(1), Silent())  # compile the kernels
    one, two = seconds(1, jobs), seconds(2, jobs)
    return [Row("a sweep of 12 runs: 2 workers against 1", 1e3 * two, 1e3 * one, target=1.8)]


def done_again(n: int = 200) -> None:
    """A sweep of `n` runs that are in the store: from the grid to the report that nothing was left to do."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        first = _jobs(n)
        sweep(first[:1], store, LocalEngine(1), Silent())
        for job in first[1:]:
            _copy(store, first[0], job)
        before = time.perf_counter()
        swept = sweep(_jobs(n), store, Nothing(), Silent())
        took = time.perf_counter() - before
        assert (swept.jobs, swept.worked_on) == (n, 0)
    print(f"adding a done sweep of {n} runs again: {took:.2f} s (limit {LIMIT_SECONDS:g} s)")


def _jobs(n: int) -> list[Job]:
    return [Job(point.config) for point in grid({**BASE, "steps": 2}, mixer=("attention",), seed=range(n))]


def _copy(store: Store, made: Job, job: Job) -> None:
    """Give one run what another has."""
    source, folder = store.folder(made.run), store.folder(job.run)
    with folder.exclusive():
        for table in ("history", "scores", "effects", "verdicts"):
            folder.write(table, [{k: v for k, v in row.items() if k != "run"} for row in source.read(table)])
        folder.write_files({"config.yaml": job.config.to_yaml().encode()})
        status = {name: value for name, value in source.status().items() if name not in ("run", "started", "updated")}
        folder.set_status(**{**status, "seed": job.config.seed, "config": job.config.to_dict()})


if __name__ == "__main__":
    show(run())
    done_again()
