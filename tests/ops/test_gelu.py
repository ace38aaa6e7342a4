"""The exact GELU: fast against reference, and against the distribution itself where it is hard to keep digits."""

from __future__ import annotations

import math

import pytest
import torch

from mecheval.ops.gelu import MANY, gelu, gelu_reference
from ops.agreement import EPS, assert_agree, assert_close, gradients, random

RELATIVE = 32 * EPS + 1e-6
"""An exponent of 32, at x = -8, rounded, and the errors of the polynomials."""


@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0, 1e3])
@pytest.mark.parametrize("shape", [(MANY,), (3, 37, 257), (1, 999, 128)])
def test_fast_is_reference(shape: tuple[int, ...], scale: float) -> None:
    assert math.prod(shape) >= MANY
    assert_agree(gelu, gelu_reference, [random(*shape, seed=1, scale=scale)])


def test_small_values_keep_their_digits() -> None:
    """Where Φ is small, its relative error stays that of exp(-x²/2), whose exponent is rounded."""
    x = torch.linspace(-8, 0, MANY).requires_grad_()
    a = x.detach().double()
    wanted = a * torch.special.erfc(-a / math.sqrt(2)) / 2
    torch.testing.assert_close(gelu(x).detach().double(), wanted, rtol=RELATIVE, atol=0)


def test_it_is_zero_and_the_identity_far_from_zero() -> None:
    x = torch.cat([torch.full((MANY,), -50.0), torch.full((MANY,), 50.0)])
    y, dx = gradients(gelu, [x])
    assert torch.equal(y, x.clamp(min=0))
    assert torch.equal(dx, random(*x.shape, seed=99) * (x > 0))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_stays_none(bad: float) -> None:
    x = random(MANY, seed=1)
    x[7] = bad
    y = gelu(x.requires_grad_()).detach()
    assert not math.isfinite(float(y[7]))
    assert torch.isfinite(y[torch.arange(MANY) != 7]).all()


def test_without_contiguity() -> None:
    x = random(256, 128, seed=1)
    assert_close(gradients(gelu, [x.t().contiguous().t()]), gradients(gelu, [x]))


def test_few_values_are_left_to_torch() -> None:
    x = random(MANY - 1, seed=1).requires_grad_()
    assert torch.equal(gelu(x), gelu_reference(x))
