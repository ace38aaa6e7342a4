"""The Slurm engine: jobs are submitted as arrays to a Slurm cluster, through submitit.

A worker writes its events as lines of JSON to a file in the store, which the sweep's process reads. When a job reaches
its time limit, submitit queues it again, and it resumes from its checkpoint.
"""

from __future__ import annotations

import getpass
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from mecheval import custom
from mecheval.errors import UserError
from mecheval.store import Store
from mecheval.store.location import check_shared, marked
from mecheval.sweep.engine import STOP_SECONDS, Crew, CrewEngine
from mecheval.sweep.job import Event, Job, Report, work
from mecheval.sweep.local import WORKER

LOOK_SECONDS = 0.5
"""Seconds between two checks for events."""
QUEUE_SECONDS = 5.0
"""Seconds between two queries of Slurm's queue."""
MOST_TIMEOUTS = 1000
"""Number of times that a job may reach its time limit and be queued again."""
NOTICE_SECONDS = 90
"""Seconds before its time limit at which a job is signalled to requeue, at most a quarter of the limit."""
PROGRAMS = ("sbatch", "srun", "squeue")
"""Slurm's programs that the engine and submitit call on the machine of the sweep."""
MINUTES = 240
"""Default time limit of a job in minutes."""


class SlurmEngine(CrewEngine):
    """Runs jobs as Slurm job arrays, `workers` of an array at once; the store is a folder that all nodes see.

    `cpus` and `gpus` are per thread of a job, and `minutes` is a job's time limit. `cluster` is "slurm", or "local" for
    processes on this machine that submitit runs in the same way.
    """

    def __init__(
        self, partition: str | None = None, minutes: int = MINUTES, cpus: float = 1, gpus: float = 0, workers: int = 64,
        tries: int = 5, checkpoint_seconds: float = 30.0, cluster: str = "slurm",
    ) -> None:  # fmt: skip
        if minutes < 1 or cpus != int(cpus) or gpus != int(gpus) or cpus < 1:
            raise UserError("--engine slurm: give whole numbers of --minutes, --cpus (from 1) and --gpus.")
        self.partition, self.minutes, self.cpus, self.gpus = partition, minutes, int(cpus), int(gpus)
        self.workers, self.tries, self.checkpoint_seconds, self.cluster = workers, tries, checkpoint_seconds, cluster
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if cluster == "slurm" and missing:
            said = " and no ".join(missing)
            raise UserError(f"--engine slurm: there is no {said} on this machine; start the sweep on a login node.")
        self.submitit = import_submitit()

    @contextmanager
    def crew(self, jobs: list[Job], store: str, report: Report) -> Iterator[Crew]:
        """The workers on the cluster, which recognise by a marker file in the store that they see the same folder."""
        place = Store(store).path.absolute()
        with marked(place) as marker:
            folder = Path(tempfile.mkdtemp(prefix=".slurm-", dir=place))  # only this user can read or write it
            try:
                yield _Arrays(self, str(place), marker, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def executor(self, folder: Path, threads: int) -> Any:
        """A submitit executor for jobs with `threads` threads; it keeps its files in `folder`."""
        found = self.submitit.AutoExecutor(
            folder, cluster=self.cluster, slurm_max_num_timeout=MOST_TIMEOUTS, local_max_num_timeout=MOST_TIMEOUTS
        )
        found.update_parameters(
            name="mecheval", timeout_min=self.minutes, cpus_per_task=self.cpus * threads,
            gpus_per_node=self.gpus * threads, slurm_array_parallelism=self.workers,
            slurm_signal_delay_s=min(NOTICE_SECONDS, 15 * self.minutes),
            slurm_setup=[f"export {name}={value}" for name, value in WORKER.items()],
            **({"slurm_partition": self.partition} if self.partition else {}),
        )  # fmt: skip
        return found


def import_submitit() -> Any:
    """The package submitit, or an error that says how to install it."""
    try:
        return importlib.import_module("submitit")
    except ImportError:
        raise UserError("--engine slurm needs submitit: pip install 'mecheval[slurm]'.") from None


class _Arrays(Crew):
    """The jobs of a sweep. Those started between two calls of `hear` are submitted together, as one array."""

    def __init__(self, engine: SlurmEngine, store: str, marker: str, folder: Path) -> None:
        self.engine, self.store, self.marker, self.folder = engine, store, marker, folder
        self.new: list[Job] = []
        self.under_way: list[_Submitted] = []
        self.leaving: list[_Submitted] = []  # jobs whose run has ended, while submitit may still write its files
        self.count, self.next_question = 0, 0.0

    def start(self, job: Job) -> None:
        self.new.append(job)

    def hear(self, take: Report) -> None:
        self.submit()
        time.sleep(LOOK_SECONDS)
        gone = self.gone()
        for each in list(self.under_way):
            events = each.events()
            for event in events:
                if event.kind != "end":
                    take(event)
            ends = [event for event in events if event.kind == "end"]
            if ends and ends[-1].status != "interrupted":
                self.under_way.remove(each)
                self.leaving.append(each)
                take(ends[-1])
            elif each in gone:
                self.under_way.remove(each)
                take(Event(each.job.run, "end", status="died", message=each.last_words()))

    def submit(self) -> None:
        """Submit the jobs started since the last call, as one array for each number of threads."""
        waiting, self.new = self.new, []
        for threads in sorted({job.config.machine.threads for job in waiting}):
            executor = self.engine.executor(self.folder, threads)
            some = [job for job in waiting if job.config.machine.threads == threads]
            sent = []
            with self._accepted(), executor.batch():
                for job in some:
                    self.count += 1
                    file = self.folder / f"{job.run}-{self.count}.jsonl"
                    given = {
                        "job": {"run": job.run, **job.to_dict()}, "store": self.store, "marker": self.marker,
                        "file": str(file), "seconds": self.engine.checkpoint_seconds,
                        "environment": {**WORKER, **custom.environment()},
                    }  # fmt: skip
                    sent.append((job, executor.submit(Task(), json.dumps(given)), file))
            self.under_way += [_Submitted(*each) for each in sent]
            self.next_question = time.monotonic() + QUEUE_SECONDS  # by then Slurm lists them all

    @contextmanager
    def _accepted(self) -> Iterator[None]:
        """Report in one line why sbatch takes no jobs, such as a partition that is not there; it has its own words."""
        try:
            with redirect_stderr(io.StringIO()):  # submitit prints them, too
                yield
        except self.engine.submitit.core.utils.FailedJobError as error:
            said = "; ".join(line.removeprefix("sbatch: error: ").strip() for line in str(error).splitlines())
            raise UserError(f"--engine slurm: sbatch refused the jobs: {said}.") from None

    def gone(self) -> list[_Submitted]:
        """The jobs that have left Slurm's queue; only the queue is read, because many clusters keep no accounting."""
        if self.engine.cluster != "slurm":
            return [each for each in self.under_way if each.handle.done()]
        if time.monotonic() < self.next_question:
            return []
        self.next_question = time.monotonic() + QUEUE_SECONDS
        asked = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.returncode:  # the controller does not answer at present; jobs continue without it
            return []
        there = set(answer.stdout.split())
        return [each for each in self.under_way if each.handle.job_id not in there]

    def stop(self, take: Report) -> None:
        """Cancel all jobs: Slurm signals them to save and end, and kills those that take too long."""
        self.new = []
        for each in self.under_way:
            with suppress(Exception):  # it may just have ended
                each.handle.cancel(check=False)
        until = time.monotonic() + STOP_SECONDS
        while self.under_way and time.monotonic() < until:
            self.hear(take)

    def close(self) -> None:
        if self.under_way:
            self.stop(lambda event: None)
        until, local = time.monotonic() + STOP_SECONDS, self.engine.cluster != "slurm"
        while not all(each.is_over(local) for each in self.leaving) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)


