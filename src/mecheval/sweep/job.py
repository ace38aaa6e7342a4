"""The parts of a sweep: points of a grid, jobs (each a run to train and intervene on), and the events of a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mecheval.config import RunConfig, run_config
from mecheval.errors import UnknownName, UserError, said
from mecheval.machine import keep_memory
from mecheval.store import RunFolder, RunHeld, Store, StoreError
from mecheval.training.watch import Quiet, Start, tracker
from mecheval.types import LAST

HELD_SECONDS = 2.0
"""Seconds that a worker waits for a run that another process holds before it hands the run back to its engine.

A worker whose parent has died needs about as long to save and release its run.
"""
REPORT_SECONDS = 0.5
"""Shortest time in seconds between two `step` events of a run."""


@dataclass(frozen=True)
class Point:
    """A run of a grid, and the values of its axes."""

    axes: Mapping[str, Any]
    config: RunConfig


def grid(base: Mapping[str, Any], **axes: Sequence[Any]) -> list[Point]:
    """One run for every combination of the axes' values; the last axis varies fastest.

    `base` and the axes are options of `run_config` by name, such as task, mixer, preset, lr, d_conv or `task.queries`.
    """
    points: list[Point] = []
    rates = len(axes["lr"]) if [*axes][-1:] == ["lr"] else 1
    for number, values in enumerate(product(*axes.values())):
        place = dict(zip(axes, values, strict=True))
        again = number % rates  # only the learning rate differs
        config = points[-1].config.with_rate(place["lr"]) if again else run_config(**{**base, **place})
        points.append(Point(place, config))
    return points


def only(points: Sequence[Point], wanted: Mapping[str, Sequence[Any]]) -> list[Point]:
    """The points whose axes have one of the wanted values."""
    for axis, values in wanted.items():
        there = list(dict.fromkeys(point.axes[axis] for point in points if axis in point.axes))
        if not there:
            raise UnknownName("axis", axis, {axis for point in points for axis in point.axes})
        for value in values:
            if value not in there:
                raise UserError(f"no run has {axis} {value}. Choices: {', '.join(str(value) for value in there)}.")
    return [point for point in points if all(point.axes.get(axis) in values for axis, values in wanted.items())]


@dataclass(frozen=True)
class Job:
    """A run to train, and the splits on which to intervene afterwards."""

    config: RunConfig
    splits: tuple[str, ...] = ("test",)
    track: tuple[str, ...] = ()  # names of the trackers that log its training

    @property
    def run(self) -> str:
        return self.config.id

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for another process."""
        return {"config": self.config.to_dict(), "splits": list(self.splits), "track": list(self.track)}

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Job:
        """The job that `to_dict` has described."""
        return cls(RunConfig.read(given["config"]), tuple(given["splits"]), tuple(given["track"]))


class Event(NamedTuple):
    """Something that happened to a run. Every job has one `end` event unless the sweep is stopped."""

    run: str
    kind: Literal["begin", "step", "say", "end"]
    step: int = 0
    accuracy: float | None = None  # the latest accuracy on dev
    status: str = ""  # of an `end`: done, diverged or failed; only between worker and engine: interrupted, held or died
    message: str = ""  # the text of a `say`; for an `end`, why the run failed or who holds it


Report = Callable[[Event], None]
"""A function that is called with each event of a job."""


def work(job: Job, store: str, report: Report, checkpoint_seconds: float = 30.0) -> str:
    """Train a job's run and intervene on it, skipping what is done already; report its end and return its status.

    The status is `held` if another process still works on the run after `HELD_SECONDS`. Errors are reported, not
    raised.
    """
    from mecheval.analysis.runs import probe  # imported here so that planning a sweep does not load torch
    from mecheval.training.loop import Interrupted, train

    keep_memory()
    folder = Store(store).folder(job.run)
    watcher = _Reporter(job.run, report)
    try:
        if not Path(store).is_dir():  # its sweep has made it, and would find a new one in its place
            raise StoreError(f"the store {store} was moved or removed.")
        watchers = [*(tracker(name, Path(store)) for name in job.track), watcher]
        _patiently(folder, lambda: train(job.config, store, watchers, checkpoint_seconds))
        for split in missing(job, folder):
            _patiently(folder, lambda split=split: probe(folder, split=split))  # type: ignore[misc]
        status, message = str(folder.status()["status"]), ""
    except Interrupted:
        status, message = "interrupted", ""
    except RunHeld as error:
        status, message = "held", str(error)
    except Exception as error:  # the failure of one run must not stop the others
        status, message = "failed", said(error)
    report(Event(job.run, "end", watcher.at, watcher.accuracy, status, message))
    return status


def missing(job: Job, folder: RunFolder) -> list[str]:
    """The splits of a trained run that have no verdict yet; there are none if the run has diverged."""
    if folder.status()["status"] != "done":
        return []
    judged = {row["split"] for row in folder.read("verdicts") if row["state"] == LAST}
    return [split for split in job.splits if split not in judged]


def _patiently(folder: RunFolder, act: Callable[[], object]) -> None:
    """Call `act`, waiting up to `HELD_SECONDS` while another process holds the run."""
    until = time.monotonic() + HELD_SECONDS
    while True:
        try:
            if folder.is_held():  # checked first, to avoid building a model in vain
                with folder.exclusive():  # raises an error that says who holds it
                    pass
            act()
            return
        except RunHeld:
            if time.monotonic() >= until:
                raise
            time.sleep(HELD_SECONDS / 8)


class _Reporter(Quiet):
    """Turns what happens in training into events, few enough to be sent to another process."""

    def __init__(self, run: str, report: Report) -> None:
        self.run, self.report = run, report
        self.at, self._next = 0, 0.0
        self.accuracy: float | None = None

    def begin(self, start: Start) -> None:
        self.at = start.step
        self.report(Event(self.run, "begin", self.at))

    def step(self, step: int, loss: float) -> None:
        self.at = step
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPORT_SECONDS
            self.report(Event(self.run, "step", step, self.accuracy))

    def row(self, row: Mapping[str, float]) -> None:
        self.accuracy = row["dev_accuracy"]

    def say(self, message: str) -> None:
        self.report(Event(self.run, "say", self.at, self.accuracy, message=message))
