"""The Ray engine: each job is a task on one node of a Ray cluster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from mecheval import custom
from mecheval.errors import UserError
from mecheval.store import Store
from mecheval.store.location import check_shared, marked
from mecheval.sweep.engine import STOP_SECONDS, Crew, CrewEngine
from mecheval.sweep.job import Event, Job, Report, work
from mecheval.sweep.local import WORKER
from mecheval.sweep.ray_join import CONNECT_SECONDS, Connection, HeadGone, import_ray, last_line

LOOK_SECONDS = 0.5
"""Seconds between two checks for events, results and signals."""
FLUSH_SECONDS = 10.0
"""Longest time in seconds that a finished job waits for its events to arrive."""


class RayEngine(CrewEngine):
    """Runs each job as a task on a Ray cluster, with `cpus` CPUs per thread and `gpus` GPUs per job.

    `address` is `host:port` of a cluster's head, `auto` for the cluster of this machine, or None for a private Ray that
    ends with the sweep. The store is a folder that all nodes see under the same path.
    """

    def __init__(
        self, address: str | None = None, cpus: float = 1, gpus: float = 0, tries: int = 5,
        checkpoint_seconds: float = 30.0,
    ) -> None:  # fmt: skip
        self.address, self.cpus, self.gpus = address, cpus, gpus
        self.tries, self.checkpoint_seconds = tries, checkpoint_seconds
        self._connection = Connection(address)
        self._connection.join()
        self.workers = self.room(1)
        if not self.workers:
            problem = self.no_room(1)
            self._connection.leave()
            raise UserError(problem)

    @contextmanager
    def crew(self, jobs: list[Job], store: str, report: Report) -> Iterator[Crew]:
        """Join the cluster. Tasks recognise by a marker file in the store that they see the same folder."""
        self._connection.join()
        try:
            warning = self._connection.warning()
            if warning and jobs:
                report(Event(jobs[0].run, "say", message=warning))
            for threads in sorted({job.config.machine.threads for job in jobs}):
                if not self.room(threads):
                    raise UserError(self.no_room(threads))
            place = Store(store).path.absolute()
            with marked(place) as marker:
                yield _Tasks(self, str(place), marker)
        finally:
            self._connection.leave()

    def check_head(self) -> None:
        """Raise an error if the head of the cluster is gone."""
        self._connection.check_head()

    def room(self, threads: int) -> int:
        """The number of jobs with `threads` threads each that all nodes together have room for."""
        return sum(fits(node, self.cpus * threads, self.gpus) for node in _nodes())

    def no_room(self, threads: int) -> str:
        """An error message that says what a job needs and what the nodes have."""
        wanted = f"{self.cpus * threads:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
        have = sorted({f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in _nodes()})
        there = f"nodes have: {'; '.join(have) or 'none'}"
        return f"no node of the Ray cluster has the {wanted} that a job needs ({there}); ask for less, or add a node."


class _Tasks(Crew):
    """The tasks of a sweep. Ray queues those for which no node has room yet."""

    def __init__(self, engine: RayEngine, store: str, marker: str) -> None:
        self.ray = import_ray()
        self.engine, self.store, self.marker = engine, store, marker
        self.mailbox: Any = _mailbox(self.ray)
        self.task = self.ray.remote(task)
        self.under_way: dict[Any, Job] = {}  # by the reference to the task's result

    def start(self, job: Job) -> None:
        """Submit the job to Ray. Ray's own retries are off, because they would not be reported."""
        environment = {**WORKER, **custom.environment()}
        options = {"num_cpus": self.engine.cpus * job.config.machine.threads, "num_gpus": self.engine.gpus}
        submitted = self.task.options(
            **options, max_retries=0, runtime_env={"env_vars": environment}, name=job.config.title
        ).remote(json.dumps(job.to_dict()), self.store, self.marker, self.engine.checkpoint_seconds, self.mailbox)
        self.under_way[submitted] = job

    def hear(self, take: Report) -> None:
        ready = []
        if self.under_way:
            ready = self.ray.wait(list(self.under_way), timeout=LOOK_SECONDS)[0]
        else:
            time.sleep(LOOK_SECONDS)
        self.pass_on_events(take)
        for result in ready:
            take(self.end_of(result, self.under_way.pop(result)))
        self.engine.check_head()

    def pass_on_events(self, take: Report) -> None:
        if self.mailbox is None:
            return
        try:
            said = self.ray.get(self.mailbox.take.remote(), timeout=CONNECT_SECONDS)
        except self.ray.exceptions.GetTimeoutError:
            return
        except self.ray.exceptions.RayError:  # the actor is gone: no more progress, but results still come
            self.mailbox = None
            return
        for text in said:
            take(Event(*json.loads(text)))

    def end_of(self, result: Any, job: Job) -> Event:
        """The `end` event of a finished task."""
        errors = self.ray.exceptions
        try:
            event = Event(*json.loads(self.ray.get(result)))
        except (errors.RayTaskError, errors.RuntimeEnvSetupError, errors.TaskUnschedulableError) as error:
            event = Event(job.run, "end", status="failed", message=last_line(error))
        except errors.RayError as error:
            return Event(job.run, "end", status="died", message=f"its worker died ({type(error).__name__})")
        if event.status == "interrupted":  # by a signal that is not ours, as when a node is shut down
            return event._replace(status="died", message="its worker was asked to stop")
        return event

    def again(self, job: Job) -> str:
        room = self.engine.room(job.config.machine.threads)
        return super().again(job) if room else "waiting for a node that can take it"

    def stop(self, take: Report) -> None:
        """Ask the remaining tasks to save and end; kill those that take too long."""
        left, self.under_way = list(self.under_way), {}  # so that `close` does not repeat this after a second signal
        for force in (False, True):
            for result in left:
                with suppress(self.ray.exceptions.RayError, ValueError):
                    self.ray.cancel(result, force=force)
            if left:
                _, left = self.ray.wait(left, num_returns=len(left), timeout=STOP_SECONDS)
        self.pass_on_events(take)

    def close(self) -> None:
        """Stop tasks that an error has left behind, so that none outlives the sweep."""
        if self.under_way and not isinstance(sys.exception(), HeadGone):
            self.stop(lambda event: None)


