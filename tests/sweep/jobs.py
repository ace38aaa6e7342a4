"""Small jobs, an engine without processes, and what to compare runs by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mecheval.store import Store
from mecheval.sweep import Event, Job, work
from mecheval.sweep.job import Report
from training.runs import published, tiny


def small_jobs(n: int = 4, **options: Any) -> list[Job]:
    """Runs of about a second, two mixers in turn."""
    return [Job(tiny(mixer=("attention", "mamba")[i % 2], seed=i, **options)) for i in range(n)]


class Here:
    """An engine that works in this very process, one job after the other: what the real ones are compared with."""

    workers = 1

    def __init__(self) -> None:
        self.worked_on: list[str] = []

    def run(self, jobs: list[Job], store: str, report: Report) -> None:
        for job in jobs:
            self.worked_on.append(job.run)
            work(job, store, report)


class Heard:
    """Keeps the events of a sweep."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.todo: list[Job] = []
        self.ended = False

    def begin(self, jobs: object, todo: Sequence[Job], store: object, workers: int) -> None:
        self.todo = list(todo)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def end(self) -> None:
        self.ended = True

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


def bytes_of(store: Store | str | Path, jobs: list[Job]) -> dict[str, dict[str, bytes]]:
    """What every run published."""
    store = store if isinstance(store, Store) else Store(store)
    return {job.run: published(store.folder(job.run)) for job in jobs}
