from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from mecheval.ops import dispatch
from mecheval.ops.queries import take
from mecheval.ops.short_conv import short_conv, short_conv_reference
from ops.agreement import LENGTHS, assert_agree, assert_close, assert_same_alone, gradients, positions, random


def inputs(batch: int, length: int, channels: int, taps: int) -> list[Tensor]:
    return [random(batch, length, channels, seed=1), random(channels, 1, taps, seed=2), random(channels, seed=3)]


def test_worked_by_hand() -> None:
    x, weight, bias = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[[10.0, 1.0]]]), torch.tensor([0.5])
    wanted = torch.tensor([1.5, 12.5, 23.5])  # halves, which no order of additions rounds
    assert torch.equal(short_conv(x, weight, bias).flatten(), wanted)
    assert torch.equal(short_conv_reference(x, weight, bias).flatten(), wanted)


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 7])
def test_fast_is_reference(taps: int) -> None:
    for length in LENGTHS:
        x, weight, bias = inputs(3, length, 5, taps)
        assert_agree(short_conv, short_conv_reference, [x, weight, bias])
        assert_agree(short_conv, short_conv_reference, [x, weight])


@pytest.mark.parametrize("channels", [16, 100, 768])
def test_any_width(channels: int) -> None:
    assert_agree(short_conv, short_conv_reference, inputs(2, 40, channels, 4))


def test_positions_are_a_choice_of_outputs() -> None:
    at, arguments = positions(3, 6, 20), inputs(3, 20, 5, 4)
    some = gradients(partial(short_conv, at=at), arguments)
    assert_close(some, gradients(lambda *a: take(short_conv(*a), at), arguments))
    assert_close(some, gradients(partial(short_conv_reference, at=at), arguments))


def test_causal_and_alone() -> None:
    """To the bit: our own loop makes the same operations for every document, whatever its later tokens."""
    x, weight, bias = inputs(3, 30, 20, 4)
    y = short_conv(x, weight, bias)
    later = x.clone()
    later[:, 17:] += 1
    assert torch.equal(short_conv(later, weight, bias)[:, :17], y[:, :17])
    assert_same_alone(lambda documents: short_conv(x[documents], weight, bias), 3)


def test_strided_inputs_and_single_gradients() -> None:
    x, weight, bias = inputs(2, 9, 6, 3)
    wanted = gradients(short_conv, [x, weight, bias])
    strided = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert_close(gradients(short_conv, [strided, weight, bias]), wanted)
    assert_close(gradients(lambda w: short_conv(x, w, bias), [weight]), [wanted[0], wanted[2]])
    with torch.no_grad():  # the very same loop
        assert torch.equal(short_conv(x.requires_grad_(), weight, bias), wanted[0])


def test_gradcheck() -> None:
    arguments = [a.double().requires_grad_() for a in inputs(2, 4, 2, 3)]
    at = torch.tensor([[3, 0], [1, 1]])
    assert torch.autograd.gradcheck(partial(short_conv_reference, at=at), arguments)


def test_positions_that_do_not_exist() -> None:
    with pytest.raises(IndexError, match="positions 0 to 3"):
        short_conv(torch.zeros(1, 4, 1), torch.zeros(1, 1, 2), at=torch.tensor([[4]]))


def test_fast_refuses_double() -> None:
    with dispatch.path("fast"), pytest.raises(ValueError, match="float32"):
        short_conv(torch.zeros(1, 1, 1).double(), torch.zeros(1, 1, 1).double())