def task(job: str, store: str, marker: str, checkpoint_seconds: float, mailbox: Any) -> str:
    """Work on a job on a node, and return its `end`, the one event that must arrive; job and events are JSON."""
    todo, ends = Job.read(json.loads(job)), []
    last = None

    def report(event: Event) -> None:
        nonlocal last
        if event.kind == "end":
            ends.append(event)
        else:
            with suppress(Exception):  # progress may get lost, but a run must not
                last = mailbox.put.remote(json.dumps(event))

    try:
        check_shared(store, marker)
        work(todo, store, report, checkpoint_seconds)
    except UserError as error:  # the store cannot be reached from here
        ends = [Event(todo.run, "end", status="failed", message=str(error))]
    if last is not None:
        with suppress(Exception):  # events of one task arrive in order, so all have arrived when the last one has
            import_ray().get(last, timeout=FLUSH_SECONDS)
    return json.dumps(ends[-1])


def _mailbox(ray: ModuleType) -> Any:
    """An actor on the driver's node through which tasks send events to the driver; it ends with the driver."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Mailbox:  # a local class is sent by value, so that its process need not import the whole package
        def __init__(self) -> None:
            self.events: list[str] = []

        def put(self, event: str) -> None:
            self.events.append(event)

        def take(self) -> list[str]:
            events, self.events = self.events, []
            return events

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()


def _nodes() -> list[dict[str, float]]:
    """The resources of each live node."""
    return [node["Resources"] for node in import_ray().nodes() if node["Alive"]]


def fits(node: dict[str, float], cpus: float, gpus: float) -> int:
    """The number of jobs with `cpus` CPUs and `gpus` GPUs each that a node has room for."""
    shares = [int(node.get(name, 0) / share) for name, share in (("CPU", cpus), ("GPU", gpus)) if share]
    return min(shares, default=1)
