"""Small runs, and children that train them and can be killed."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mecheval.config import RunConfig, run_config
from mecheval.store import RunFolder
from mecheval.training.watch import Quiet, Start

TINY: dict[str, Any] = {
    "pairs": 3, "keys": 8, "values": 8, "d_model": 16, "batch_size": 8, "data.documents": 100, "steps": 60, "every": 7,
    "evaluate.documents": 16, "lr": 3e-3,
}  # fmt: skip


def tiny(task: str = "ar", mixer: str = "attention", **options: Any) -> RunConfig:
    """A run of about a second."""
    return run_config(task, mixer, **{**TINY, **options})


def published(folder: RunFolder) -> dict[str, bytes]:
    """The bytes of everything that must not depend on how a run came to its end.

    On one machine they are the same, because every way makes the same calls on the same shapes and threads.
    """
    names = ["weights/last.safetensors", "weights/best.safetensors"]
    names += [f"{table}.parquet" for table in ("history", "scores", "effects", "verdicts")]
    paths = {name: folder.path / name for name in names}
    return {name: path.read_bytes() for name, path in paths.items() if path.exists()}


def left_over(folder: RunFolder) -> list[Path]:
    """Files that a killed writer left behind."""
    return list(folder.path.rglob("*.part"))


def in_child(work: Callable[[], object]) -> int:
    """Fork a child that does `work` and exits; its process id. A new interpreter would take seconds to start.

    It computes on one thread: others do not survive a fork, and OpenMP would wait for them for ever.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def outcome(pid: int) -> int:
    """Wait for a child: its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_self() -> None:
    """Die as from a power cut: no handler, no clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


class Recorder(Quiet):
    """Keeps all that it hears."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.steps: list[int] = []
        self.rows: list[Mapping[str, float]] = []
        self.said: list[str] = []
        self.ends: list[tuple[str, Mapping[str, float]]] = []

    def begin(self, start: Start) -> None:
        self.starts.append(start)

    def step(self, step: int, loss: float) -> None:
        self.steps.append(step)

    def row(self, row: Mapping[str, float]) -> None:
        self.rows.append(dict(row))

    def say(self, message: str) -> None:
        self.said.append(message)

    def end(self, status: str, scores: Mapping[str, float]) -> None:
        self.ends.append((status, scores))


class SignalAt(Recorder):
    """Sends this process a signal after some step."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__()
        self.at, self.number = step, number

    def step(self, step: int, loss: float) -> None:
        super().step(step, loss)
        if step == self.at:
            os.kill(os.getpid(), self.number)
