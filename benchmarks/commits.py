"""How much faster this checkout trains the sweep at the paper's size than another one.

    git worktree add ../old 1528e04
    python -m benchmarks.commits ../old

Every distinct model of the plan in docs/studies.md makes the same steps in two processes in turn, one for each
checkout, pinned to one core. Its runs weigh as many as the plan has of it, by the steps that they take. A ratio above 1
means that this checkout is faster. Each process treats freed memory as its checkout's workers do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from typing import Any

import torch

from mecheval.config import RunConfig
from mecheval.studies import STUDIES
from mecheval.training.state import Training

PLAN = (
    ("ar", (32, 64, 16)),
    *((study, (32,)) for study in ("ar_mamba_conv", "ar_based_conv", "atr", "atr_mamba_conv")),
    *((study, (32,)) for study in ("one_layer", "depth", "position", "atr_holdout", "sibling")),
)
"""The studies of the plan, and their widths."""
RATES = (1e-3, 3e-3)
STEPS = 10
"""Steps in a row before the other checkout's turn."""
BATCHES = 100
"""Batches in the training set, which the steps read in turn; to sample all documents of a run would take longer."""

NEWER = ("root_sibling",)
"""Options of tasks that older checkouts lack, and that make no difference to the time of a step."""


@dataclass
class Cell:
    """Runs of the plan that differ in nothing that the time of a step depends on."""

    config: dict[str, Any]
    title: str
    steps: int  # of all its runs together


def plan() -> list[Cell]:
    """The cells of the plan in its order; a run that is in two studies counts once."""
    cells: dict[str, Cell] = {}
    seen: set[str] = set()
    for study, widths in PLAN:
        for point in STUDIES[study].points("paper"):
            run = point.config
            if run.model.d_model not in widths or run.optimiser.lr not in RATES or run.id in seen:
                continue
            seen.add(run.id)
            whole = run.to_dict()
            config = {part: whole[part] for part in ("task", "mixer", "model", "data")}
            config["task"] = {name: value for name, value in config["task"].items() if name not in NEWER}
            options = " ".join(f"{name}={value}" for name, value in point.axes.items() if name not in ("d_model", "lr"))
            title = f"{study} {run.model.d_model} {options}"
            cell = cells.setdefault(json.dumps(config, sort_keys=True), Cell(config, title, 0))
            cell.steps += run.data.steps
            documents = BATCHES * run.data.batch_size
            config["data"] = {**config["data"], "documents": documents, "steps": BATCHES}
    return list(cells.values())


def serve() -> None:
    """Make the steps that are asked for on standard input, one JSON object a line, and answer with milliseconds."""
    if util.find_spec("mecheval.machine"):  # older workers leave it to the allocator
        import_module("mecheval.machine").keep_memory()
    older = util.find_spec("mecheval.training.data")
    data_of = import_module(f"mecheval.training.{'data' if older else 'state'}").TrainingData
    torch.set_num_threads(1)
    for line in sys.stdin:
        given = json.loads(line)
        try:
            if given is not None:
                config = RunConfig.read(given)
                task = config.build_task()
                training, data = Training(config, task), data_of(config, task)
            answer: dict[str, Any] = {"ms": [step(training, data.batch) for _ in range(STEPS)]}
        except Exception as error:  # an old checkout may lack an option
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def step(training: Training, batch: Callable[[int], Any]) -> float:
    """Make one step, and return its milliseconds."""
    before = time.perf_counter()
    training.advance(batch(training.step % BATCHES))
    return 1e3 * (time.perf_counter() - before)


class Checkout:
    """A process that trains with the code of one checkout, on one core."""

    def __init__(self, root: Path) -> None:
        core = min(os.sched_getaffinity(0))
        self.process = subprocess.Popen(
            ["taskset", "-c", str(core), sys.executable, "-P", __file__, "--serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
        )  # fmt: skip

    def ask(self, config: dict[str, Any] | None = None) -> list[float]:
        """The milliseconds of STEPS steps, of a new model if a config is given."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(config), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return list(answer["ms"])


def main() -> None:
    """Print the time of a step of every cell with both checkouts, and their ratio over the whole plan."""
    given = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    given.add_argument("other", type=Path, help="the other checkout")
    given.add_argument("--only", default="", help="only cells whose line contains this, such as 'atr 32'")
    given.add_argument("--rounds", type=int, default=6, help=f"turns of {STEPS} steps (default 6)")
    args = given.parse_args()
    here = Path(__file__).resolve().parents[1]
    checkouts = [Checkout(here), Checkout(args.other.resolve())]
    hours = [0.0, 0.0]
    for cell in plan():
        if args.only not in cell.title:
            continue
        try:
            for checkout in checkouts:
                checkout.ask(cell.config)
        except RuntimeError as error:
            print(f"{cell.title:56}  left out: {error}", flush=True)
            continue
        times: list[list[float]] = [[], []]
        for _ in range(args.rounds):
            for place, checkout in enumerate(checkouts):
                times[place] += checkout.ask()
        ours, other = (statistics.median(each) for each in times)
        hours = [hour + cell.steps * ms / 3.6e6 for hour, ms in zip(hours, (ours, other), strict=True)]
        line = f"{cell.title:56}  {cell.steps:8}  {ours:8.2f} ms  {other:8.2f} ms  {other / ours:6.3f}"
        print(f"{line}  so far {hours[1] / hours[0]:.3f}", flush=True)
    ratio = hours[1] / hours[0]
    print(f"The whole plan: {hours[0]:.1f} core hours here, {hours[1]:.1f} there; ratio {ratio:.3f}")


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
