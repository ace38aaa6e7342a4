"""Progress of a sweep, on a terminal and in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import TaskID
from rich.text import Text

from mecheval.config import RunConfig
from mecheval.errors import UserError
from mecheval.store import Store
from mecheval.sweep.driver import Estimate, rows_of, time_left
from mecheval.sweep.job import Event, Job
from mecheval.training.progress import bars, duration, has_cursor, show
from mecheval.types import LAST

REFRESH = 0.25
"""Seconds between two refreshes of the live table."""
MEASURED_STEPS = 50
"""Number of steps after which a run's own pace is used to estimate its time and that of similar runs."""


@dataclass
class Running:
    """A run under way."""

    job: Job
    since: float
    first: int = 0  # step at which it began
    step: int = 0
    accuracy: float | None = None


class Tally:
    """Counts the runs of a sweep by status and estimates how long the rest will take."""

    def __init__(self, jobs: Sequence[Job], todo: Sequence[Job], store: Store, workers: int) -> None:
        self.jobs = {job.run: job for job in jobs}
        self.waiting = {job.run: job for job in todo}
        self.running: dict[str, Running] = {}
        self.ended = dict.fromkeys(("done", "diverged", "failed"), 0)
        self.before, self.workers = len(jobs) - len(todo), max(1, workers)
        self.estimate = Estimate(rows_of(store))

    def event(self, event: Event, now: float) -> None:
        job = self.jobs[event.run]
        if event.kind in ("begin", "step"):
            self.waiting.pop(event.run, None)
            run = self.running.setdefault(event.run, Running(job, now, event.step))
            run.step, run.accuracy = event.step, event.accuracy
            if run.step - run.first > MEASURED_STEPS:
                self.estimate.learn(job.config, now - run.since, run.step - run.first)
        if event.kind == "end":
            self.waiting.pop(event.run, None)
            run = self.running.pop(event.run, Running(job, now))
            self.ended[event.status] = self.ended.get(event.status, 0) + 1
            if event.status == "done" and not run.first and event.step:
                self.estimate.learn(job.config, now - run.since, event.step, done=True)

    def finished(self) -> int:
        """The number of runs that need no more work, including those that were done before."""
        return self.before + sum(self.ended.values())

    def left(self, now: float) -> float:
        """The estimated number of seconds to the end of the sweep."""
        rest = []
        for run in self.running.values():
            steps, done = run.job.config.data.steps, run.step - run.first
            guess = self.estimate.seconds(run.job.config)
            pace = (now - run.since) / done if done > MEASURED_STEPS else guess / steps
            rest.append(max(0.0, min(pace * (steps - run.step), max(guess - (now - run.since), 0.1 * guess))))
        rest += [self.estimate.seconds(job.config) for job in self.waiting.values()]
        return time_left(rest, self.workers)

    def summary(self, now: float) -> str:
        """A line such as `3 of 12 runs · 1 failed · about 2:10 left`."""
        said = [f"{self.finished()} of {len(self.jobs)} runs"]
        said += [f"{count} {status}" for status, count in self.ended.items() if count and status != "done"]
        if self.running or self.waiting:
            said.append(f"about {duration(self.left(now))} left")
        return " · ".join(said)


