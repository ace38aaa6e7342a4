"""The local engine: by default, one single-threaded worker process per core."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO

from mecheval.machine import cores
from mecheval.sweep.engine import LOOK_SECONDS, Crew, CrewEngine
from mecheval.sweep.job import Event, Job, Report

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
WORKER = {**ONE_THREAD, "PYTHONSAFEPATH": "1"}
"""A worker's environment: one thread, and no imports from the folder in which the sweep was started.

`python -m` would search that folder first, and every worker would execute a file called torch.py or queue.py there.
"""
NICE_TRIES, NICE_PAUSE = 3, 0.15
"""Number of attempts to set a priority, and the seconds between them: the kernel accepts only ten requests a second."""


class LocalEngine(CrewEngine):
    """Worker processes on this machine; `nice` (0 to 19) lowers their priority."""

    def __init__(
        self, workers: int | None = None, tries: int = 3, checkpoint_seconds: float = 30.0, nice: int = 0
    ) -> None:
        self.workers = workers or cores()
        self.tries, self.checkpoint_seconds, self.nice = tries, checkpoint_seconds, nice

    def crew(self, jobs: list[Job], store: str, report: Report) -> AbstractContextManager[Crew]:
        """As many processes as there are jobs or workers, and fewer if a run needs several threads."""
        threads = max((job.config.machine.threads for job in jobs), default=1)
        return nullcontext(_Processes(self, store, min(max(1, self.workers // threads), len(jobs))))


def program(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a program of this package that works with one thread."""
    return [sys.executable, "-P", "-m", module, *arguments], {**os.environ, **WORKER, "PYTHONPATH": python_path()}


def python_path() -> str:
    """PYTHONPATH without its empty entries, which would mean the working folder."""
    return os.pathsep.join(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


class _Processes(Crew):
    """At most `size` worker processes, each started when there is a job for it."""

    def __init__(self, engine: LocalEngine, store: str, size: int) -> None:
        self._engine, self._store, self._size = engine, store, size
        self._selector = selectors.DefaultSelector()
        self._crew: list[_Worker] = []

    def has_room(self) -> bool:
        return bool(self._idle()) or sum(not worker.dismissed for worker in self._crew) < self._size

    def start(self, job: Job) -> None:
        idle = self._idle()
        if not idle:
            idle = [_Worker(self._store, self._engine.checkpoint_seconds, self._engine.nice)]
            self._crew += idle
            self._selector.register(idle[0].out, selectors.EVENT_READ, idle[0])
        idle[0].give(job)

    def hear(self, take: Report) -> None:
        for key, _ in self._selector.select(LOOK_SECONDS):
            worker: _Worker = key.data
            for event in worker.events():
                take(event)
            if worker.gone:
                self._selector.unregister(worker.out)
                self._crew.remove(worker)
                if worker.job is not None:
                    take(Event(worker.job.run, "end", status="died", message=worker.last_words()))

    def spare(self, jobs: int) -> None:
        for worker in self._idle()[jobs:]:
            worker.dismiss()

    def stop(self, take: Report) -> None:
        for worker in self._crew:
            worker.ask_to_stop()
        while self._crew:
            self.hear(take)

    def close(self) -> None:
        for worker in self._crew:
            worker.kill()
        self._selector.close()

    def _idle(self) -> list[_Worker]:
        return [worker for worker in self._crew if worker.job is None and not worker.dismissed]


class _Worker:
    """A worker process, seen from its parent."""

    def __init__(self, store: str, checkpoint_seconds: float, nice: int) -> None:
        self.job: Job | None = None
        self.gone = False
        self._rest, self._said = b"", ""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        command, environment = program("mecheval.sweep.worker", store, str(checkpoint_seconds))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment,
            # Ctrl-C in a terminal reaches only the parent, which then asks each worker once to stop.
            start_new_session=nice > 0, process_group=None if nice else 0,
        )  # fmt: skip
        if nice:  # before the process has threads, which inherit its priority
            lower_priority(self._process.pid, nice)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self.out = self._process.stdin, self._process.stdout
        os.set_blocking(self.out.fileno(), False)

    def give(self, job: Job) -> None:
        self.job = job
        self._send(json.dumps({"run": job.run, **job.to_dict()}).encode() + b"\n")

    @property
    def dismissed(self) -> bool:
        """Whether its input is closed, so that it ends after its present job."""
        return self._in.closed

    def dismiss(self) -> None:
        self._in.close()

    def ask_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def events(self) -> list[Event]:
        found: list[Event] = []
        while (piece := self.out.read(1 << 16)) is not None:
            if not piece:
                self._process.wait()
                self.gone = True
                self._close()
                break
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                with suppress(ValueError, TypeError):  # other output, which is not an event
                    found.append(Event(**json.loads(line)))
        if any(event.kind == "end" and event.status != "interrupted" for event in found):
            self.job = None
        return found

    def last_words(self) -> str:
        """How the process ended, with the last line of its standard error."""
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"its worker {how}" + (f" ({self._said})" if self._said else "")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def _send(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # the worker has died, which `events` notices
            self._in.write(line)
            self._in.flush()

    def _close(self) -> None:
        self._errors.seek(0)
        self._said = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2].strip()
        for pipe in (self.out, self._errors, self._in):
            with suppress(BrokenPipeError):
                pipe.close()


def lower_priority(pid: int, nice: int) -> None:
    """Lower the priority of a process that leads its own session, but never raise it, which needs special rights.

    Where Linux schedules sessions before processes (autogroups), the session's priority counts, so both are set.
    """
    nice = max(nice, os.getpriority(os.PRIO_PROCESS, 0))
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    for _ in range(NICE_TRIES):
        try:
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))
        except BlockingIOError:
            time.sleep(NICE_PAUSE)
        except OSError:  # this system has no autogroups
            return
        else:
            return
