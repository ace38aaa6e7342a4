"""Training in bfloat16 against float32: whole steps of the paper's AR model, whose ratio depends on the width.

A ratio above 1 means that bfloat16 is faster. There is no target: it is an option, and pays only on wide models.

    taskset -c 1 python -m benchmarks.precision
"""

from __future__ import annotations

from collections.abc import Callable

import mecheval as me
from benchmarks.harness import Row, interleaved, show
from mecheval.tasks import Task
from mecheval.training.state import Training, TrainingData

MIXERS = ("attention", "based", "mamba", "delta_net")
WIDTHS = (32, 64, 128, 256)
STEPS = 4
"""Steps in a row before the other's turn."""


def steps(task: Task, mixer: str, width: int, precision: str) -> Callable[[], None]:
    """A function that makes STEPS steps of a run."""
    run = me.run_config("ar", mixer, d_model=width, precision=precision)
    training, data = Training(run, task), TrainingData(run, task)
    batches = [data.batch(step) for step in range(STEPS)]

    def make() -> None:
        for batch in batches:
            training.advance(batch)

    return make


def run() -> list[Row]:
    task, rows = me.build_task("ar", preset="paper"), []
    for width in WIDTHS:
        for mixer in MIXERS:
            made = {precision: steps(task, mixer, width, precision) for precision in ("bf16", "full")}
            times = {name: ms / STEPS for name, ms in interleaved(made, rounds=12, seconds=30).items()}
            rows.append(Row(f"step in bfloat16: {mixer}, width {width}", times["bf16"], times["full"], None))
    return rows


if __name__ == "__main__":
    show(run())