class Board:
    """Writes a line for each message and each finished run, to the console and to the file `log`.

    On a terminal, a live table replaces the lines: it has a progress bar for the sweep and one for each run under way,
    and only failures and messages stay above it. Each line of the log begins with its time (UTC), and the last one
    gives the sweep's progress when it ended. A full disk does not stop the sweep; the log then lacks lines.
    """

    def __init__(
        self, console: Console, title: str, clock: Callable[[], float] = time.monotonic, log: Path | None = None,
        *, verdicts: bool = False, paces: Sequence[tuple[RunConfig, float]] = (),
    ) -> None:  # fmt: skip
        self._console, self._title, self._clock, self._log = console, title, clock, log
        self._verdicts = verdicts  # whether to show the verdict on each run that ends, even above a live table
        self._paces = paces  # seconds per step, for runs that were timed before the sweep
        self._live: Live | None = None
        self._tasks: dict[str, TaskID] = {}  # the bar of each run under way
        self._due = 0.0
        if log is not None:
            try:
                log.open("a").close()
            except OSError as error:
                raise UserError(f"cannot write the log {log}: {error.strerror or error}.") from None

    def begin(self, jobs: Sequence[Job], todo: Sequence[Job], store: Store, workers: int) -> None:
        self._tally, self._store = Tally(jobs, todo, store, workers), store
        for config, pace in self._paces:
            self._tally.estimate.learn(config, pace, 1)
        if not todo:
            return
        if has_cursor(self._console):
            columns = "{task.description}", 16, "{task.fields[numbers]}"
            self._whole, self._runs = bars(*columns), bars(*columns)
            self._all = self._whole.add_task(self._title, total=len(jobs), numbers="")
            table = Group(self._whole, self._runs)
            self._live = Live(table, console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._draw(self._live)
        here = f"{len(todo)} of {len(jobs)} runs to do, {min(workers, len(todo))} at once"
        self._line(f"{self._title}: {here}, about {duration(self._tally.left(self._clock()))}")

    def event(self, event: Event) -> None:
        now, failed = self._clock(), event.status == "failed"
        began = self._tally.running.get(event.run)
        self._tally.event(event, now)
        if event.kind == "say":
            self._line(event.message, Text(event.message))
        elif event.kind == "end":
            line = ending(self._tally.jobs[event.run], event)
            above = Text(line, "red") if failed else None
            if self._verdicts and event.status == "done":
                line = self._judged(self._tally.jobs[event.run], now - began.since if began else 0.0)
                above = Text(line)
            self._line(f"{line}  ({self._tally.summary(now)})", above)
        if self._live and now >= self._due:
            self._due = now + REFRESH
            self._draw(self._live)

    def _judged(self, job: Job, seconds: float) -> str:
        """The verdict on a finished run and how long it took, such as `attention  induction, 25 s`."""
        found = [row["label"] for row in self._store.folder(job.run).read("verdicts") if row["state"] == LAST]
        widest = max(len(each.config.mixer.name) for each in self._tally.jobs.values())
        return f"{job.config.mixer.name:{widest}}  {', '.join([*found[:1], f'{seconds:.0f} s'])}"

    def end(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None
        self._to_log(f"{self._title}: {self._tally.summary(self._clock())}")

    def _line(self, line: str, above: Text | None = None) -> None:
        """Write a line to the log and to the console. Above a live table, show `above` instead, if anything."""
        self._to_log(line)
        if self._live is None:
            show(self._console, line)
        elif above is not None:
            show(self._console, above)

    def _to_log(self, line: str) -> None:
        if self._log is not None:
            with suppress(OSError), self._log.open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ} {line}\n")

    def _draw(self, live: Live) -> None:
        tally = self._tally
        self._whole.update(self._all, completed=tally.finished(), numbers=tally.summary(self._clock()))
        for run in self._tasks.keys() - tally.running.keys():
            self._runs.remove_task(self._tasks.pop(run))
        for run, each in tally.running.items():
            steps = each.job.config.data.steps
            if run not in self._tasks:
                self._tasks[run] = self._runs.add_task(f"  {each.job.config.title}", total=steps, numbers="")
            accuracy = "" if each.accuracy is None else f"dev acc {each.accuracy:.2f}"
            numbers = f"{each.step}/{steps}  {accuracy:12}"
            self._runs.update(self._tasks[run], completed=each.step, numbers=numbers)
        live.refresh()


def ending(job: Job, event: Event) -> str:
    """One line that says how a run ended."""
    accuracy = "" if event.accuracy is None else f"  dev acc {event.accuracy:.3f}"
    return f"{event.status:9} {job.config.title}{accuracy}{': ' + event.message if event.message else ''}"
