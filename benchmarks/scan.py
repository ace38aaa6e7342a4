"""The selective scan, forward and backward, at a Mamba layer's sizes: batch 32, 128 channels of 16 states.

Two loops over time stand beside it. `reference` is this project's, which takes the sequences apart once. `indexed` is
the loop of published reference code: decays and inputs of all steps are computed first, then each step indexes its
own, and the gradient of each indexing is a whole sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import Row, interleaved, show
from mecheval.ops.selective_scan import selective_scan, selective_scan_reference

BATCH, CHANNELS, STATES = 32, 128, 16
TARGETS = {36: 15.0, 128: 60.0, 512: 60.0}
SLOW_FROM = 128  # from here on the indexed loop is timed once
LENGTHS = (64, 128, 256, 512, 1024)

Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def indexed(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    decay_BLEN = torch.exp(dt[..., None] * A)
    input_BLEN = (dt * u)[..., None] * B[:, :, None]
    S_BEN = torch.zeros_like(decay_BLEN[:, 0])
    outputs = []
    for t in range(u.shape[1]):
        S_BEN = decay_BLEN[:, t] * S_BEN + input_BLEN[:, t]
        outputs.append(torch.einsum("ben,bn->be", S_BEN, C[:, t]))
    return torch.stack(outputs, dim=1)


def inputs(length: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    u, dt = (torch.randn(BATCH, length, CHANNELS, generator=g) for _ in range(2))
    A = -torch.arange(1.0, STATES + 1).repeat(CHANNELS, 1)
    B, C = (torch.randn(BATCH, length, STATES, generator=g) for _ in range(2))
    return [x.requires_grad_() for x in (u, F.softplus(dt - 3), A, B, C)]


def step(scan: Scan, leaves: list[Tensor]) -> object:
    y = scan(*leaves)
    return torch.autograd.grad(y, leaves, torch.ones_like(y))


def against_loops() -> list[Row]:
    rows = []
    for length, target in TARGETS.items():
        leaves = inputs(length)
        ms = interleaved({f.__name__: partial(step, f, leaves) for f in (selective_scan, selective_scan_reference)})
        ours, reference = ms.values()
        rows.append(Row(f"scan L {length} against reference", ours, reference, target=None))
        rounds = 10 if length < SLOW_FROM else 1
        ms = interleaved({f.__name__: partial(step, f, leaves) for f in (selective_scan, indexed)}, rounds, seconds=5.0)
        ours, published = ms.values()
        rows.append(Row(f"scan L {length} against indexed", ours, published, target))
    return rows


def growth() -> list[Row]:
    """Milliseconds for a thousand positions, beside those at the shortest length: a ratio of 1 is linear growth."""
    ms = interleaved({str(n): partial(step, selective_scan, inputs(n)) for n in LENGTHS})
    each = {length: ms[str(length)] / (BATCH * length) * 1e3 for length in LENGTHS}
    return [Row(f"scan, 1000 positions at L {n} against L 64", each[n], each[64], target=0.8) for n in LENGTHS[1:]]


def run() -> list[Row]:
    return [*against_loops(), *growth()]


if __name__ == "__main__":
    show(run())
