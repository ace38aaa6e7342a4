"""What all engines share: the queue of jobs, restarts and signals. An engine only starts, follows and stops jobs."""

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
from mecheval.machine import Request, stop_requests
from mecheval.store import Store
from mecheval.sweep.job import Event, Job, Report, work

LOOK_SECONDS = 0.2
"""Longest time in seconds before the engine notices a signal or a run that another process has released."""
STOP_SECONDS = 30.0
"""Seconds that runs on a cluster have to save when the sweep is stopped; after that they are killed."""
STOPPING = "stopping: saving the runs under way (press Ctrl-C again to quit without saving)"
HELD_LOOK_SECONDS = 1.0
"""Seconds between two checks of the runs that other processes hold."""


class Engine(Protocol):
    """Works on jobs, several at once."""

    workers: int  # number of jobs worked on at the same time

    def run(self, jobs: list[Job], store: str, report: Report) -> None:
        """Work on all jobs and return when every one has ended; `report` is called in this process for each event.

        A job whose worker dies is restarted from its checkpoint, a few times at most. A run that another process holds
        comes last; it is finished by that process, or resumed here if that process dies. On a signal (Ctrl-C, SIGTERM)
        the workers save and stop, and `Stopped` is raised.
        """


class Stopped(Exception):
    """A signal stopped the sweep. Its progress is saved, and running the sweep again resumes it."""

    def __init__(self, signal: int) -> None:
        self.signal = signal
        super().__init__(f"stopped by signal {signal}")


class Crew(ABC):
    """The workers of an engine during one sweep; all decisions are made by `CrewEngine`.

    A crew must be able to start jobs and to report their events; everything else has a default.
    """

    def has_room(self) -> bool:
        """Whether another job can be started."""
        return True

    @abstractmethod
    def start(self, job: Job) -> None:
        """Begin a job, or resume it from its checkpoint."""

    @abstractmethod
    def hear(self, take: Report) -> None:
        """Call `take` with new events of the jobs, and return after about `LOOK_SECONDS` at the latest.

        The last event of a job is an `end`. Its status is `held` if another process holds the run, and `died`, with
        the reason as its message, if the worker is gone and the job can be restarted.
        """

    def spare(self, jobs: int) -> None:
        """Dismiss idle workers that are not needed for the next `jobs` jobs."""
        return None

    def again(self, job: Job) -> str:
        """The words for a message that say how a job whose worker died will be restarted."""
        return "restarted from its checkpoint"

    def stop(self, take: Report) -> None:
        """Ask all workers to save and end, and wait for them."""
        return None

    def close(self) -> None:
        """Kill the remaining workers; their runs keep their last checkpoints."""
        return None


class CrewEngine(ABC):
    """An engine made of a queue of jobs and a crew that works on them."""

    workers: int
    tries: int = 3
    """Number of times that a job is started before it counts as failed, if its worker dies each time."""

    @abstractmethod
    def crew(self, jobs: list[Job], store: str, report: Report) -> AbstractContextManager[Crew]:
        """The workers for these jobs."""

    def run(self, jobs: list[Job], store: str, report: Report) -> None:
        with self.crew(jobs, store, report) as crew, stop_requests() as request:
            try:
                queue = _Queue(jobs, store, report, crew, self.tries, request)
                queue.work()
                if request:
                    report(Event(jobs[0].run, "say", message=STOPPING))
                    crew.stop(queue.take)
            finally:  # workers are left after a second Ctrl-C, or if `report` raised an error
                crew.close()
        if request.signal is not None:
            raise Stopped(request.signal)


