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

from mecheval.sweep.job import Event, Job, Stopped, Tell
from mecheval.training.signals import stop_requests

LOOK_SECONDS = 0.2
"""How soon a signal is noticed while no worker says anything."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


class LocalEngine:
    """Worker processes on this machine."""

    def __init__(self, workers: int | None = None, tries: int = 3, checkpoint_seconds: float = 30.0) -> None:
        self.workers = workers or cores()
        self.tries, self.checkpoint_seconds = tries, checkpoint_seconds

    def run(self, jobs: list[Job], store: str, tell: Tell) -> None:
        """See `Engine`. Runs of several threads have as many fewer workers: two models never share a thread."""
        threads = max((job.config.machine.threads for job in jobs), default=1)
        waiting, tries = deque(jobs), Counter[str]()
        selector = selectors.DefaultSelector()
        crew = [_Worker(store, self.checkpoint_seconds) for _ in range(min(max(1, self.workers // threads), len(jobs)))]
        with stop_requests() as request:
            try:
                for worker in crew:
                    selector.register(worker.out, selectors.EVENT_READ, worker)
                while crew:
                    for worker in crew:
                        if worker.job is None and waiting and not request:
                            worker.give(waiting.popleft())
                        elif worker.job is None:
                            worker.dismiss()
                    for key, _ in selector.select(LOOK_SECONDS):
                        worker = key.data
                        for event in worker.events():
                            if event.status != "interrupted":  # that is no end: it goes on here or another time
                                tell(event)
                        if worker.gone:
                            selector.unregister(worker.out)
                            crew.remove(worker)
                            job = worker.job
                            if job is None or request:
                                continue
                            tries[job.run] += 1
                            if tries[job.run] < self.tries:
                                said = f"{worker.last_words()}; begun again from where it was saved"
                                tell(Event(job.run, "say", message=f"{job.config.title}: {said}"))
                                waiting.appendleft(job)
                            else:
                                message = f"{worker.last_words()}, {self.tries} times"
                                tell(Event(job.run, "end", status="failed", message=message))
                            if waiting:
                                crew.append(_Worker(store, self.checkpoint_seconds))
                                selector.register(crew[-1].out, selectors.EVENT_READ, crew[-1])
                    if request:
                        for worker in crew:
                            worker.ask_to_stop()
            finally:  # after a second Ctrl-C, or an error of whoever listens, there are still some
                for worker in crew:
                    worker.kill()
        if request.signal is not None:
            raise Stopped(request.signal)


class _Worker:
    """A worker process, seen from its parent."""

    def __init__(self, store: str, checkpoint_seconds: float) -> None:
        self.job: Job | None = None
        self.gone = self._stopping = False
        self._rest, self._said = b"", ""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mecheval.sweep.worker", store, str(checkpoint_seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env={**os.environ, **ONE_THREAD},
            process_group=0,  # Ctrl-C in a terminal is for the parent, which then asks each worker once
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self.out = self._process.stdin, self._process.stdout
        os.set_blocking(self.out.fileno(), False)

    def give(self, job: Job) -> None:
        """Hand over a job."""
        self.job = job
        self._send(json.dumps({"run": job.run, **job.to_dict()}).encode() + b"\n")

    def dismiss(self) -> None:
        """Nothing more will come."""
        if not self._in.closed:
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
        if any(event.kind == "end" and event.status != "interrupted" for event in found):
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
