"""A sweep: do what is missing of a list of jobs, and say what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mecheval.store import Store, StoreError
from mecheval.store.location import check_writable, remove_stale
from mecheval.store.schema import WHOLE
from mecheval.sweep.estimate import Estimate
from mecheval.sweep.job import Engine, Event, Job


class SweepWatcher(Protocol):
    """Hears what happens in a sweep."""

    def begin(self, jobs: Sequence[Job], todo: Sequence[Job], store: Store, workers: int) -> None:
        """The sweep is about to work on `todo`, the part of `jobs` that is missing."""

    def event(self, event: Event) -> None:
        """Something happened to a run."""

    def end(self) -> None:
        """The sweep has ended or was stopped."""


@dataclass(frozen=True)
class Failure:
    """A run that could not be done; the same sweep tries it again."""

    run: str
    title: str
    message: str


@dataclass(frozen=True)
class Swept:
    """What came of a sweep."""

    jobs: int
    worked_on: int  # the others were done before
    diverged: int
    failures: tuple[Failure, ...]


def sweep(jobs: Iterable[Job], store: Store, engine: Engine, watcher: SweepWatcher, address: str = "") -> Swept:
    """Bring every job to its end: done runs are left alone, interrupted ones go on, failed ones are tried again.

    `address` is what workers open when the store is a local copy of one that is elsewhere. A store that cannot be
    written is refused before anything is computed.
    """
    jobs = merged(jobs)
    todo = in_order(pending(jobs, store), store)
    ended: dict[str, Event] = {}

    def hear(event: Event) -> None:
        if event.kind == "end":
            ended[event.run] = event
        watcher.event(event)

    if todo:
        check_writable(store.path / "runs", "store")
    watcher.begin(jobs, todo, store, engine.workers)
    try:
        if todo:
            engine.run(todo, address or str(store.path), hear)
    finally:
        watcher.end()
        remove_stale(store.path)  # of a sweep on a cluster that was killed, and that this one may have finished
    failures = [Failure(job.run, job.config.title, ended[job.run].message) for job in todo
                if job.run in ended and ended[job.run].status == "failed"]  # fmt: skip
    states = statuses(store)
    diverged = sum(states.get(job.run) == "diverged" for job in jobs)
    return Swept(len(jobs), len(todo), diverged, tuple(failures))


def merged(jobs: Iterable[Job]) -> list[Job]:
    """Each run once, with all splits that anyone asks for."""
    found: dict[str, Job] = {}
    for job in jobs:
        if job.run in found:
            job = Job(job.config, tuple(dict.fromkeys((*found[job.run].splits, *job.splits))))
        found[job.run] = job
    return list(found.values())


def in_order(jobs: Sequence[Job], store: Store) -> list[Job]:
    """Those that were begun first, then the longest: one that came last would leave all workers but one idle."""
    rows = rows_of(store)
    begun, estimate = {row["run"] for row in rows}, Estimate(rows)
    return sorted(jobs, key=lambda job: (job.run not in begun, -estimate.seconds(job.config)))


def pending(jobs: Sequence[Job], store: Store) -> list[Job]:
    """The jobs with something left to do."""
    is_done = done_in(store)
    return [job for job in jobs if not is_done(job)]


def done_in(store: Store) -> Callable[[Job], bool]:
    """Whether a job has nothing left to do, by what is in the store now."""
    states = statuses(store)
    judged = _judged(store) if states else set()

    def is_done(job: Job) -> bool:
        state = states.get(job.run)
        return state == "diverged" or (state in WHOLE and all((job.run, split) in judged for split in job.splits))

    return is_done


def rows_of(store: Store) -> list[dict[str, Any]]:
    """Rows of table runs; none where there is no store yet."""
    try:
        return store.rows() if (store.path / "runs").is_dir() else []
    except OSError as error:  # such as a folder above it that one may not look into
        raise StoreError(f"cannot read {store.path}: {error.strerror or error}.") from error


def statuses(store: Store) -> dict[str, str]:
    """Every run's status."""
    return {row["run"]: row["status"] for row in rows_of(store)}


def _judged(store: Store) -> set[tuple[str, str]]:
    found = store.query("select distinct run, split from verdicts where state = 'last'")
    return set(zip(found["run"], found["split"], strict=True))
