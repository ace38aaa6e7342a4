"""The training loop on the paper's AR model (attention, d 64, batch 32, vocabulary 8195).

The loop against the bare step, the step against one with logits and loss at all positions, evaluation against the step,
and where the time goes. A ratio above 1 means that ours is faster; the targets are ours.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

import mecheval as me
from benchmarks.harness import Row, interleaved, show
from mecheval.analysis import score
from mecheval.ops.adamw import AdamW
from mecheval.training import loop
from mecheval.training.state import Training, TrainingData, evaluation_set
from mecheval.training.watch import Quiet

BLOCK, BLOCKS = 10, 30


def config(steps: int, every: int = 500) -> me.RunConfig:
    return me.run_config("ar", "attention", d_model=64, lr=1e-3, steps=steps, every=every)


def bare() -> Callable[[], None]:
    """A function that makes BLOCK steps on ready batches, with nothing around them."""
    run = config(steps=1)
    task = run.build_task()
    lm, source = run.build_lm(task), TrainingData(run, task)
    batches = [source.batch(i) for i in range(BLOCK)]
    optimiser = AdamW(lm.parameters(), weight_decay=0)

    def make() -> None:
        for tokens, at, targets in batches:
            optimiser.zero_grad()
            lm.loss(tokens, at, targets).backward()
            optimiser.step(1e-4)

    return make


def everywhere() -> Callable[[], None]:
    """One step with logits and loss computed at all positions; positions without a label are masked, as is usual."""
    run = config(steps=1)
    task = run.build_task()
    lm, (tokens, at, targets) = run.build_lm(task), TrainingData(run, task).batch(0)
    labels = torch.full_like(tokens, -100).scatter(1, at, targets)
    optimiser = AdamW(lm.parameters(), weight_decay=0)

    def make() -> None:
        optimiser.zero_grad()
        F.cross_entropy(lm(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100).backward()
        optimiser.step(1e-4)

    return make


class InTurn(Quiet):
    """After every BLOCK steps of the loop, as many bare ones, so that both meet the same machine."""

    def __init__(self) -> None:
        self.bare = bare()
        self.alone: list[float] = []
        self.loop: list[float] = []
        self.since = 0.0

    def step(self, step: int, loss: float) -> None:
        if step % BLOCK:
            return
        now = time.perf_counter()
        if self.since:
            self.loop.append(now - self.since)
        self.bare()
        self.since = time.perf_counter()
        self.alone.append(self.since - now)


def loop_row() -> Row:
    watcher = InTurn()
    with tempfile.TemporaryDirectory() as store:
        me.train(config(steps=BLOCK * BLOCKS, every=10_000), store, [watcher])
    ours, alone = (1e3 / BLOCK * statistics.median(times[2:]) for times in (watcher.loop, watcher.alone))
    return Row("training: a step of the loop against the bare step", ours, alone, 1 / 1.1)


def run() -> list[Row]:
    many = bare()
    times = interleaved({"at": many, "all": everywhere()}, rounds=15, seconds=30)
    step = times["at"] / BLOCK
    settings = config(steps=1)
    task = settings.build_task()
    lm, dev = settings.build_lm(task), evaluation_set(settings, task, "dev")
    again = interleaved({"step": many, "evaluation": lambda: score(lm, dev)}, rounds=15, seconds=30)
    return [
        loop_row(),
        Row("training: step, `at` against logits and loss at all positions", step, times["all"], 6.0),
        Row("training: 5 steps against evaluating 320 documents", again["evaluation"], again["step"] / BLOCK * 5, 1.0),
    ]


def shares() -> None:
    """Print where the time of a run goes: every part is timed inside the loop itself."""
    spent: dict[str, float] = {}

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            before = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[part] = spent.get(part, 0.0) + time.perf_counter() - before

        return call

    parts = [
        patch.object(TrainingData, "batch", timed("data", TrainingData.batch)),
        patch.object(torch.Tensor, "backward", timed("backward", torch.Tensor.backward)),
        patch.object(AdamW, "step", timed("optimiser", AdamW.step)),
        patch.object(loop, "score", timed("evaluation", score)),
        patch.object(Training, "advance", timed("step", Training.advance)),
    ]
    for each in parts:
        each.start()
    try:
        with tempfile.TemporaryDirectory() as store:
            seconds = me.train(config(steps=1000), store).status()["seconds"]
    finally:
        for each in parts:
            each.stop()
    spent["forward"] = spent.pop("step") - spent["backward"] - spent["optimiser"]
    print(f"where a run's time goes (1,000 steps in {seconds:.1f} s, evaluation at the end included):")
    print("  " + ", ".join(f"{part} {100 * time / sum(spent.values()):.1f} %" for part, time in spent.items()))


if __name__ == "__main__":
    show(run())
    shares()
