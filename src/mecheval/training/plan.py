"""The size of a run, and an estimate of its time from a few timed steps."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from mecheval.analysis import score
from mecheval.analysis.runs import alone
from mecheval.config import RunConfig
from mecheval.store import Store
from mecheval.store.schema import WHOLE
from mecheval.training.progress import duration
from mecheval.training.state import Training, TrainingData, evaluation_set

WARM, TIMED = 3, 12
"""Number of warm-up steps, which are slow and not timed, and number of timed steps."""
LONG = 5.0
"""Seconds after which timing stops early."""


@dataclass(frozen=True)
class Plan:
    """The size of a run and its estimated time; nothing is stored."""

    run: str
    status: str | None  # its status in the store, if any
    step: int  # the step at which it would begin
    parameters: int
    steps: int
    epochs: float | None
    step_seconds: float
    evaluation_seconds: float
    every: int  # steps between two evaluations
    seconds: float  # estimated time from `step` to the end

    @property
    def pace(self) -> float:
        """Seconds per step, including its share of the evaluations."""
        return self.step_seconds + self.evaluation_seconds / self.every

    def describe(self) -> str:
        """The plan as a few lines of text."""
        known = "" if self.status is None else f" ({self.status}, step {self.step:,})"
        epochs = "a stream of fresh documents" if self.epochs is None else f"{self.epochs:g} epochs"
        return "\n".join((
            f"run         {self.run}{known}",
            f"parameters  {self.parameters:,}",
            f"steps       {self.steps:,} ({epochs})",
            f"a step      {1e3 * self.step_seconds:.1f} ms; an evaluation {1e3 * self.evaluation_seconds:.0f} ms",
            f"time        about {duration(self.seconds)}",
        ))  # fmt: skip


def plan(config: RunConfig, store: Store) -> Plan:
    """Build the model, time some steps and one evaluation, and discard everything.

    One thread on a CPU is timed by the time that it computes, which does not depend on what else the machine does.
    """
    alone_on_cpu = config.machine.device == "cpu" and config.machine.threads == 1
    now = time.process_time if alone_on_cpu else time.perf_counter
    folder = store.folder(config.id)
    found = folder.status()
    task = config.build_task()
    with alone(config.machine.threads):
        state, data = Training(config, task), TrainingData(config, task)
        dev = evaluation_set(config, task, "dev")
        times = []
        for step in range(WARM + TIMED):
            before = now()
            state.advance(data.batch(step))
            times.append(now() - before)
            if step and sum(times) > LONG:
                break
        score(state.lm, dev[:1])
        before = now()
        score(state.lm, dev)
        evaluation = now() - before
    mean, steps = statistics.median(times[min(WARM, len(times) - 1) :]), config.data.steps
    done = int(found["step"] or 0)
    left = 0 if found["status"] in WHOLE else steps - done
    documents = config.data.documents
    epochs = None if documents is None else steps * config.data.batch_size / documents
    every = config.evaluate.every
    seconds = left * (mean + evaluation / every)
    return Plan(
        config.id, found["status"], done, state.lm.n_parameters, steps, epochs, mean, evaluation, every, seconds,
    )  # fmt: skip
