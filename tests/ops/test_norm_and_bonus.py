"""The end of RWKV-7's time mixing: fast against reference, over heads of two channels to many."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops.norm_and_bonus import norm_and_bonus, norm_and_bonus_reference
from ops.agreement import LENGTHS, Op, assert_agree, assert_close, assert_same_alone, gradients, random

EPSILON = 1e-3


def inputs(
    batch: int, length: int, heads: int = 2, width: int = 5, values: int = 3, scale: float = 1.0
) -> list[Tensor]:
    """`scale` is the size of what was read."""
    o, v = (random(batch, length, heads, values, seed=seed) for seed in (1, 2))
    r, k = (random(batch, length, heads, width, seed=seed, scale=width**-0.5) for seed in (3, 4))
    return [scale * o, r, k, v, random(heads, width, seed=5), *(random(heads, values, seed=seed) for seed in (6, 7))]


def with_epsilon(op: Op) -> Op:
    return lambda *given: op(*given, EPSILON)


ours, reference = with_epsilon(norm_and_bonus), with_epsilon(norm_and_bonus_reference)


def test_worked_by_hand() -> None:
    """What was read, 1 and 3, is one above and below its mean; the bonus is 2 · 3 · 0.5 times the value."""
    o, r, k, v = (torch.tensor(x).view(1, 1, 1, -1) for x in ([1.0, 3.0], [2.0], [3.0], [10.0, 20.0]))
    y = norm_and_bonus(o, r, k, v, torch.tensor([[0.5]]), torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 7.0]]), 1e-5)
    one = 1 / math.sqrt(1 + 1e-5)
    assert y.flatten().tolist() == pytest.approx([-one + 30, 2 * one + 7 + 60])


def test_reference_is_group_norm() -> None:
    """Upstream normalises with a `GroupNorm` whose groups are heads."""
    o, r, k, v, u, w, c = inputs(3, 37)
    normed = F.group_norm(o.flatten(0, 1).flatten(1), 2, w.flatten(), c.flatten(), EPSILON).view_as(o)
    torch.testing.assert_close(reference(o, r, k, v, u, w, c), normed + (r * k * u).sum(-1, keepdim=True) * v)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("heads", "width", "values"), [(1, 1, 3), (3, 32, 32), (2, 64, 64), (2, 3, 5)])
def test_fast_is_reference(length: int, heads: int, width: int, values: int) -> None:
    """From reads so small that ε counts to large ones."""
    for scale in (1e-3, 1.0, 1e4):
        assert_agree(ours, reference, inputs(3, length, heads, width, values, scale))


def test_zeros_large_numbers_and_a_single_channel() -> None:
    """One channel is its own mean, so that nothing of what was read is left."""
    o, *rest = inputs(3, 37)
    o[0], o[1, :, :, 0], o[1, :, :, 1] = 0, 1e4, -1e4
    assert_agree(ours, reference, [o, *rest])
    assert_agree(ours, reference, inputs(3, 37, values=1))


@pytest.mark.parametrize("wanted", range(7))
def test_gradients_for_one_input_only(wanted: int) -> None:
    given = inputs(3, 37)

    def of_one(op: Op) -> Op:
        return lambda one: op(*(one if i == wanted else x.to(one.dtype) for i, x in enumerate(given)))

    assert_agree(of_one(ours), of_one(reference), [given[wanted]])


def test_one_read_for_all() -> None:
    o, *rest = inputs(3, 37)
    assert_agree(ours, reference, [o[:1, :1], *rest])


def test_alone_and_without_contiguity() -> None:
    *activations, u, w, c = given = inputs(4, 37)
    assert_same_alone(lambda documents: ours(*(x[documents] for x in activations), u, w, c), 4)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in activations]
    assert_close(gradients(ours, [*turned, *(x.T.contiguous().T for x in (u, w, c))]), gradients(ours, given))
