"""How far a sweep is, as its store tells: also while another process, or another machine, works on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mecheval.store import Store
from mecheval.sweep.estimate import Estimate
from mecheval.sweep.job import Job
from mecheval.sweep.sweeping import merged, pending, rows_of


@dataclass(frozen=True)
class RunningRun:
    """A run that a process is training; the step is that of its last checkpoint."""

    run: str
    title: str
    step: int
    steps: int


@dataclass(frozen=True)
class Standing:
    """The runs of a sweep by what the store has of them, and the seconds that the rest takes."""

    runs: int
    done: int
    running: tuple[RunningRun, ...]
    failed: int  # the same sweep tries them again
    left: int  # not begun, or interrupted
    seconds: float


def standing(jobs: Sequence[Job], store: Store, workers: int) -> Standing:
    """Look at the store; nothing is trained. `workers` is how many runs are worked on at once."""
    jobs = merged(jobs)
    todo = pending(jobs, store)
    rows = {row["run"]: row for row in rows_of(store)}
    estimate = Estimate(rows.values())
    running, failed, rest = [], 0, []
    for job in todo:
        row = rows.get(job.run, {"status": None})
        rest.append(_seconds(job, row, estimate))
        failed += row["status"] == "failed"
        if row["status"] == "running":
            running.append(RunningRun(job.run, job.config.title, row["step"] or 0, job.config.data.steps))
    left = len(todo) - len(running) - failed
    seconds = max([sum(rest) / max(1, workers), *rest])
    return Standing(len(jobs), len(jobs) - len(todo), tuple(running), failed, left, seconds)


def _seconds(job: Job, row: dict[str, Any], estimate: Estimate) -> float:
    """What is left of a run: at its own pace once it has one, else by runs of the same shape."""
    step, steps = row.get("step") or 0, job.config.data.steps
    if row["status"] == "done":  # only interventions are missing
        return 0.0
    if step and row.get("seconds"):
        return float(row["seconds"]) / step * (steps - step)
    return estimate.seconds(job.config) * (1 - step / steps)
