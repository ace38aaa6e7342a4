from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from mecheval.ops.h3_kernels import (
    diagonal_kernel,
    diagonal_kernel_reference,
    h3_mix,
    h3_mix_reference,
    shift_kernel,
    shift_kernel_reference,
)
from mecheval.ops.long_conv import FOURIER_FROM
from mecheval.ops.long_conv_kernel import LANES
from mecheval.ops.queries import take
from ops.agreement import EPS, LENGTHS, assert_agree, assert_close, assert_same_alone, gradients, positions, random

LONG = FOURIER_FROM + 3


def diagonal_inputs(heads: int, modes: int) -> list[Tensor]:
    """H3's own initialisation, whose highest modes turn by many times 2π a step, and noise."""
    inv_A_real = math.log(0.5) + random(heads, modes, seed=1, scale=0.1)
    A_imag = math.pi * torch.arange(modes).float() + random(heads, modes, seed=2, scale=0.1)
    log_dt = torch.linspace(math.log(0.001), math.log(0.1), heads)
    return [inv_A_real, A_imag, random(heads, modes, 2, seed=3), random(heads, modes, 2, seed=4), log_dt]


def mix_inputs(batch: int, length: int, heads: int, width: int) -> list[Tensor]:
    q, k, v = (random(batch, length, heads, width, seed=seed) for seed in (1, 2, 3))
    return [q, k, v, random(length, heads, seed=4), random(heads, seed=5)]


def test_shift_worked_by_hand() -> None:
    B, C = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 20.0, 30.0]])
    for kernel in (shift_kernel, shift_kernel_reference):
        assert kernel(B, C, 4).flatten().tolist() == [140.0, 80.0, 30.0, 0.0]


def test_diagonal_worked_by_hand() -> None:
    # Head 0: A = -2/3, so that z = -1/3, the step is 1/2 and the weight 3/4 C B.
    # Head 1: A = 2i, so that z = i, the step is i and the weight (1 + i)/2 C B.
    inv_A_real, A_imag = torch.tensor([[math.log(2 / 3)], [-1000.0]]), torch.tensor([[0.0], [2.0]])
    B, C = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]), torch.tensor([[[2.0, 0.0]], [[1.0, 0.0]]])
    wanted = torch.tensor([[3.0, 1.0], [1.5, -1.0], [0.75, -1.0], [0.375, 1.0]])
    for kernel in (diagonal_kernel, diagonal_kernel_reference):
        torch.testing.assert_close(kernel(inv_A_real, A_imag, B, C, torch.zeros(2), 4), wanted, rtol=1e-6, atol=1e-6)


def test_mix_worked_by_hand() -> None:
    q, k, v = (torch.tensor(x)[None, :, None, None] for x in ([1.0, 2.0], [1.0, 3.0], [5.0, 7.0]))
    kernel, D = torch.tensor([[1.0], [10.0]]), torch.tensor([100.0])
    for mix in (h3_mix, h3_mix_reference):
        assert mix(q, k, v, kernel, D).flatten().tolist() == [505.0, 4342.0]
        assert mix(q[:, 1:], k, v, kernel, D, torch.tensor([[1]])).flatten().tolist() == [4342.0]


@pytest.mark.parametrize("length", [*LENGTHS, 1024])
def test_shift_is_reference(length: int) -> None:
    inputs = [random(3, 70, seed=1), random(3, 70, seed=2)]
    assert_agree(partial(shift_kernel, length=length), partial(shift_kernel_reference, length=length), inputs)


@pytest.mark.parametrize("length", [*LENGTHS, 1024])
def test_diagonal_is_reference(length: int) -> None:
    inputs = diagonal_inputs(3, 70)
    assert_agree(partial(diagonal_kernel, length=length), partial(diagonal_kernel_reference, length=length), inputs)


@pytest.mark.parametrize("length", [300, 2048])
def test_the_diagonal_reference_is_as_precise_in_single_precision(length: int) -> None:
    """Angles grow with the length; their errors must not."""
    inputs, reference = diagonal_inputs(3, 70), partial(diagonal_kernel_reference, length=length)
    found, exact = gradients(reference, inputs), gradients(reference, [x.double() for x in inputs])
    assert {x.dtype for x in found} == {torch.float32}
    assert_close(found, exact)
    assert (found[0] - exact[0]).abs().max() <= EPS * exact[0].abs().max()  # rounded once, at the end


@pytest.mark.parametrize(("heads", "width"), [(3, 1), (5, 2), (40, 2), (2, 3), (20, 3), (1, 40)])
def test_mix_is_reference(heads: int, width: int) -> None:
    """Also where a head begins in one block of lanes and ends in the next."""
    for length in (*LENGTHS, LONG) if heads < LANES else LENGTHS:  # the Fourier path knows no lanes
        assert_agree(h3_mix, h3_mix_reference, mix_inputs(2, length, heads, width))


@pytest.mark.parametrize("length", [20, LONG])
def test_positions_are_a_choice_of_outputs(length: int) -> None:
    at, (q, *rest) = positions(3, 6, length), mix_inputs(3, length, 5, 2)
    some = gradients(lambda q, *a: partial(h3_mix, at=at)(take(q, at), *a), [q, *rest])
    assert_close(some, gradients(lambda *a: take(h3_mix(*a), at), [q, *rest]))
    assert_agree(partial(h3_mix, at=at), partial(h3_mix_reference, at=at), [take(q, at), *rest])


def test_causal_and_alone() -> None:
    """To the bit: our own loop makes the same operations for every document, and later tokens meet zeros."""
    q, k, v, kernel, D = mix_inputs(3, 30, 40, 2)
    after = (torch.arange(30) >= 17)[:, None, None]
    changed = h3_mix(q + after, k + after, v + after, kernel, D)
    assert torch.equal(changed[:, :17], h3_mix(q, k, v, kernel, D)[:, :17])
    assert_same_alone(lambda documents: h3_mix(q[documents], k[documents], v[documents], kernel, D), 3)


def test_strided_inputs_and_single_gradients() -> None:
    q, k, v, kernel, D = mix_inputs(2, 9, 6, 2)
    wanted = gradients(h3_mix, [q, k, v, kernel, D])
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert_close(gradients(h3_mix, [*strided, kernel, D]), wanted)
    assert_close(gradients(lambda D: h3_mix(q, k, v, kernel, D), [D]), [wanted[0], wanted[5]])
    with torch.no_grad():  # the very same loop
        assert torch.equal(h3_mix(q.requires_grad_(), k, v, kernel, D), wanted[0])


def test_gradcheck() -> None:
    def double(inputs: list[Tensor]) -> list[Tensor]:
        return [x.double().requires_grad_() for x in inputs]

    at = torch.tensor([[3, 0], [1, 1]])
    q, *rest = mix_inputs(2, 4, 2, 2)
    assert torch.autograd.gradcheck(h3_mix_reference, double([q, *rest]))
    assert torch.autograd.gradcheck(partial(h3_mix_reference, at=at), double([take(q, at), *rest]))
    assert torch.autograd.gradcheck(partial(diagonal_kernel_reference, length=4), double(diagonal_inputs(2, 3)))
    assert torch.autograd.gradcheck(
        partial(shift_kernel_reference, length=5), double([random(2, 3, seed=1), random(2, 3, seed=2)])
    )
