"""Workers that are forked from the test, which has imported torch: they begin at once, and are as real as others.

They are processes of their own with the same pipes, signals and deaths. What they do not show, that a worker can be
started as a program, other tests show with real ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, ClassVar

import pytest

from mecheval.sweep import job, local, worker
from training.runs import in_child

NAME = "mecheval-worker"
"""What the kernel calls a forked worker (at most 15 characters)."""


class Forked:
    """Stands in for `subprocess.Popen` in the local engine."""

    pipes: ClassVar[list[IO[bytes]]] = []
    """The parent's ends; a later child must close its copies, or no worker would see the end of its input."""

    def __init__(self, words: list[str], *, stderr: IO[bytes], env: dict[str, str], **_: Any) -> None:
        store, seconds = words[-2:]
        (from_parent, to_child), (from_child, to_parent) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(to_child, "wb"), os.fdopen(from_child, "rb")
        Forked.pipes += [self.stdin, self.stdout]

        def run() -> None:
            os.setpgid(0, 0)
            Path("/proc/self/comm").write_text(NAME)
            for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                signal.signal(number, handler)
            for pipe in Forked.pipes:
                pipe.close()
            for place, descriptor in enumerate((from_parent, to_parent, stderr.fileno())):
                os.dup2(descriptor, place)
            os.close(from_parent)
            os.close(to_parent)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(place, mode) for place, mode in enumerate("rww"))
            os.environ.update(env)
            worker.main(store, float(seconds))

        self.pid = in_child(run)
        self.returncode: int | None = None
        os.close(from_parent)
        os.close(to_parent)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            for pipe in (self.stdin, self.stdout):
                Forked.pipes.remove(pipe)
        return self.returncode


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local engine forks its workers, and they tell of every step."""
    monkeypatch.setattr(local, "subprocess", SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE))
    monkeypatch.setattr(job, "REPORT_SECONDS", 0.0)
