"""One training step of the paper's AR model (batch 32, length 36, vocabulary 8195, d 64, loss at the query only).

Every mixer against attention, and attention with `at` reaching into the last block against only the head restricted.
Then a step of the paper's ATR model at d 32 without padding against one with it, for the mixers of the paper. A ratio
above 1 means that ours is faster; other targets are the slowdowns that a mixer may have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

import mecheval as me
from benchmarks.harness import Row, interleaved, show
from mecheval.mixers import MIXERS
from mecheval.ops.adamw import AdamW
from mecheval.training.state import Training, TrainingData

PAPER = ("attention", "base_conv", "based", "delta_net", "h3", "hyena", "mamba")
SLOWDOWN = {"h3": 4.0, **dict.fromkeys(("gated_delta_net", "kda", "mesa_net", "rwkv7"), 3.0)}
"""How many times attention's step a mixer's may take; 2.5 unless said otherwise."""


STEPS = 10
"""Steps in a row before the next model's turn: training has its own model in the cache, not its rival's."""


def steps(mixer: str, narrow: bool = True, width: int = 64) -> Callable[[], None]:
    """A function that makes STEPS steps, with data and optimiser ready."""
    task = me.build_task("ar", preset="paper")
    batch = task.sample(32)
    tokens, at, targets = batch.tokens[:, :36].contiguous(), batch.roles["query"][:, None], batch.answers[:, None]
    lm = me.LM(task.vocab_size, width, 2, mixer, seed=0)
    if not narrow:  # a listener in the last block makes it compute all positions
        lm.taps()["blocks.1.output"].listener = lambda x: x
    optimiser = AdamW(lm.parameters(), weight_decay=0)

    def make() -> None:
        for _ in range(STEPS):
            optimiser.zero_grad()
            lm.loss(tokens, at, targets).backward()
            optimiser.step(1e-3)

    return make


def run() -> list[Row]:
    both = {"at": steps("attention"), "head": steps("attention", narrow=False)}
    times = interleaved({**{name: steps(name) for name in MIXERS.names()}, **both}, rounds=20, seconds=60)
    times = {name: ms / STEPS for name, ms in times.items()}
    rows = [
        Row(f"step: {name} against attention", times[name], times["attention"], 1 / SLOWDOWN.get(name, 2.5))
        for name in MIXERS.names()
    ]
    rows.append(Row("step: attention, `at` against head only", times["at"], times["head"], 1.4))
    return [*rows, *trees()]


def padded_loss(lm: me.LM, tokens: Tensor, at: Tensor, targets: Tensor) -> Tensor:
    """The loss by a pass over all of the batch."""
    return F.cross_entropy(lm(tokens, at).flatten(0, 1), targets.flatten())


def trees() -> list[Row]:
    """Steps on trees, whose lengths differ: the same batches end to end and padded."""
    runs = {mixer: me.run_config("atr", mixer, d_model=32) for mixer in PAPER}
    task = runs["attention"].build_task()
    data = TrainingData(runs["attention"], task)
    batches = [data.batch(step) for step in range(STEPS)]

    def steps_of(run: me.RunConfig, pad: bool) -> Callable[[], None]:
        training = Training(run, task)
        if pad:
            training.lm.loss = partial(padded_loss, training.lm)  # type: ignore[method-assign]

        def make() -> None:
            for batch in batches:
                training.advance(batch)

        return make

    rows = []
    for mixer, run in runs.items():
        times = interleaved(
            {"ours": steps_of(run, pad=False), "padded": steps_of(run, pad=True)}, rounds=15, seconds=20
        )
        rows.append(Row(f"step of ATR: {mixer}, without padding", times["ours"] / STEPS, times["padded"] / STEPS, 1.0))
    return rows


if __name__ == "__main__":
    show(run())