class _Submitted:
    """A submitted job and its file of events."""

    def __init__(self, job: Job, handle: Any, file: Path) -> None:
        self.job, self.handle, self.file = job, handle, file
        self._read = 0

    def events(self) -> list[Event]:
        try:
            with self.file.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return [Event(*json.loads(line)) for line in whole.splitlines()]

    def is_over(self, local: bool) -> bool:
        """Whether submitit has written its last file for the job."""
        return bool(self.handle.done() if local else self.handle.paths.result_pickle.exists())

    def last_words(self) -> str:
        """A message that the job is gone, with the last line of its standard error that is not from submitit itself."""
        lines: list[str] = []
        with suppress(OSError):
            lines = [line for line in (self.handle.stderr() or "").splitlines() if line.strip()]
        lines = [line.strip() for line in lines if not line.startswith("submitit ")]
        return "its Slurm job is gone" + (f" ({lines[-1]})" if lines else "")


class Task:
    """The work of a node: run a job that is given as JSON, and write its events to a file."""

    def __call__(self, given: str) -> None:
        todo = json.loads(given)
        os.environ.update(todo["environment"])  # before torch is imported
        with Path(todo["file"]).open("a", buffering=1) as file:

            def report(event: Event) -> None:
                file.write(json.dumps(event) + "\n")

            try:
                check_shared(todo["store"], todo["marker"])
                with saving_at_the_limit():
                    work(Job.read(todo["job"]), todo["store"], report, checkpoint_seconds=todo["seconds"])
            except UserError as error:  # for example, a custom mixer's file has changed since the sweep began
                report(Event(todo["job"]["run"], "end", status="failed", message=str(error)))

    def checkpoint(self, given: str) -> Any:
        """Called by submitit at the time limit: queue the same job again, which resumes from its last checkpoint."""
        return import_submitit().helpers.DelayedSubmission(self, given)


@contextmanager
def saving_at_the_limit() -> Iterator[None]:
    """Let a run save a checkpoint before submitit queues its job again, which ends the process at once.

    Otherwise, a job that reaches no checkpoint before its time limit would start from the same step for ever. Training
    saves and ends at a SIGTERM; while nothing is trained, that signal has the handler that it had before.
    """
    limit = signal.Signals[f"SIG{import_submitit().JobEnvironment.USR_SIG}"]
    queue_again, untrained = signal.getsignal(limit), signal.getsignal(signal.SIGTERM)
    late = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal late
        late = True
        if signal.getsignal(signal.SIGTERM) is not untrained:
            signal.raise_signal(signal.SIGTERM)
        elif callable(queue_again):
            queue_again(number, frame)

    signal.signal(limit, handle)
    try:
        yield
    finally:
        signal.signal(limit, queue_again)
    if late and callable(queue_again):
        queue_again(limit, None)
