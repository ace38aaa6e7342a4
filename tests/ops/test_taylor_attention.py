from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from mecheval.ops.queries import take
from mecheval.ops.taylor_attention import (
    LINEAR_FROM,
    taylor_attention,
    taylor_attention_reference,
    taylor_features,
    taylor_states,
)
from ops.agreement import LENGTHS, assert_agree, assert_close, assert_close_alone, gradients, positions, random

LONG = LINEAR_FROM + 3


def inputs(batch: int, length: int, heads: int) -> list[Tensor]:
    q, k = (random(batch, length, heads, 4, seed=seed) for seed in (1, 2))
    return [q, k, random(batch, length, heads, 6, seed=3)]


def test_worked_by_hand() -> None:
    # With one feature: token 1 weighs token 0 with 1 (s = 0) and itself with 1 + 2 + 2 (s = 2).
    q, k, v = (torch.tensor(x)[None, :, None, None] for x in ([1.0, 2.0], [0.0, 1.0], [3.0, 6.0]))
    wanted = torch.tensor([3.0, (3 + 5 * 6) / 6])
    for attention in (taylor_attention, taylor_attention_reference):
        torch.testing.assert_close(attention(q, k, v).flatten(), wanted)
        torch.testing.assert_close(attention(q[:, 1:], k, v, torch.tensor([[1]])).flatten(), wanted[1:])


def test_states_worked_by_hand() -> None:
    k, v = (torch.tensor(x)[None, :, None, None] for x in ([0.0, 2.0], [3.0, 6.0]))
    first = torch.tensor([[3.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    second = torch.tensor([[9.0, 2.0], [12.0, 2.0], [6 * 4 / 2**0.5, 4 / 2**0.5]])
    torch.testing.assert_close(taylor_states(k, v)[0, :, 0], torch.stack([first, second]))


def test_states_are_what_queries_read() -> None:
    q, k, v = (x.double() for x in inputs(2, 9, 2))
    read = (taylor_features(q)[..., None, :] @ taylor_states(k, v)).squeeze(-2)
    torch.testing.assert_close(read[..., :-1] / read[..., -1:], taylor_attention_reference(q, k, v))


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("length", [*LENGTHS, LONG])
def test_fast_is_reference(length: int, heads: int) -> None:
    assert_agree(taylor_attention, taylor_attention_reference, inputs(3, length, heads))


def test_long_queries_and_keys() -> None:
    q, k, v = inputs(3, LONG, 1)
    assert_agree(taylor_attention, taylor_attention_reference, [16 * q, 16 * k, v])


@pytest.mark.parametrize("length", [20, LONG])
def test_positions_are_a_choice_of_outputs(length: int) -> None:
    at, (q, k, v) = positions(3, 6, length), inputs(3, length, 2)
    some = gradients(lambda q, k, v: taylor_attention(take(q, at), k, v, at), [q, k, v])
    assert_close(some, gradients(lambda *a: take(taylor_attention(*a), at), [q, k, v]))
    assert_agree(partial(taylor_attention, at=at), partial(taylor_attention_reference, at=at), [take(q, at), k, v])


@pytest.mark.parametrize("length", [30, LONG])
def test_causal_and_alone(length: int) -> None:
    """To rounding: products over the batch and over all keys, also those with weight zero, are a library's."""
    q, k, v = inputs(3, length, 2)
    after = (torch.arange(length) >= 17)[:, None, None]
    changed = taylor_attention(q + after, k + after, v + after)
    before = taylor_attention(q, k, v)
    assert_close([changed[:, :17]], [before[:, :17]])
    assert not torch.allclose(changed[:, 17], before[:, 17])
    assert_close_alone(lambda documents: taylor_attention(q[documents], k[documents], v[documents]), 3)


@pytest.mark.parametrize("length", [9, LONG])
def test_single_gradients(length: int) -> None:
    q, k, v = inputs(2, length, 2)
    wanted = gradients(taylor_attention, [q, k, v])
    assert_close(gradients(lambda k: taylor_attention(q, k, v), [k]), [wanted[0], wanted[2]])
    with torch.no_grad():  # the very same calls
        assert torch.equal(taylor_attention(q.requires_grad_(), k, v), wanted[0])


def test_gradcheck() -> None:
    q, k, v = inputs(2, 4, 2)
    at = torch.tensor([[3, 0], [1, 1]])
    double = [x.double().requires_grad_() for x in (take(q, at), k, v)]
    assert torch.autograd.gradcheck(partial(taylor_attention_reference, at=at), double)
    assert torch.autograd.gradcheck(taylor_states, double[1:])
