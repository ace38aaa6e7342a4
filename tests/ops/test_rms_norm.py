"""The RMS norm: fast against reference, from rows so small that EPSILON counts to large ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mecheval.ops.rms_norm import EPSILON, rms_norm, rms_norm_reference
from ops.agreement import LENGTHS, assert_agree, assert_close, assert_same_alone, gradients, random


def inputs(batch: int, length: int, channels: int = 5, scale: float = 1.0) -> list[Tensor]:
    return [random(batch, length, channels, seed=1, scale=scale), random(channels, seed=3)]


def test_worked_by_hand() -> None:
    y = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([2.0, 1.0]))
    root = math.sqrt((9 + 16) / 2 + EPSILON)
    assert y.flatten().tolist() == pytest.approx([6 / root, 4 / root])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e4])
def test_fast_is_reference(length: int, scale: float) -> None:
    for channels in (5, 64):
        assert_agree(rms_norm, rms_norm_reference, inputs(3, length, channels, scale))


def test_heads_have_rows_of_their_own() -> None:
    assert_agree(rms_norm, rms_norm_reference, [random(2, 7, 3, 16, seed=1), random(16, seed=2)])


def test_alone_and_without_contiguity() -> None:
    x, w = inputs(4, 37)
    assert_same_alone(lambda documents: rms_norm(x[documents], w), 4)
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert_close(gradients(rms_norm, [strided, w]), gradients(rms_norm, [x, w]))


def test_zeros_stay_zeros() -> None:
    x, w = torch.zeros(2, 3, 8), random(8, seed=1)
    y, dx, dw = gradients(rms_norm, [x, w])
    assert not y.any()
    assert not dw.any()
    torch.testing.assert_close(dx, random(2, 3, 8, seed=99) * w / math.sqrt(EPSILON))


def test_nothing_gives_nothing() -> None:
    assert rms_norm(torch.empty(0, 3, 4), torch.ones(4)).shape == (0, 3, 4)
