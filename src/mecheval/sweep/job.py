"""One job of a sweep: a run to train and to intervene on; and what is heard of it while it is worked on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from mecheval.config import RunConfig
from mecheval.store import RunFolder, RunHeld, Store
from mecheval.training.watch import Quiet, Start
from mecheval.types import LAST

HELD_SECONDS = 2.0
"""How long a worker waits for a run that another process holds before it gives the run back to its engine.

A worker whose parent has died needs about so long to save its run and let go of it.
"""
HELD_LOOK_SECONDS = 1.0
"""Seconds between two looks at runs that other processes hold."""
TELL_SECONDS = 0.5
"""Between two reports of a run's step."""


@dataclass(frozen=True)
class Job:
    """A run, and the splits on which it is intervened on once it is trained."""

    config: RunConfig
    splits: tuple[str, ...] = ("test",)

    @property
    def run(self) -> str:
        """The run's id."""
        return self.config.id

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for another process."""
        return {"config": self.config.to_dict(), "splits": list(self.splits)}

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Job:
        """The job that `to_dict` described."""
        return cls(RunConfig.read(given["config"]), tuple(given["splits"]))


class Event(NamedTuple):
    """Something that happened to a run; `end` comes once for every job unless the sweep is stopped."""

    run: str
    kind: Literal["begin", "step", "say", "end"]
    step: int = 0
    accuracy: float | None = None  # on dev, the latest
    status: str = ""  # at the end: done, diverged or failed; for the engine alone: interrupted or held (`NO_END`)
    message: str = ""  # what is said; at the end, why it failed; for a run that is held, who holds it


NO_END = ("interrupted", "held")
"""With these, a worker gives a run back to its engine: it was told to stop, or another process has the run."""


Tell = Callable[[Event], None]


class Engine(Protocol):
    """Something that works on jobs, several at once."""

    workers: int  # jobs worked on at the same time

    def run(self, jobs: list[Job], store: str, tell: Tell) -> None:
        """Work on all jobs; `tell` is called in this process, one event at a time.

        A job whose worker dies is begun again and goes on from its checkpoint, a few times at most. A run that another
        process holds comes last; its result is taken from that process, or the run goes on here if the other one dies.
        Returns when every job has ended. A signal (Ctrl-C, SIGTERM) has the workers save and stop; it raises `Stopped`.
        """


class Stopped(Exception):
    """A signal stopped the sweep; what was done is saved, and the same sweep goes on from there."""

    def __init__(self, signal: int) -> None:
        self.signal = signal
        super().__init__(f"stopped by signal {signal}")


def work(
    job: Job, store: str, tell: Tell, saved: Callable[[], None] | None = None, checkpoint_seconds: float = 30.0
) -> str:
    """Train a job's run and intervene on it, or do what is missing of that; its status, after telling its end.

    The status is `held`, after `HELD_SECONDS`, if another process works on the run. `saved` is called whenever a
    checkpoint has been written. What goes wrong is told, not raised.
    """
    from mecheval.analysis.runs import probe
    from mecheval.training.loop import Interrupted, train  # here: whoever only plans a sweep does not wait for torch

    folder = Store(store).folder(job.run)
    watcher = _Teller(job.run, tell)
    try:
        _patiently(folder, lambda: train(job.config, store, [watcher], checkpoint_seconds, saved))
        for split in missing(job, folder):
            _patiently(folder, lambda split=split: probe(folder, split=split))  # type: ignore[misc]
        status, message = str(folder.status()["status"]), ""
    except Interrupted:
        status, message = "interrupted", ""
    except RunHeld as error:
        status, message = "held", str(error)
    except Exception as error:  # one run's failure is no reason to stop the others
        status, message = "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"
    tell(Event(job.run, "end", watcher.at, watcher.accuracy, status, message))
    return status


def missing(job: Job, folder: RunFolder) -> list[str]:
    """The splits of a trained run that have no verdict yet; a run that diverged has no last state to intervene on."""
    if folder.status()["status"] != "done":
        return []
    judged = {row["split"] for row in folder.read("verdicts") if row["state"] == LAST}
    return [split for split in job.splits if split not in judged]


def _patiently(folder: RunFolder, act: Callable[[], object]) -> None:
    """Do something to a run; while another process holds it, wait a moment."""
    until = time.monotonic() + HELD_SECONDS
    while True:
        try:
            if folder.is_held():  # then there is no need to build a model first
                with folder.exclusive():  # which says who holds it
                    pass
            act()
            return
        except RunHeld:
            if time.monotonic() >= until:
                raise
            time.sleep(HELD_SECONDS / 8)


class Held:
    """The jobs of a sweep whose runs other processes hold.

    An engine puts them here when a worker gives them back, and takes each one out again once nobody holds it: then
    the other process has finished it, or has died and left it to whoever comes next.
    """

    def __init__(self, store: str) -> None:
        self._store, self._jobs, self._said = Store(store), deque[tuple[Job, str]](), set[tuple[str, str]]()
        self._next = 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job, message: str) -> None:
        """Put a job here; `message` says who holds it."""
        self._jobs.append((job, message))

    def free(self) -> Job | None:
        """A job that nobody holds any more; it looks at the locks only every `HELD_LOOK_SECONDS`."""
        now = time.monotonic()
        if now < self._next:
            return None
        for place, (job, _) in enumerate(self._jobs):
            if not self._is_held(job):
                del self._jobs[place]
                return job
        self._next = now + HELD_LOOK_SECONDS
        return None

    def say(self, tell: Tell) -> None:
        """Tell what is waited for, and who holds it; once for each holder."""
        for job, message in self._jobs:
            if (job.run, message) not in self._said:
                self._said.add((job.run, message))
                then = "Waiting for it to end or to let go."
                tell(Event(job.run, "say", message=f"{job.config.title}: {message} {then}"))

    def _is_held(self, job: Job) -> bool:
        try:
            return self._store.folder(job.run).is_held()
        except OSError:  # whoever works on the run tells what is wrong with it
            return False


class _Teller(Quiet):
    """Turns what a run's watcher hears into events, few enough to send elsewhere."""

    def __init__(self, run: str, tell: Tell) -> None:
        self.run, self.tell = run, tell
        self.at, self.accuracy, self._next = 0, None, 0.0

    at: int
    accuracy: float | None

    def begin(self, start: Start) -> None:
        self.at = start.step
        self.tell(Event(self.run, "begin", self.at))

    def step(self, step: int, loss: float) -> None:
        self.at = step
        now = time.monotonic()
        if now >= self._next:
            self._next = now + TELL_SECONDS
            self.tell(Event(self.run, "step", step, self.accuracy))

    def row(self, row: Mapping[str, float]) -> None:
        self.accuracy = row["dev_accuracy"]

    def say(self, message: str) -> None:
        self.tell(Event(self.run, "say", self.at, self.accuracy, message=message))
