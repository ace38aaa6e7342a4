"""SiLU of unit length: fast against reference, over heads of one channel to many, and lengths from 0 to 1e4."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mecheval.ops.unit_silu import EPSILON, unit_silu, unit_silu_reference
from ops.agreement import LENGTHS, VALUES, assert_agree, assert_close, assert_same_alone, gradients, random


def test_worked_by_hand() -> None:
    """silu(1) and silu(-2) as the sides of a right triangle, whose long side becomes 1/2."""
    sides = torch.tensor([1 / (1 + math.exp(-1)), -2 / (1 + math.exp(2))])
    wanted = 0.5 * sides / math.hypot(*sides.tolist())
    torch.testing.assert_close(unit_silu(torch.tensor([[1.0, -2.0]]), 0.5), wanted[None], rtol=1e-5, atol=0)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("width", [3, 32, 64])
def test_fast_is_reference(length: int, width: int) -> None:
    """From inputs so small that EPSILON counts to gates that are all or nothing."""
    for size in (1e-4, 1.0, 10.0, 1e4):
        x = random(3, length, 2, width, seed=1, scale=size)
        assert_agree(lambda x: unit_silu(x, 0.125), lambda x: unit_silu_reference(x, 0.125), [x])


def test_one_channel_becomes_its_sign() -> None:
    """Its gradients are what is left where large terms cancel, unless EPSILON counts."""
    x = random(3, 37, 2, 1, seed=1)
    torch.testing.assert_close(unit_silu(x), unit_silu_reference(x.double()).float(), rtol=VALUES, atol=0)
    assert_agree(unit_silu, unit_silu_reference, [1e-3 * x])


def test_zeros_and_large_numbers_of_either_sign() -> None:
    x = random(4, 37, 2, 32, seed=1)
    x[0], x[1, ::2], x[2, :, :, ::3], x[2, :, :, 1::3] = 0, -1e4, 1e4, -1e4
    assert_agree(unit_silu, unit_silu_reference, [x])
    value, gradient = gradients(unit_silu, [torch.zeros(1, 1, 1, 4)])
    assert not value.any()
    torch.testing.assert_close(gradient, random(1, 1, 1, 4, seed=99) / 2 / math.sqrt(EPSILON))
    assert all(float(found.abs().max()) < 1e-20 for found in gradients(unit_silu, [torch.full((1, 1, 1, 4), -1e4)]))


def test_alone_and_without_contiguity() -> None:
    x = random(4, 37, 2, 32, seed=1)
    assert_same_alone(lambda documents: unit_silu(x[documents]), 4)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(unit_silu(turned), unit_silu(x))

    def spread(x: Tensor) -> Tensor:
        """One cotangent for all positions, which autograd does not write out."""
        return unit_silu(x).sum(1)

    assert_close(gradients(spread, [turned]), gradients(spread, [x]))


def test_a_gradient_is_not_differentiated_again_unnoticed() -> None:
    x = random(8, 16, seed=1).requires_grad_()
    [dx] = torch.autograd.grad((unit_silu(x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()
