"""What the tests of every op share: a fast path is held against its reference in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from mecheval.ops import dispatch

Op = Callable[..., Tensor]

LENGTHS = (1, 2, 37, 63, 100)
EPS = torch.finfo(torch.float32).eps


def rounding(terms: int) -> float:
    """The difference, relative to the size of its terms, that a sum of so many products may show between two orders.

    A library's matrix product adds in an order that depends on shapes, on where its inputs lie in memory, and on the
    CPU. An addition errs by up to EPS / 2, so a sum of n terms errs by less than λ √n EPS / 2, but for a chance of
    2 exp(-λ² / 2) (Higham and Mary, 2019). With λ = 8 that is one in 10^13; two sums differ by twice as much.
    """
    return 8 * math.sqrt(terms) * EPS


VALUES, GRADIENTS = 1e-5, 1e-4
"""Relative errors of a fast path: `rounding(100)`, and ten times as much for gradients, which are longer sums."""


def random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def positions(batch: int, count: int, length: int) -> Tensor:
    """Positions in no order, with repeats."""
    at = torch.randint(0, length, (batch, count), generator=torch.Generator().manual_seed(7))
    at[:, -1] = at[:, 0]
    return at


def gradients(op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The output, then the gradient for each input of a sum of outputs weighted at random."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = op(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, random(*out.shape, seed=99).to(out.dtype))


def assert_close(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """The first tensor is a value, the others gradients; errors are relative to the largest entry.

    Where a gradient is zero because its terms cancel (those of q and k for a single token, whose weight divides
    itself), their roundings are left. Those terms are as large as the gradients that do not cancel.
    """
    left = rounding(1) * max((float(b.detach().abs().max()) for b in wanted[1:]), default=0.0)
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        error, largest = float((a - b).detach().abs().max()), float(b.detach().abs().max())
        allowed = max(GRADIENTS * largest, left) if i else VALUES * largest
        assert error <= allowed, f"tensor {i}: error {error:.2e} where entries are up to {largest:.2e}"


def assert_agree(op: Op, reference: Op, inputs: Sequence[Tensor]) -> None:
    """The fast path in single precision equals the reference in double, in value and gradients."""
    with dispatch.path("fast"), nan_filled():
        found = gradients(op, inputs)
    assert_close(found, gradients(reference, [x.double() for x in inputs]))


def assert_same_alone(op: Callable[[slice], Tensor], batch: int) -> None:
    """op(documents) gives each document the same bits alone as among the others.

    For ops whose own loops go through documents one by one, or that make the same call for each of them.
    """
    together = op(slice(0, batch))
    for b in range(batch):
        assert torch.equal(op(slice(b, b + 1))[0], together[b])


def assert_close_alone(op: Callable[[slice], Tensor], batch: int) -> None:
    """The same up to rounding, for ops whose documents share a library's matrix product."""
    together = op(slice(0, batch))
    for b in range(batch):
        assert_close([op(slice(b, b + 1))[0]], [together[b]])


@contextmanager
def nan_filled() -> Iterator[None]:
    """Uninitialised memory is full of NaN here, so that reading it shows."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
