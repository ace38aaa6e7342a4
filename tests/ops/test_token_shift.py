"""RWKV's token shift: fast against reference, for as many mixtures as there are maps, some of which nobody uses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mecheval.ops.token_shift import token_shift, token_shift_reference
from ops.agreement import LENGTHS, Op, assert_agree, assert_close, assert_same_alone, gradients, random

Shift = Callable[..., tuple[Tensor, ...]]


def inputs(batch: int, length: int, channels: int, mixtures: int, scale: float = 1.0) -> list[Tensor]:
    tokens = [random(batch, length, channels, seed=seed, scale=scale) for seed in (1, 2)]
    return [*tokens, *(random(1, 1, channels, seed=3 + m) for m in range(mixtures))]


def joined(shift: Shift, used: slice = slice(None)) -> Op:
    """The mixtures that are used as one tensor."""
    return lambda x, before, *shares: torch.stack(shift(x, before, shares)[used], dim=2)


def test_worked_by_hand() -> None:
    x, before = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[5.0, -2.0]]])
    shares = [torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[0.5, 0.25]]])]
    assert [y.flatten().tolist() for y in token_shift(x, before, shares)] == [[1.0, -2.0], [3.0, 1.0]]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("channels", [1, 3, 32, 64])
def test_fast_is_reference(length: int, channels: int) -> None:
    for mixtures, scale in ((6, 1.0), (5, 1e4), (1, 1e-4)):
        given = inputs(3, length, channels, mixtures, scale)
        assert_agree(joined(token_shift), joined(token_shift_reference), given)


def test_zeros_and_large_numbers_of_either_sign() -> None:
    x, before, *shares = inputs(3, 37, 5, 3)
    x[0], before[0], x[1], before[1] = 0, 0, 1e4, -1e4
    assert_agree(joined(token_shift), joined(token_shift_reference), [x, before, *shares])


@pytest.mark.parametrize("used", [slice(1, 2), slice(0, 6, 2), slice(5, None)])
def test_mixtures_that_nobody_uses(used: slice) -> None:
    given = inputs(3, 37, 5, 6)
    found = gradients(joined(token_shift, used), given)
    x, before, *shares = (tensor.double() for tensor in given)
    value, dx, dbefore, *dshares = gradients(joined(token_shift_reference), [x, before, *shares[used]])
    unused = torch.zeros(1, 1, 5)
    every = [dshares.pop(0) if m in range(6)[used] else unused for m in range(6)]
    assert_close(found, [value, dx, dbefore, *every])


@pytest.mark.parametrize("wanted", [0, 1, 3])
def test_gradients_for_one_input_only(wanted: int) -> None:
    """The others are constants, such as activations that an intervention has put in."""
    given = inputs(3, 37, 5, 2)

    def of_one(shift: Shift) -> Op:
        return lambda one: joined(shift)(*(one if i == wanted else x.to(one.dtype) for i, x in enumerate(given)))

    assert_agree(of_one(token_shift), of_one(token_shift_reference), [given[wanted]])


def test_one_token_before_all() -> None:
    x, before, *shares = inputs(3, 37, 5, 2)
    assert_agree(joined(token_shift), joined(token_shift_reference), [x, before[:1, :1], *shares])


def test_alone_and_without_contiguity() -> None:
    x, before, *shares = given = inputs(4, 37, 5, 6)
    assert_same_alone(lambda documents: joined(token_shift)(x[documents], before[documents], *shares), 4)
    turned = [tensor.mT.contiguous().mT for tensor in (x, before)]
    everywhere = [share.expand(1, 2, 5)[:, :1] for share in shares]
    assert_close(gradients(joined(token_shift), [*turned, *everywhere]), gradients(joined(token_shift), given))
