"""The Ray engine: the same jobs on the machines of a Ray cluster."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from mecheval.errors import UserError
from mecheval.mixers import own
from mecheval.store import StoreError
from mecheval.store.location import Mirror, is_url, local_copy, marked, remove_stale
from mecheval.sweep.job import Event, Held, Job, Stopped, Tell
from mecheval.sweep.local import WORKER
from mecheval.sweep.ray_join import CONNECT_SECONDS, Connection, import_ray, last_line
from mecheval.sweep.ray_task import task
from mecheval.training.signals import Request, stop_requests

LOOK_SECONDS = 0.5
"""Between two looks at events, results and signals."""
STOP_SECONDS = 30.0
"""How long runs may take to save when the sweep is stopped; then they are killed where they were last saved."""


class RayEngine:
    """Tasks on a Ray cluster, one for a job; `cpus` and `gpus` are what one thread of a job is given of a node.

    `address` is `host:port` of a cluster's head, `auto` for the cluster of this machine, or None for a Ray of one's own
    that ends with the sweep. The store is a folder that all nodes see under the same path, or a URL.
    """

    def __init__(
        self, address: str | None, cpus: float = 1, gpus: float = 0, tries: int = 5, checkpoint_seconds: float = 30.0
    ) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus
        self.tries, self.checkpoint_seconds = tries, checkpoint_seconds
        self._connection = Connection(address)
        self._join()
        self.workers = self.room(1)
        if not self.workers:
            problem = self.no_room(1)
            self._connection.leave()
            raise UserError(problem)

    def run(self, jobs: list[Job], store: str, tell: Tell) -> None:
        """See `Engine`."""
        self._join()
        try:
            warning = self._connection.warning()
            if warning and jobs:
                tell(Event(jobs[0].run, "say", message=warning))
            with _marked(store) as (place, marker), stop_requests() as request:
                _Sweep(self, jobs, place, marker, tell).run(request)
        finally:
            self._connection.leave()
        if request.signal is not None:
            raise Stopped(request.signal)

    def _join(self) -> None:
        self._connection.join()

    def room(self, threads: int) -> int:
        """How many jobs of so many threads all nodes together can take."""
        nodes = [node["Resources"] for node in import_ray().nodes() if node["Alive"]]
        return sum(fits(node, self.cpus * threads, self.gpus) for node in nodes)

    def no_room(self, threads: int) -> str:
        """What is wanted, and what there is."""
        nodes = [node["Resources"] for node in import_ray().nodes() if node["Alive"]]
        wanted = f"{self.cpus * threads:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
        have = sorted({f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes})
        there = f"nodes have: {'; '.join(have) or 'none'}"
        return f"no node of the Ray cluster has the {wanted} that a job wants ({there}); ask for less, or add a node."


class _Sweep:
    """One call of `RayEngine.run`."""

    def __init__(self, engine: RayEngine, jobs: list[Job], store: str, marker: str, tell: Tell) -> None:
        ray = import_ray()
        self.ray, self.engine, self.store, self.marker, self.tell = ray, engine, store, marker, tell
        self.tries = Counter[str]()
        self.ended: set[str] = set()
        self.mailbox: Any = _mailbox(ray)
        self.task = ray.remote(task)
        self.under_way: dict[Any, Job] = {}  # by the reference to the task's result
        self.held = Held(store)
        for threads in sorted({job.config.machine.threads for job in jobs}):
            if not engine.room(threads):
                raise UserError(engine.no_room(threads))
        for job in jobs:
            self.submit(job)

    def submit(self, job: Job) -> None:
        """Have Ray begin the job when a node has room for it. Ray's own retries are off: they would be silent."""
        environment = {**WORKER, **own.environment()}
        options = {"num_cpus": self.engine.cpus * job.config.machine.threads, "num_gpus": self.engine.gpus}
        submitted = self.task.options(
            **options, max_retries=0, runtime_env={"env_vars": environment}, name=job.config.title
        ).remote(json.dumps(job.to_dict()), self.store, self.marker, self.engine.checkpoint_seconds, self.mailbox)
        self.under_way[submitted] = job

    def run(self, request: Request) -> None:
        """Until every job has ended, or a signal comes."""
        try:
            while (self.under_way or self.held) and not request:
                while job := self.held.free():
                    self.submit(job)
                ready = self.wait()
                self.pass_on_events()
                for result in ready:
                    self.take(result, self.under_way.pop(result))
        finally:  # also after an error of whoever listens: no task outlives the sweep
            self.stop()

    def wait(self) -> list[Any]:
        """The tasks that have ended, after a while at most; tell it if all that is left are runs that others hold."""
        if self.under_way:
            ready: list[Any] = self.ray.wait(list(self.under_way), timeout=LOOK_SECONDS)[0]
            return ready
        self.held.say(self.tell)
        time.sleep(LOOK_SECONDS)
        return []

    def pass_on_events(self) -> None:
        """Tell what the tasks have said."""
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
            event = Event(*json.loads(text))
            if event.run not in self.ended:
                self.tell(event)

    def take(self, result: Any, job: Job) -> None:
        """A task has returned its job's end, or died."""
        errors = self.ray.exceptions
        try:
            event = Event(*json.loads(self.ray.get(result)))
        except (errors.RayTaskError, errors.RuntimeEnvSetupError, errors.TaskUnschedulableError) as error:
            event = Event(job.run, "end", status="failed", message=last_line(error))
        except errors.RayError as error:
            self.begin_again(job, f"its worker died ({type(error).__name__})")
            return
        if event.status == "interrupted":  # by someone else's signal, as when a node is shut down
            self.begin_again(job, "its worker was told to stop")
        elif event.status == "held":
            self.held.add(job, event.message)
        else:
            self.end(event, job)

    def begin_again(self, job: Job, why: str) -> None:
        """Unless that has happened too often."""
        self.tries[job.run] += 1
        if self.tries[job.run] >= self.engine.tries:
            times = f"{self.engine.tries} times"
            self.end(Event(job.run, "end", status="failed", message=f"{why}, {times}"), job)
            return
        room = self.engine.room(job.config.machine.threads)
        when = "begun again from its checkpoint" if room else "waiting for a node that can take it"
        self.tell(Event(job.run, "say", message=f"{job.config.title}: {why}; {when}"))
        self.submit(job)

    def end(self, event: Event, job: Job) -> None:
        """Tell it, when its results can be read here."""
        if is_url(self.store):
            try:
                Mirror(self.store).pull_results(local_copy(self.store), [job.run])
            except StoreError as error:
                self.tell(Event(job.run, "say", message=f"{job.config.title}: {error}"))
        self.ended.add(job.run)
        self.tell(event)

    def stop(self) -> None:
        """Ask the tasks that are left to save and end; kill those that take too long."""
        left = list(self.under_way)
        for force in (False, True):
            for result in left:
                with suppress(self.ray.exceptions.RayError, ValueError):
                    self.ray.cancel(result, force=force)
            if left:
                _, left = self.ray.wait(left, num_returns=len(left), timeout=STOP_SECONDS)
        self.pass_on_events()


def _mailbox(ray: ModuleType) -> Any:
    """An actor on this node, to live and die with the driver: tasks put events into it, the driver takes them out."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Mailbox:  # made here, it travels as it is: its process need not import the whole package
        def __init__(self) -> None:
            self.events: list[str] = []

        def put(self, event: str) -> None:
            self.events.append(event)

        def take(self) -> list[str]:
            events, self.events = self.events, []
            return events

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()


@contextmanager
def _marked(store: str) -> Iterator[tuple[str, str]]:
    """The store's place as tasks open it, with a file in it by which a task knows that it sees the same folder."""
    if is_url(store):
        Mirror(store).check()  # an error here and now if nothing can be written there
        yield store, ""
        return
    place = Path(store).absolute()
    remove_stale(place)
    with marked(place) as marker:
        yield str(place), marker


def fits(node: dict[str, float], cpus: float, gpus: float) -> int:
    """How many shares of so many CPUs and GPUs a node has."""
    shares = [int(node.get(name, 0) / share) for name, share in (("CPU", cpus), ("GPU", gpus)) if share]
    return min(shares, default=1)
