"""The delta rule, forward and backward, batch 32, against the recurrence as a loop over time.

`naive` is flash-linear-attention's loop, `reference` this project's own, which copies less.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import Row, interleaved, show
from benchmarks.peers import naive_delta_rule
from mecheval.ops.linear_recurrence import linear_recurrence, linear_recurrence_reference

BATCH = 32
HEADS = ((1, 64), (2, 32), (1, 16))
"""(heads, size of keys and values)"""
TARGETS = {36: None, 128: 6.0, 512: None}

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    return linear_recurrence(q, k, v, beta=beta)


def delta_rule_reference(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    return linear_recurrence_reference(q, k, v, beta=beta)[0]


def inputs(length: int, heads: int, size: int, batch: int = BATCH) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, length, heads, size, generator=g) for _ in range(3))
    beta = torch.randn(batch, length, heads, generator=g).sigmoid()
    return [x.requires_grad_() for x in (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, beta)]


def step(rule: Rule, leaves: list[Tensor]) -> object:
    o = rule(*leaves)
    return torch.autograd.grad(o, leaves, torch.ones_like(o))


def naive() -> Rule:
    recurrence = naive_delta_rule()
    if recurrence is None:
        raise SystemExit("this benchmark needs the dev extra (fla-core)")

    def rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
        return recurrence(*(x.transpose(1, 2) for x in (q, k, v, beta)))[0].transpose(1, 2)

    return rule


def run() -> list[Row]:
    rows = []
    for length, target in TARGETS.items():
        for heads, size in HEADS:
            leaves = inputs(length, heads, size)
            peers = {"reference": delta_rule_reference, "naive": naive()}
            ms = interleaved({name: partial(step, f, leaves) for name, f in {"ours": delta_rule, **peers}.items()})
            for peer, wanted in (("reference", None), ("naive", target)):
                rows.append(
                    Row(f"delta rule L {length} H {heads} D {size} against {peer}", ms["ours"], ms[peer], wanted)
                )
    ms = interleaved({str(n): partial(step, delta_rule, inputs(n, 1, 64, batch=4)) for n in (128, 1024)})
    each = {n: ms[str(n)] / (4 * n) * 1e3 for n in (128, 1024)}
    return [*rows, Row("delta rule, 1000 positions at L 1024 against L 128", each[1024], each[128], target=0.8)]


if __name__ == "__main__":
    show(run())
