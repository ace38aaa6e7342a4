"""A gate by SiLU and then an RMS norm: fast against reference, over gates that are shut, half open and open."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mecheval.ops.gated_norm import EPSILON, gated_norm, gated_norm_reference
from ops.agreement import LENGTHS, assert_agree, assert_close, assert_same_alone, gradients, random


def inputs(batch: int, length: int, channels: int = 5, scale: float = 1.0) -> list[Tensor]:
    y, g = (random(batch, length, channels, seed=seed) for seed in (1, 2))
    return [y, scale * g, random(channels, seed=3)]


def test_worked_by_hand() -> None:
    """A gate of 0 is shut; the other channel is then sqrt(2) times as large as the root mean square."""
    z = 3 / (1 + math.exp(-1))
    out = gated_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([2.0, 1.0]))
    assert out.flatten().tolist() == pytest.approx([2 * z / math.sqrt(z**2 / 2 + EPSILON), 0.0])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0, 1e4])
def test_fast_is_reference(length: int, scale: float) -> None:
    """From gates so small that EPSILON counts to gates that are all or nothing; channels that fill registers or not."""
    for channels in (5, 64):
        assert_agree(gated_norm, gated_norm_reference, inputs(3, length, channels, scale))


def test_alone_and_without_contiguity() -> None:
    y, g, w = inputs(4, 37)
    assert_same_alone(lambda documents: gated_norm(y[documents], g[documents], w), 4)
    strided = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (y, g)]
    assert_close(gradients(gated_norm, [*strided, w]), gradients(gated_norm, [y, g, w]))


def test_one_channel_becomes_its_sign() -> None:
    """Its gradients are what is left where large terms cancel, so only values are compared."""
    y, g, w = inputs(3, 37, channels=1)
    torch.testing.assert_close(gated_norm(y, g, w), gated_norm_reference(y, g, w))
