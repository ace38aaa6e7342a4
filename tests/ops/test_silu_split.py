"""SiLU of channels that are then parted: fast against reference, in parts of one channel, of some, and in one part."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mecheval.ops.silu_split import silu_split, silu_split_reference
from ops.agreement import LENGTHS, Op, assert_agree, assert_close, assert_same_alone, gradients, random

SIZES = ((9,), (1, 8), (4, 3, 2))


def joined(op: Callable[..., tuple[Tensor, ...]], sizes: tuple[int, ...]) -> Op:
    """The parts as one tensor, in another order than they have in x."""
    return lambda x: torch.cat(op(x, sizes)[::-1], dim=-1)


def test_worked_by_hand() -> None:
    one, rest = silu_split(torch.tensor([[1.0, 0.0, -2.0]]), (1, 2))
    assert one.tolist() == [[pytest.approx(1 / (1 + math.exp(-1)))]]
    assert rest.tolist() == [[0.0, pytest.approx(-2 / (1 + math.exp(2)))]]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("sizes", SIZES)
def test_fast_is_reference(length: int, sizes: tuple[int, ...]) -> None:
    for scale in (1e-3, 1.0, 10.0, 1e4):
        x = random(3, length, 9, seed=1, scale=scale)
        assert_agree(joined(silu_split, sizes), joined(silu_split_reference, sizes), [x])


def test_alone_without_contiguity_and_with_a_part_that_nobody_uses() -> None:
    x = random(4, 37, 9, seed=1)

    def last(x: Tensor) -> Tensor:
        return silu_split(x, (4, 3, 2))[2]

    assert_same_alone(lambda documents: last(x[documents]), 4)
    assert_close(gradients(last, [x.mT.contiguous().mT]), gradients(last, [x]))
    assert not gradients(last, [x])[1][..., :7].any()
