"""The local engine: worker processes of one thread each, as many as there are cores."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import IO

from mecheval.sweep.job import NO_END, Event, Held, Job, Stopped, Tell
from mecheval.training.signals import Request, stop_requests

LOOK_SECONDS = 0.2
"""How soon a signal is noticed while no worker says anything."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
WORKER = {**ONE_THREAD, "PYTHONSAFEPATH": "1"}
"""A worker's environment: one thread, and no Python is imported from the folder in which the sweep was started.

`python -m` would look for modules there first; a file called torch.py or queue.py would be executed by every worker.
"""


class LocalEngine:
    """Worker processes on this machine; `nice` (0 to 19) lowers their priority."""

    def __init__(
        self, workers: int | None = None, tries: int = 3, checkpoint_seconds: float = 30.0, nice: int = 0
    ) -> None:
        self.workers = workers or cores()
        self.tries, self.checkpoint_seconds, self.nice = tries, checkpoint_seconds, nice

    def run(self, jobs: list[Job], store: str, tell: Tell) -> None:
        """See `Engine`. Runs of several threads have as many fewer workers: two models never share a thread."""
        with stop_requests() as request:
            _Sweep(self, jobs, store, tell).run(request)
        if request.signal is not None:
            raise Stopped(request.signal)


class _Sweep:
    """One call of `LocalEngine.run`."""

    def __init__(self, engine: LocalEngine, jobs: list[Job], store: str, tell: Tell) -> None:
        self.engine, self.store, self.tell = engine, store, tell
        self.waiting, self.held, self.tries = deque(jobs), Held(store), Counter[str]()
        self.selector = selectors.DefaultSelector()
        self.crew: list[_Worker] = []
        threads = max((job.config.machine.threads for job in jobs), default=1)
        self.size = min(max(1, engine.workers // threads), len(jobs))

    def run(self, request: Request) -> None:
        """Until every job has ended, or a signal has come and all workers have saved."""
        try:
            while self.has_workers(request):
                self.hand_out(request)
                for key, _ in self.selector.select(LOOK_SECONDS):
                    self.listen(key.data, request)
                if request:
                    for worker in self.crew:
                        worker.ask_to_stop()
        finally:  # after a second Ctrl-C, or an error of whoever listens, there are still some
            for worker in self.crew:
                worker.kill()
            self.selector.close()

    def has_workers(self, request: Request) -> bool:
        """Start as many as there is work for; whether there is anyone to wait for."""
        todo = 0 if request else len(self.waiting) + len(self.held)
        for _ in range(min(todo - len(self.idle()), self.size - sum(not worker.dismissed for worker in self.crew))):
            worker = _Worker(self.store, self.engine.checkpoint_seconds, self.engine.nice)
            self.crew.append(worker)
            self.selector.register(worker.out, selectors.EVENT_READ, worker)
        return bool(self.crew)

    def idle(self) -> list[_Worker]:
        """The workers that can be given a job."""
        return [worker for worker in self.crew if worker.job is None and not worker.dismissed]

    def hand_out(self, request: Request) -> None:
        """Give the idle workers what there is to do; keep one for each run that others hold, dismiss the rest."""
        idle = self.idle()
        while idle and not request and (job := self.waiting.popleft() if self.waiting else self.held.free()):
            idle.pop().give(job)
        kept = 0 if request else len(self.held)
        for worker in idle[kept:]:
            worker.dismiss()
        if kept and all(worker.job is None for worker in self.crew):
            self.held.say(self.tell)

    def listen(self, worker: _Worker, request: Request) -> None:
        """Pass on what a worker says, and see to its job if it has died."""
        job = worker.job
        for event in worker.events():
            if job is not None and event.status == "held":
                self.held.add(job, event.message)
            if event.status not in NO_END:
                self.tell(event)
        if worker.gone:
            self.selector.unregister(worker.out)
            self.crew.remove(worker)
            if worker.job is not None and not request:
                self.begin_again(worker.job, worker.last_words())

    def begin_again(self, job: Job, why: str) -> None:
        """Unless that has happened too often."""
        self.tries[job.run] += 1
        if self.tries[job.run] < self.engine.tries:
            said = f"{why}; begun again from where it was saved"
            self.tell(Event(job.run, "say", message=f"{job.config.title}: {said}"))
            self.waiting.appendleft(job)
        else:
            message = f"{why}, {self.engine.tries} times"
            self.tell(Event(job.run, "end", status="failed", message=message))


class _Worker:
    """A worker process, seen from its parent."""

    def __init__(self, store: str, checkpoint_seconds: float, nice: int) -> None:
        self.job: Job | None = None
        self.gone = self._stopping = False
        self._rest, self._said = b"", ""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mecheval.sweep.worker", store, str(checkpoint_seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env={**os.environ, **WORKER},
            process_group=0,  # Ctrl-C in a terminal is for the parent, which then asks each worker once
        )  # fmt: skip
        if nice:  # before it has threads, which inherit this; nobody may raise a priority, so it is never raised
            os.setpriority(os.PRIO_PROCESS, self._process.pid, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self.out = self._process.stdin, self._process.stdout
        os.set_blocking(self.out.fileno(), False)

    def give(self, job: Job) -> None:
        """Hand over a job."""
        self.job = job
        self._send(json.dumps({"run": job.run, **job.to_dict()}).encode() + b"\n")

    @property
    def dismissed(self) -> bool:
        """Whether it has been told that nothing more will come, and is about to end."""
        return self._in.closed

    def dismiss(self) -> None:
        """Nothing more will come."""
        self._in.close()

    def ask_to_stop(self) -> None:
        """Save and end, once."""
        if not self._stopping:
            self._stopping = True
            self._process.send_signal(signal.SIGTERM)

    def events(self) -> list[Event]:
        """What it has said since the last look."""
        found: list[Event] = []
        while (piece := self.out.read(1 << 16)) is not None:
            if not piece:
                self._process.wait()
                self.gone = True
                self._close()
                break
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                with suppress(ValueError, TypeError):  # a line that is no event is something else's output
                    found.append(Event(**json.loads(line)))
        if any(event.kind == "end" and event.status != "interrupted" for event in found):  # a held one is given back
            self.job = None
        return found

    def last_words(self) -> str:
        """How it ended, and the last line that it wrote to its standard error."""
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"its worker {how}" + (f" ({self._said})" if self._said else "")

    def kill(self) -> None:
        """At once; the run stays as it was last saved."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _send(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # it has died, and the end of its output will tell
            self._in.write(line)
            self._in.flush()

    def _close(self) -> None:
        self._errors.seek(0)
        self._said = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2].strip()
        for pipe in (self.out, self._errors, self._in):
            with suppress(BrokenPipeError):
                pipe.close()


def cores() -> int:
    """Cores that this process may use: of the machine, of its affinity, of its container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return count
