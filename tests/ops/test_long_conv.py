from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from mecheval.ops.long_conv import FOURIER_FROM, long_conv, long_conv_reference, transform_length
from mecheval.ops.queries import take
from ops.agreement import LENGTHS, assert_agree, assert_close, assert_same_alone, gradients, positions, random

LONG = FOURIER_FROM + 3


def inputs(batch: int, length: int, channels: int) -> list[Tensor]:
    return [random(batch, length, channels, seed=1), random(length, channels, seed=2)]


def test_worked_by_hand() -> None:
    x, k = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[1.0], [10.0], [100.0]])
    for conv in (long_conv, long_conv_reference):
        assert conv(x, k).flatten().tolist() == [1.0, 12.0, 123.0]
        assert conv(x, k, torch.tensor([[2, 0]])).flatten().tolist() == [123.0, 1.0]


@pytest.mark.parametrize("channels", [1, 5, 40])
@pytest.mark.parametrize("length", [*LENGTHS, LONG])
def test_fast_is_reference(length: int, channels: int) -> None:
    assert_agree(long_conv, long_conv_reference, inputs(3, length, channels))


@pytest.mark.parametrize("length", [20, LONG])
def test_positions_are_a_choice_of_outputs(length: int) -> None:
    at, arguments = positions(3, 6, length), inputs(3, length, 5)
    some = gradients(partial(long_conv, at=at), arguments)
    assert_close(some, gradients(lambda *a: take(long_conv(*a), at), arguments))
    assert_agree(partial(long_conv, at=at), partial(long_conv_reference, at=at), arguments)


@pytest.mark.parametrize(("length", "tolerance"), [(30, 0.0), (LONG, 1e-5)])
def test_causal(length: int, tolerance: float) -> None:
    """To the bit in our own loop, where later tokens meet zeros; a Fourier transform spreads its rounding over all."""
    x, k = inputs(2, length, 7)
    later = x.clone()
    later[:, 17:] += 1
    difference = long_conv(later, k)[:, :17] - long_conv(x, k)[:, :17]
    assert difference.abs().max() <= tolerance * long_conv(x, k).abs().max()


@pytest.mark.parametrize("length", [30, LONG])
def test_alone(length: int) -> None:
    """To the bit: our own loop goes through documents one by one, and so do calls of the Fourier transform."""
    x, k = inputs(3, length, 40)
    assert_same_alone(lambda documents: long_conv(x[documents], k), 3)


@pytest.mark.parametrize("length", [9, LONG])
def test_strided_inputs_and_single_gradients(length: int) -> None:
    x, k = inputs(2, length, 6)
    wanted = gradients(long_conv, [x, k])
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2), k.t().contiguous().t()]
    assert_close(gradients(long_conv, strided), wanted)
    assert_close(gradients(lambda k: long_conv(x, k), [k]), [wanted[0], wanted[2]])
    with torch.no_grad():  # the very same calls
        assert torch.equal(long_conv(x.requires_grad_(), k), wanted[0])


def test_gradcheck() -> None:
    arguments = [a.double().requires_grad_() for a in inputs(2, 4, 2)]
    assert torch.autograd.gradcheck(long_conv_reference, arguments)


def test_transform_lengths_are_quick_and_long_enough() -> None:
    assert [transform_length(n) for n in (1, 9, 2 * 37 - 1, 2 * 512 - 1, 2 * 1030 - 1)] == [8, 16, 80, 1024, 2160]
