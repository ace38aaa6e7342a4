"""The progress display of a training run on a terminal or in a log file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Column
from rich.text import Text

from mecheval.training.watch import Start, Watcher

REFRESH = 1 / 8
"""Seconds between two redraws of the bar; each takes about a millisecond."""
RECENT = 10.0
"""Seconds over which the rate is measured."""
SMOOTH = 0.98
"""Smoothing factor of the displayed loss, per step."""
MEASURES = ("likelihood", "accuracy")
COLOURS = {"done": "green", "interrupted": "yellow", "diverged": "red", "failed": "red"}


def progress(console: Console, seconds: float = 5.0, clock: Callable[[], float] = time.monotonic) -> Watcher:
    """A progress bar on a terminal, or plain lines elsewhere, at most one every `seconds`."""
    return Bar(console, clock) if has_cursor(console) else Lines(console, clock, seconds)


def has_cursor(console: Console) -> bool:
    """Whether lines can be redrawn, as on any terminal except a dumb one."""
    return console.is_terminal and not console.is_dumb_terminal


class Pace:
    """The progress and speed of a run; only steps of this process count towards its speed."""

    def __init__(self, start: Start, clock: Callable[[], float]) -> None:
        self.start, self.clock = start, clock
        self.began = self.now = self._due = clock()
        self.at = start.step
        self._marks = deque([(self.began, start.step)])
        self._loss = self._weight = 0.0

    def step(self, step: int, loss: float) -> bool:
        """Record a step and return whether it is time to redraw. It is called at every step, so it must be cheap."""
        self.at = step
        self._loss = SMOOTH * self._loss + loss
        self._weight = SMOOTH * self._weight + 1
        self.now = self.clock()
        if self.now < self._due:
            return False
        self._due = self.now + REFRESH
        self._marks.append((self.now, step))
        while len(self._marks) > 2 and self._marks[1][0] <= self.now - RECENT:
            self._marks.popleft()
        return True

    def loss(self) -> float | None:
        """The smoothed loss; None before the first step."""
        return self._loss / self._weight if self._weight else None

    def rate(self) -> float:
        """Recent steps per second, up to the last step and not counting an evaluation after it."""
        then, step = self._marks[0]
        return (self.at - step) / (self.now - then) if self.now > then else 0.0

    def left(self) -> str:
        """The remaining time at the recent rate; empty before a rate is known."""
        rate = self.rate()
        return f"{duration((self.start.steps - self.at) / rate)} left" if rate else ""


class Lines:
    """Plain lines without control characters, few enough for a log file."""

    def __init__(self, console: Console, clock: Callable[[], float], seconds: float = 0.0) -> None:
        self._console, self._clock, self._seconds = console, clock, seconds
        self._next = float("-inf")  # time from which the next row may be printed
        self._waiting = ""  # the last row, if it came too soon to be printed

    def begin(self, start: Start) -> None:
        self._pace = Pace(start, self._clock)
        where = f"  resumes at step {start.step}" if start.step else ""
        line = f"{start.title}  run {start.run}  {start.parameters:,} parameters{where}"
        show(self._console, Text(line, "bold"))

    def step(self, step: int, loss: float) -> None:
        self._pace.step(step, loss)

    def row(self, row: Mapping[str, float]) -> None:
        """Print a line, unless the last one is too recent."""
        pace = self._pace
        parts = (f"step {row['step']:.0f}/{pace.start.steps}", numbers(row["loss"], row, pace.rate()), pace.left())
        self._waiting = "  ".join(filter(None, parts))
        now = self._clock()
        if now >= self._next:
            self._next = now + self._seconds
            self._print_waiting()

    def say(self, message: str) -> None:
        show(self._console, message)

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """Print the last row, if it has not been printed, and a line with the result."""
        self._print_waiting()
        style = f"bold {COLOURS.get(status, '')}"
        show(self._console, Text.assemble((status, style), "  ", dimmed(result(self._pace, scores))))
        if "interchange_seconds" in scores:
            self.say(f"interventions during training took {scores['interchange_seconds']:.1f} s of that")

    def _print_waiting(self) -> None:
        if self._waiting:
            self.say(self._waiting)
        self._waiting = ""


class Bar(Lines):
    """Two live lines below all other output, replaced by one line at the end.

    They are redrawn only by `step`, so no thread is needed.
    """

    def begin(self, start: Start) -> None:
        super().begin(start)
        self._row: Mapping[str, float] = {}
        self._bar = bars(0, "{task.fields[counts]}", get_time=lambda: self._pace.now)
        self._task = self._bar.add_task("", total=max(start.steps, 1), counts="")
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        self._draw()

    def step(self, step: int, loss: float) -> None:
        if self._pace.step(step, loss):
            self._draw()

    def row(self, row: Mapping[str, float]) -> None:
        """Keep the dev scores for the next redraw."""
        self._row = dict(row)

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        self._live.stop()
        super().end(status, scores)

    def _draw(self) -> None:
        pace, steps = self._pace, self._pace.start.steps
        counts = f"{100 * pace.at // max(steps, 1):4}%  {pace.at:{len(str(steps))}}/{steps}  {pace.left():>12}"
        below = dimmed(numbers(pace.loss(), self._row, pace.rate()))
        below.no_wrap, below.overflow = True, "ellipsis"
        self._bar.update(self._task, completed=pace.at, counts=counts)
        self._live.update(Group(self._bar, below), refresh=True)


def bars(*columns: str | int, **options: Any) -> Progress:
    """Progress bars that are redrawn only on demand. A column is a text template, or the width of the bar as a number.

    A bar of width 0 takes all the remaining room. Without one, the first text does, and is truncated if it is too long.
    """
    made: list[ProgressColumn] = []
    for place, column in enumerate(columns):
        if isinstance(column, int):
            size = Column(width=column) if column else Column(ratio=1)
            made.append(BarColumn(column or None, complete_style="cyan", finished_style="cyan", table_column=size))
        else:
            size = Column(ratio=1 if 0 not in columns and place == 0 else None, no_wrap=True, overflow="ellipsis")
            made.append(TextColumn(column, markup=False, table_column=size))
    return Progress(*made, auto_refresh=False, expand=True, **options)


def show(console: Console, line: str | Text) -> None:
    """Print a line unchanged: without markup, highlighting or line breaks."""
    console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def dimmed(line: str) -> Text:
    """A line with dim words and bright numbers, so that changes are easy to see."""
    text = Text(line, "dim")
    text.highlight_regex(r"\b(\d\S*|nan|inf)", "not dim")
    return text


def numbers(loss: float | None, row: Mapping[str, float], rate: float) -> str:
    """A text such as `loss 6.312  dev likelihood 0.061 accuracy 0.058  83 steps/s`, without what is not known yet."""
    parts = [measured(row, "dev")]
    if loss is not None:
        tiny = 0 < loss < 5e-4  # shown as 3e-04, which is as wide as 0.001, so that the text does not jump
        parts.insert(0, f"loss {loss:.0e}" if tiny else f"loss {loss:.3f}")
    if rate:
        parts.append(f"{rate:.0f} steps/s" if rate >= 10 else f"{rate:.2g} steps/s")
    return "  ".join(filter(None, parts))


def result(pace: Pace, scores: Mapping[str, float]) -> str:
    """A text such as `50016 steps  9:57  dev/test likelihood 0.991/0.990 accuracy 0.995/0.994`, at most 80 columns."""
    steps = pace.start.steps
    count = f"{steps} steps" if pace.at == steps else f"{pace.at}/{steps} steps"
    alike = all((f"dev_{name}" in scores) == (f"test_{name}" in scores) for name in MEASURES)
    said = [measured(scores, "dev", "test")] if alike else [measured(scores, "dev"), measured(scores, "test")]
    return "  ".join(filter(None, [count, duration(pace.clock() - pace.began), *said]))


def measured(scores: Mapping[str, float], *splits: str) -> str:
    """A text such as `dev likelihood 0.061 accuracy 0.058`; several splits are shown side by side."""
    known = [name for name in MEASURES if f"{splits[0]}_{name}" in scores]
    values = [f"{name} " + "/".join(f"{scores[f'{split}_{name}']:.3f}" for split in splits) for name in known]
    return " ".join(["/".join(splits), *values]) if values else ""


def duration(seconds: float) -> str:
    """A time such as 0:42, 9:57 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
