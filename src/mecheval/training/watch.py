"""Watchers hear what happens in a training run and cannot harm it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Start:
    """The run that begins, as a watcher hears of it."""

    run: str  # the run's id, 12 hex digits
    title: str  # e.g. "ar · mamba · d 64 · lr 0.003 · seed 0"
    config: dict[str, Any]  # the whole config, nested, plain data
    step: int  # steps already done: 0, or where the run resumes
    steps: int  # steps in all
    parameters: int


class Watcher(Protocol):
    """`begin`, then any number of `step` and `row`, then `end`; `say` at any time, also before and after.

    Each method does nothing here, for watchers that are made from this one (`Quiet`).
    """

    def begin(self, start: Start) -> None:
        """The run is about to take its first step."""
        return

    def step(self, step: int, loss: float) -> None:
        """A training step is done. Called after every one: this must cost next to nothing."""
        return

    def row(self, row: Mapping[str, float]) -> None:
        """A row of the history: step, lr, loss, dev_loss, dev_likelihood, dev_accuracy."""
        return

    def say(self, message: str) -> None:
        """Something the user should know, in one line."""
        return

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """The run is done, diverged, interrupted or failed; scores are such as dev_accuracy, test_likelihood.

        Where interventions were made on the way, `interchange_seconds` is the time that they took.
        """
        return


class Quiet(Watcher):
    """A watcher that does nothing: for tests and machines, and a base for those that hear only some things."""


class Watchers:
    """Many watchers as one. One that fails is dropped, which the others report; training never stops for it.

    They begin in order and end in reverse. Put the display last: a tracker may ask for a login before the bar is drawn,
    and the bar is gone before a tracker takes its time to finish. Only KeyboardInterrupt passes through, and even then
    every watcher that began gets its one `end`.
    """

    def __init__(self, watchers: Iterable[Watcher]) -> None:
        self._watching = list(watchers)
        self._to_end: list[Watcher] = []  # those that began and have not ended

    def begin(self, start: Start) -> None:
        """Have each begin."""

        def begin(watcher: Watcher) -> None:
            self._to_end.append(watcher)  # before the call: what was interrupted halfway needs its end, too
            watcher.begin(start)

        self._each(begin)

    def step(self, step: int, loss: float) -> None:
        """Pass on a step."""
        self._each(lambda watcher: watcher.step(step, loss))

    def row(self, row: Mapping[str, float]) -> None:
        """Pass on a row."""
        self._each(lambda watcher: watcher.row(row))

    def say(self, message: str) -> None:
        """Pass on a message."""
        self._each(lambda watcher: watcher.say(message))

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        """Have each that began end, the last one first; a second call does nothing."""
        ending, self._to_end = self._to_end, []
        with ExitStack() as stack:  # the rest end also when Ctrl-C hits one of them
            for watcher in ending:
                stack.callback(self._try, watcher, lambda watcher: watcher.end(status, scores))

    def _each(self, act: Callable[[Watcher], None]) -> None:
        for watcher in tuple(self._watching):
            if watcher in self._watching:  # another one's failure may have shown that this one fails, too
                self._try(watcher, act)

    def _try(self, watcher: Watcher, act: Callable[[Watcher], None]) -> None:
        try:
            act(watcher)
        except (Exception, SystemExit) as error:  # rich makes a SystemExit of a closed pipe
            self._watching.remove(watcher)
            if watcher in self._to_end:  # it may hold a file, a process or the cursor
                self._to_end.remove(watcher)
                with suppress(Exception, SystemExit):
                    watcher.end("interrupted", {})
            reason = " ".join([f"{type(error).__name__}:", *str(error).split()])
            self.say(f"{type(watcher).__name__} is off for the rest of this run: {reason}")
