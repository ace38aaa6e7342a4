"""What the tests of every op share: a fast path is held against its reference in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from mecheval.ops import dispatch

Op = Callable[..., Tensor]

LENGTHS = (1, 2, 37, 63, 100)
VALUES, GRADIENTS = 1e-5, 1e-4


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
    """The first tensor is a value, the others gradients; errors are relative to the largest entry."""
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        error = (a - b).abs().max() / b.abs().max().clamp(min=1e-3)
        assert error < (GRADIENTS if i else VALUES), f"tensor {i}: relative error {error:.2e}"


def assert_agree(op: Op, reference: Op, inputs: Sequence[Tensor]) -> None:
    """The fast path in single precision equals the reference in double, in value and gradients."""
    with dispatch.path("fast"), nan_filled():
        found = gradients(op, inputs)
    assert_close(found, gradients(reference, [x.double() for x in inputs]))


def assert_same_alone(op: Callable[[slice], Tensor], batch: int) -> None:
    """op(documents) gives each document the same bits alone as among the others."""
    together = op(slice(0, batch))
    for b in range(batch):
        assert torch.equal(op(slice(b, b + 1))[0], together[b])


@contextmanager
def nan_filled() -> Iterator[None]:
    """Uninitialised memory is full of NaN here, so that reading it shows."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
