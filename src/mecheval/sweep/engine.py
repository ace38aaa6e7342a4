"""Engines: what they share is here; each kind of engine only starts jobs somewhere, hears of them and stops them."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from mecheval.errors import UnknownName
from mecheval.store import Store
from mecheval.sweep.job import Event, Job, Tell, work
from mecheval.training.signals import Request, stop_requests

LOOK_SECONDS = 0.2
"""Seconds until a signal, or a run that has become free, is noticed while nothing else happens."""
HELD_LOOK_SECONDS = 1.0
"""Seconds between two looks at runs that other processes hold."""


class Engine(Protocol):
    """Something that works on jobs, several at once."""

    workers: int  # jobs worked on at the same time

    def run(self, jobs: list[Job], store: str, tell: Tell) -> None:
        """Work on all jobs; `tell` is called in this process, one event at a time.

        A job whose worker dies is begun again and resumes from its checkpoint, a few times at most. A run that another
        process holds comes last; its result is taken from that process, or the run resumes here if the other one dies.
        Returns when every job has ended. A signal (Ctrl-C, SIGTERM) has the workers save and stop; it raises `Stopped`.
        """


class Stopped(Exception):
    """A signal stopped the sweep; what was done is saved, and the same sweep resumes from there."""

    def __init__(self, signal: int) -> None:
        self.signal = signal
        super().__init__(f"stopped by signal {signal}")


class Crew:
    """The workers of an engine during one sweep. It decides nothing: `CrewEngine` does."""

    def has_room(self) -> bool:
        """Whether one more job can be started."""
        return True

    def start(self, job: Job) -> None:
        """Begin a job, or resume it from its checkpoint."""
        raise NotImplementedError

    def hear(self, take: Tell) -> None:
        """Pass on what happens to the jobs; return after `LOOK_SECONDS` or so at the latest.

        The last event of a job is an `end`. Its status is `held` where another process has the run, and `died`, with
        the reason as its message, where the worker is gone and the job can be begun again.
        """
        raise NotImplementedError

    def spare(self, jobs: int) -> None:
        """Let go of idle workers that are not needed for the next `jobs` jobs."""

    def again(self, job: Job) -> str:
        """How a job whose worker died will be begun again, in words."""
        return "begun again from its checkpoint"

    def stop(self, take: Tell) -> None:
        """Have all workers save and end, and wait for them."""

    def close(self) -> None:
        """Kill the workers that are left; their runs stay as they were last saved."""


class CrewEngine(ABC):
    """An engine: a queue of jobs and a crew that works on them."""

    workers: int
    tries: int = 3
    """How often a job is begun before it is given up, if its worker dies each time."""

    @abstractmethod
    def crew(self, jobs: list[Job], store: str, tell: Tell) -> AbstractContextManager[Crew]:
        """The workers for these jobs."""

    def run(self, jobs: list[Job], store: str, tell: Tell) -> None:
        """See `Engine`."""
        with self.crew(jobs, store, tell) as crew, stop_requests() as request:
            try:
                queue = _Queue(jobs, store, tell, crew, self.tries, request)
                queue.work()
                if request:
                    crew.stop(queue.take)
            finally:  # after a second Ctrl-C, or an error of whoever listens, there are still some
                crew.close()
        if request.signal is not None:
            raise Stopped(request.signal)


class _Queue:
    """The jobs of a sweep: those that wait, those under way, and those whose runs other processes hold."""

    def __init__(self, jobs: list[Job], store: str, tell: Tell, crew: Crew, tries: int, request: Request) -> None:
        self._tell, self._crew, self._most, self._request = tell, crew, tries, request
        self._waiting, self._held, self._tries = deque(jobs), _Held(store), Counter[str]()
        self._under_way: dict[str, Job] = {}

    def work(self) -> None:
        """Hand out jobs until every one has ended, or a signal has come."""
        while (self._waiting or self._under_way or self._held) and not self._request:
            while self._crew.has_room() and (job := self._waiting.popleft() if self._waiting else self._held.free()):
                self._under_way[job.run] = job
                self._crew.start(job)
            self._crew.spare(len(self._waiting) + len(self._held))
            if not self._under_way:
                self._held.say(self._tell)
            self._crew.hear(self.take)

    def take(self, event: Event) -> None:
        """Pass on an event, and see to a job that has ended."""
        if event.kind != "end":
            if event.run in self._under_way:
                self._tell(event)
        elif event.status != "interrupted" and (job := self._under_way.pop(event.run, None)):
            if event.status == "held":
                self._held.add(job, event.message)
            elif event.status != "died":
                self._tell(event)
            elif not self._request:
                self._begin_again(job, event.message)

    def _begin_again(self, job: Job, why: str) -> None:
        self._tries[job.run] += 1
        if self._tries[job.run] >= self._most:
            self._tell(Event(job.run, "end", status="failed", message=f"{why}, {self._most} times"))
            return
        self._tell(Event(job.run, "say", message=f"{job.config.title}: {why}; {self._crew.again(job)}"))
        self._waiting.appendleft(job)


class _Held:
    """The jobs of a sweep whose runs other processes hold.

    They are put here when a worker gives them back, and each is taken out again once nobody holds its run: then the
    other process has finished it, or has died and left it to whoever comes next.
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
        """A job that nobody holds any more; the locks are looked at only every `HELD_LOOK_SECONDS`."""
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
        """Say which runs are waited for and who holds them, once for each holder."""
        for job, message in self._jobs:
            if (job.run, message) not in self._said:
                self._said.add((job.run, message))
                then = "Waiting for it to end or to let go."
                tell(Event(job.run, "say", message=f"{job.config.title}: {message} {then}"))

    def _is_held(self, job: Job) -> bool:
        try:
            return self._store.folder(job.run).is_held()
        except OSError:  # whoever works on the run reports what is wrong with it
            return False