class _Queue:
    """The jobs of a sweep: those waiting, those under way, and those whose runs are held by other processes.

    A worker hands back a run that is held. It is retried once nobody holds it, because the other process has then
    either finished it or died.
    """

    def __init__(self, jobs: list[Job], store: str, report: Report, crew: Crew, tries: int, request: Request) -> None:
        self._store, self._report, self._crew, self._most, self._request = Store(store), report, crew, tries, request
        self._waiting, self._under_way, self._tries = deque(jobs), dict[str, Job](), Counter[str]()
        self._held = dict[str, tuple[Job, str]]()  # run id -> the job, and a message that says who holds the run
        self._said, self._look = set[tuple[str, str]](), 0.0

    def work(self) -> None:
        """Hand out jobs until every one has ended or a signal has arrived."""
        while (self._waiting or self._under_way or self._held) and not self._request:
            while self._crew.has_room() and (job := self._waiting.popleft() if self._waiting else self._free()):
                self._under_way[job.run] = job
                self._crew.start(job)
            self._crew.spare(len(self._waiting) + len(self._held))
            if not self._under_way:
                self._say_who_holds()
            self._crew.hear(self.take)

    def take(self, event: Event) -> None:
        """Report an event. If it ends a job that is held or whose worker died, queue the job again instead."""
        if event.kind != "end":
            if event.run in self._under_way:
                self._report(event)
        elif event.status != "interrupted" and (job := self._under_way.pop(event.run, None)):
            if event.status == "held":
                self._held[job.run] = job, event.message
            elif event.status != "died":
                self._report(event)
            elif not self._request:
                self._begin_again(job, event.message)

    def _begin_again(self, job: Job, why: str) -> None:
        self._tries[job.run] += 1
        if self._tries[job.run] >= self._most:
            self._report(Event(job.run, "end", status="failed", message=f"{why}, {self._most} times"))
            return
        self._report(Event(job.run, "say", message=f"{job.config.title}: {why}; {self._crew.again(job)}"))
        self._waiting.appendleft(job)

    def _free(self) -> Job | None:
        """A job that nobody holds any more, if any; locks are checked only every `HELD_LOOK_SECONDS`."""
        if time.monotonic() >= self._look:
            for run in self._held:
                if not self._is_held(run):
                    return self._held.pop(run)[0]
            self._look = time.monotonic() + HELD_LOOK_SECONDS
        return None

    def _is_held(self, run: str) -> bool:
        try:
            return self._store.folder(run).is_held()
        except OSError:  # the worker will report what is wrong with the run
            return False

    def _say_who_holds(self) -> None:
        """Report which runs the sweep waits for and who holds them, once for each holder."""
        for job, message in self._held.values():
            if (job.run, message) not in self._said:
                self._said.add((job.run, message))
                said = f"{job.config.title}: {message} Waiting until that process finishes the run or releases it."
                self._report(Event(job.run, "say", message=said))


class HereEngine(CrewEngine, Crew):
    """Runs jobs in this process, one after the other, for mixers that another process could not import."""

    workers = 1

    def __init__(self, checkpoint_seconds: float = 30.0) -> None:
        self._seconds = checkpoint_seconds
        self._store, self._job = "", list[Job]()  # the store's path, and the next job, if any

    def crew(self, jobs: list[Job], store: str, report: Report) -> AbstractContextManager[Crew]:
        self._store, self._job = store, []
        return nullcontext(self)

    def has_room(self) -> bool:
        return not self._job

    def start(self, job: Job) -> None:
        self._job = [job]

    def hear(self, take: Report) -> None:
        """Work on the job. A signal during training saves the run and stops the sweep."""
        if not self._job:
            time.sleep(LOOK_SECONDS)
        elif work(self._job.pop(), self._store, take, checkpoint_seconds=self._seconds) == "interrupted":
            raise Stopped(signal.SIGINT)


class Kind(NamedTuple):
    """A kind of engine: the place of its class (`module:class`) and its command-line options."""

    place: str
    options: tuple[str, ...]


ENGINES = {
    "local": Kind("mecheval.sweep.local:LocalEngine", ("workers", "nice")),
    "ray": Kind("mecheval.sweep.ray_engine:RayEngine", ("address", "cpus", "gpus")),
    "slurm": Kind("mecheval.sweep.slurm_engine:SlurmEngine", ("partition", "minutes", "workers", "cpus", "gpus")),
}
"""The engines of `mecheval study --engine`. A new engine needs a file of its own and a line here."""


def make_engine(name: str, options: dict[str, Any]) -> Engine:
    """The engine called `name`; options that are left out have the engine's defaults."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    module, _, cls = ENGINES[name].place.partition(":")
    made: Callable[..., Engine] = getattr(import_module(module), cls)
    return made(**options)
