"""What a terminal, or a log file, shows of a sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mecheval.errors import UserError
from mecheval.store import Store
from mecheval.sweep.estimate import Estimate
from mecheval.sweep.job import Event, Job
from mecheval.sweep.sweeping import SweepWatcher, rows_of
from mecheval.training.progress import duration, show

REFRESH = 0.25
"""Seconds between two looks."""


def board(
    console: Console, title: str, clock: Callable[[], float] = time.monotonic, log: Path | None = None
) -> SweepWatcher:
    """A live table on a terminal; elsewhere a plain line for each run that ends. `log` is a file for such lines."""
    if log is not None:
        return Boards(LogBoard(log, title, clock), board(console, title, clock))
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveBoard(console, title, clock)
    return LineBoard(console, title, clock)


@dataclass
class Running:
    """A run that is being worked on."""

    job: Job
    since: float
    first: int = 0  # step at which it began
    step: int = 0
    accuracy: float | None = None


class Tally:
    """How far a sweep is and how long it will take."""

    def __init__(self, jobs: Sequence[Job], todo: Sequence[Job], store: Store, workers: int, now: float) -> None:
        self.jobs = {job.run: job for job in jobs}
        self.waiting = {job.run: job for job in todo}
        self.running: dict[str, Running] = {}
        self.ended = dict.fromkeys(("done", "diverged", "failed"), 0)
        self.before, self.workers, self.began = len(jobs) - len(todo), max(1, workers), now
        self._estimate = Estimate(rows_of(store))

    def event(self, event: Event, now: float) -> None:
        """Take note."""
        job = self.jobs[event.run]
        if event.kind in ("begin", "step"):
            self.waiting.pop(event.run, None)
            run = self.running.setdefault(event.run, Running(job, now, event.step))
            run.step, run.accuracy = event.step, event.accuracy
        if event.kind == "end":
            self.waiting.pop(event.run, None)
            run = self.running.pop(event.run, Running(job, now))
            self.ended[event.status] = self.ended.get(event.status, 0) + 1
            if event.status == "done" and not run.first:
                self._estimate.learn(job.config, now - run.since)

    def finished(self) -> int:
        """Runs that need no more work, those of earlier sweeps included."""
        return self.before + sum(self.ended.values())

    def left(self, now: float) -> float:
        """Seconds to the end: the work shared by the workers, but no less than the longest run that is going on."""
        rest = []
        for run in self.running.values():
            steps, done = run.job.config.data.steps, run.step - run.first
            guess = self._estimate.seconds(run.job.config)
            pace = (now - run.since) / done if done > 50 else guess / steps
            rest.append(max(0.0, min(pace * (steps - run.step), max(guess - (now - run.since), 0.1 * guess))))
        total = sum(rest) + sum(self._estimate.seconds(job.config) for job in self.waiting.values())
        return max([total / self.workers, *rest])

    def summary(self, now: float) -> str:
        """3 of 12 runs · 1 failed · 2:10 left"""
        said = [f"{self.finished()} of {len(self.jobs)} runs"]
        said += [f"{count} {status}" for status, count in self.ended.items() if count and status != "done"]
        if self.running or self.waiting:
            said.append(f"about {duration(self.left(now))} left")
        return " · ".join(said)


class LineBoard:
    """Plain lines: one for each run that ends, with the count and the time left."""

    def __init__(self, console: Console, title: str, clock: Callable[[], float]) -> None:
        self._console, self._title, self._clock = console, title, clock

    def begin(self, jobs: Sequence[Job], todo: Sequence[Job], store: Store, workers: int) -> None:
        """One line."""
        self._tally = Tally(jobs, todo, store, workers, self._clock())
        if todo:
            here = f"{len(todo)} of {len(jobs)} runs to do, {min(workers, len(todo))} at once"
            self._say(f"{self._title}: {here}, about {duration(self._tally.left(self._clock()))}")

    def event(self, event: Event) -> None:
        """A line at the end of a run, and for what is said."""
        now = self._clock()
        self._tally.event(event, now)
        if event.kind == "end":
            self._say(f"{ending(self._tally.jobs[event.run], event)}  ({self._tally.summary(now)})")
        elif event.kind == "say":
            self._say(event.message)

    def end(self) -> None:
        """Nothing: the last run has said it."""

    def _say(self, line: str) -> None:
        show(self._console, line)


class LogBoard(LineBoard):
    """The same lines, each with its time (UTC), at the end of a file; also how far the sweep was when it ended.

    The sweep is not stopped by a disk that has become full: the file then lacks lines.
    """

    def __init__(self, path: Path, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Console(quiet=True), title, clock)
        self._path = path
        try:
            with path.open("a"):
                pass
        except OSError as error:
            raise UserError(f"cannot write the log {path}: {error.strerror or error}.") from None

    def end(self) -> None:
        """How far it is."""
        self._say(f"{self._title}: {self._tally.summary(self._clock())}")

    def _say(self, line: str) -> None:
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ} {line}\n")


class Boards:
    """Several watchers of one sweep."""

    def __init__(self, *boards: SweepWatcher) -> None:
        self._boards = boards

    def begin(self, jobs: Sequence[Job], todo: Sequence[Job], store: Store, workers: int) -> None:
        """Tell each."""
        for each in self._boards:
            each.begin(jobs, todo, store, workers)

    def event(self, event: Event) -> None:
        """Tell each."""
        for each in self._boards:
            each.event(event)

    def end(self) -> None:
        """Tell each."""
        for each in self._boards:
            each.end()


class LiveBoard(LineBoard):
    """A bar for the sweep and a row for each run that is going on; failures and remarks stay above it."""

    def begin(self, jobs: Sequence[Job], todo: Sequence[Job], store: Store, workers: int) -> None:
        """The empty table."""
        self._tally = Tally(jobs, todo, store, workers, self._clock())
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._due = 0.0
        if todo:
            self._live.start()
            self._draw()

    def event(self, event: Event) -> None:
        """Noted; drawn only now and then."""
        now = self._clock()
        self._tally.event(event, now)
        if event.kind == "say":
            show(self._console, event.message)
        if event.kind == "end" and event.status == "failed":
            show(self._console, Text(ending(self._tally.jobs[event.run], event), "red"))
        if now >= self._due:
            self._due = now + REFRESH
            self._draw()

    def end(self) -> None:
        """The table goes, the cursor comes back."""
        self._live.stop()

    def _draw(self) -> None:
        tally, now = self._tally, self._clock()
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(width=16)
        table.add_column(justify="right", no_wrap=True)
        for run in tally.running.values():
            steps = run.job.config.data.steps
            accuracy = "" if run.accuracy is None else f"dev acc {run.accuracy:.2f}"
            numbers = Text(f"{run.step}/{steps}  {accuracy:12}", "dim")
            table.add_row(Text(f"  {run.job.config.title}"), _bar(run.step, steps), numbers)
        head = Table.grid(padding=(0, 2, 0, 0))
        head.add_row(Text(self._title, "bold"), _bar(tally.finished(), len(tally.jobs), 24), tally.summary(now))
        self._live.update(Group(head, table), refresh=True)


def ending(job: Job, event: Event) -> str:
    """How a run ended, in one line."""
    accuracy = "" if event.accuracy is None else f"  dev acc {event.accuracy:.3f}"
    return f"{event.status:9} {job.config.title}{accuracy}{': ' + event.message if event.message else ''}"


def _bar(at: int, of: int, width: int = 16) -> ProgressBar:
    return ProgressBar(total=max(1, of), completed=at, width=width, complete_style="cyan", finished_style="green")
