"""How near a training step of the paper's AR model comes to what one core can do, at five widths.

    python -m benchmarks.limit

The limit is the time of the step's matrix products at the core's own rate (the faster library's, for a product of 2,048
in each direction), and of the passes over weights, gradients and moments at the rate at which the core copies memory.
What recurrences, convolutions, norms and activations compute is no product, and not in the limit. The share is the
limit divided by the step's time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

import mecheval as me
from benchmarks.harness import interleaved
from benchmarks.steps import PAPER, STEPS, steps
from mecheval.machine import keep_memory
from mecheval.ops import dispatch
from mecheval.ops.product import chosen, product

WIDTHS = (16, 32, 64, 128, 256)
SIDE, FLOATS = 2048, 1 << 25
PASSES = 10
"""Passes over each parameter's four bytes: the weight is read forward and backward, its gradient is written, and the
optimiser reads weight, gradient and two moments and writes weight and moments."""


def rate() -> float:
    """The core's rate of multiply-adds and additions in float32, a second, by the faster library."""
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)

    def forced() -> None:
        with dispatch.path("fast"):
            product(a, b)

    times = interleaved({"plain": lambda: a @ b, "oneDNN": forced}, rounds=5, seconds=20)
    for name, ms in times.items():
        print(f"{name:>8}: {2 * SIDE**3 / ms / 1e6:6.0f} GFLOP/s")
    return 2 * SIDE**3 / min(times.values()) * 1e3


def bandwidth() -> float:
    """Bytes a second that the core reads and writes when it copies."""
    a, b = torch.ones(FLOATS), torch.empty(FLOATS)
    ms = interleaved({"copy": lambda: b.copy_(a)}, rounds=9, seconds=10)["copy"]
    found = 8 * FLOATS / ms * 1e3
    print(f"  memory: {found / 1e9:6.1f} GB/s")
    return found


def by_onednn(x: Sequence[int], weight: Sequence[int], *rest: object, **named: object) -> int:
    """The operations of a product that oneDNN computes, by the shapes (..., K) and (N, K) of its factors."""
    return 2 * math.prod(x) * weight[0]


def operations(mixer: str, width: int) -> tuple[int, int]:
    """The floating-point operations of a step's products, and the bytes of its parameters."""
    known = {torch.ops.mkldnn._linear_pointwise: by_onednn}
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        task = me.build_task("ar", preset="paper")
        batch = task.sample(32)
        lm = me.LM(task.vocab_size, width, 2, mixer, seed=0)
        at, targets = batch.roles["query"][:, None], batch.answers[:, None]
        lm.loss(batch.tokens[:, :36].contiguous(), at, targets).backward()
    return counter.get_total_flops(), 4 * lm.n_parameters


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    keep_memory()
    print(f"products here: {chosen()}")
    fastest, copied = rate(), bandwidth()
    print(f"{'mixer':12}" + "".join(f"{width:>24}" for width in WIDTHS))
    for mixer in PAPER:
        cells = []
        for width in WIDTHS:
            flops, size = operations(mixer, width)
            limit = 1e3 * (flops / fastest + PASSES * size / copied)
            make: Callable[[], None] = steps(mixer, width=width)
            ms = interleaved({"step": make}, rounds=12, seconds=20)["step"] / STEPS
            cells.append(f"{ms:9.2f} ms {limit:6.2f} {limit / ms:5.2f}")
        print(f"{mixer:12}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