class HereEngine(CrewEngine):
    """The engine of this very process: one job after the other, for mixers that no other process could import."""

    workers = 1

    def __init__(self, checkpoint_seconds: float = 30.0) -> None:
        self.checkpoint_seconds = checkpoint_seconds

    def crew(self, jobs: list[Job], store: str, tell: Tell) -> AbstractContextManager[Crew]:
        """The crew that consists of this process."""
        return nullcontext(_Here(store, self.checkpoint_seconds))


class _Here(Crew):
    def __init__(self, store: str, checkpoint_seconds: float) -> None:
        self._store, self._seconds = store, checkpoint_seconds
        self._job: Job | None = None

    def has_room(self) -> bool:
        return self._job is None

    def start(self, job: Job) -> None:
        self._job = job

    def hear(self, take: Tell) -> None:
        """Work on the job. A signal while a run is trained saves it and stops; there is no worker that could die."""
        job, self._job = self._job, None
        if job is None:
            time.sleep(LOOK_SECONDS)
        elif work(job, self._store, take, checkpoint_seconds=self._seconds) == "interrupted":
            raise Stopped(signal.SIGINT)


class Kind(NamedTuple):
    """A kind of engine: where its class is, and the options of the command line that are for it."""

    place: str
    options: tuple[str, ...]


ENGINES = {
    "local": Kind("mecheval.sweep.local:LocalEngine", ("workers", "nice")),
    "ray": Kind("mecheval.sweep.ray_engine:RayEngine", ("address", "cpus", "gpus")),
}
"""The engines of `mecheval study --engine`; a new engine has a file and a line here."""


def make_engine(name: str, options: dict[str, Any]) -> Engine:
    """The engine called `name`; what `options` leave out has the engine's defaults."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    module, _, cls = ENGINES[name].place.partition(":")
    made: Callable[..., Engine] = getattr(import_module(module), cls)
    return made(**options)
