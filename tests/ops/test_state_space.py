"""The state space model of Mamba-2: fast against reference at awkward sizes, with strong, absent and total decay."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mecheval.ops import dispatch
from mecheval.ops.queries import take
from mecheval.ops.state_space import CHUNK, ONE_CHUNK, state_space, state_space_reference
from ops.agreement import LENGTHS, assert_agree, assert_close, assert_close_alone, gradients, positions, random


def inputs(batch: int, length: int, heads: int = 3, width: int = 5, states: int = 9, step: float = 0.3) -> list[Tensor]:
    """u, steps dt between 0 and `step`, A between -2 and 0, B and C of about unit length, and D."""
    dt = step * random(batch, length, heads, seed=2).sigmoid()
    A = -2 * random(heads, seed=3).sigmoid()
    B, C = (random(batch, length, states, seed=seed, scale=states**-0.5) for seed in (4, 5))
    return [random(batch, length, heads, width, seed=1), dt, A, B, C, random(heads, seed=6)]


def test_worked_by_hand() -> None:
    """Two heads are written 4 and then 8: one halves its memory at each step, the other adds its input by D."""
    u = torch.tensor([4.0, 8.0]).view(1, 2, 1, 1).expand(1, 2, 2, 1)
    one = torch.ones(1, 2, 1)
    given = (u, torch.ones(1, 2, 2), torch.tensor([math.log(0.5), 0.0]), one, one, torch.tensor([0.0, 1.0]))
    for path in ("reference", "fast"):
        with dispatch.path(path):
            assert state_space(*given).flatten().tolist() == pytest.approx([4.0, 8.0, 10.0, 20.0])
            at = torch.tensor([[1]])
            assert state_space(*given[:4], one[:, 1:], given[5], at).flatten().tolist() == pytest.approx([10.0, 20.0])


@pytest.mark.parametrize("length", [*LENGTHS, ONE_CHUNK, ONE_CHUNK + 1, 3 * CHUNK, 300])
def test_fast_is_reference(length: int) -> None:
    """At each length with sizes that fill no register, at some with single numbers and with sizes that fill one."""
    others = ((1, 1, 1), (2, 16, 8)) if length in (2, ONE_CHUNK + 1) else ()
    for heads, width, states in ((3, 5, 9), *others):
        assert_agree(state_space, state_space_reference, inputs(2, length, heads, width, states))


def test_long_documents() -> None:
    """Of 16 chunks, over which hardly anything decays."""
    assert_agree(state_space, state_space_reference, inputs(1, 16 * CHUNK, 1, 3, 4, step=0.01))


@pytest.mark.parametrize("length", [100, 300])
def test_strong_weak_and_total_decay(length: int) -> None:
    """None; -20 a step; a few strong ones, beside which the weak must keep their digits; and all forgotten."""
    u, dt, A, *rest = inputs(2, length, step=1.0)
    some = random(*dt.shape, seed=10) > 1.2
    for step, rate in ((dt, 0 * A), (dt + 1, A - 20), (torch.where(some, 3000.0, 0.01 * dt), A - 1)):
        assert_agree(state_space, state_space_reference, [u, step, rate, *rest])
    gone = state_space(u, dt + 1, torch.full_like(A, -1e30), *rest)
    assert_close([gone], [state_space_reference(u, dt + 1, torch.full_like(A, -1e30), *rest)])


def test_steps_of_nothing_write_nothing() -> None:
    u, dt, *rest = inputs(2, 200)
    assert_agree(state_space, state_space_reference, [u, torch.where(random(*dt.shape, seed=10) > 0, 0.0, dt), *rest])


@pytest.mark.parametrize("slab", [1, 150_000, 1_000_000])
def test_documents_are_taken_slab_by_slab(monkeypatch: pytest.MonkeyPatch, slab: int) -> None:
    """One at a time, some of them, or all, each with a last chunk that is full and one that is not."""
    monkeypatch.setattr("mecheval.ops.state_space.SLAB", slab)
    for length in (ONE_CHUNK, 3 * CHUNK, 3 * CHUNK - 1):
        assert_agree(state_space, state_space_reference, inputs(5, length))


@pytest.mark.parametrize("length", [40, 300])
def test_positions_are_a_choice_of_outputs(length: int) -> None:
    at, given = positions(3, 6, length), inputs(3, length)
    wanted = gradients(lambda *x: take(state_space(*x), at), given)
    found = gradients(lambda u, dt, A, B, C, D: state_space(u, dt, A, B, take(C, at), D, at), given)
    assert_close(found, wanted)


@pytest.mark.parametrize("length", [37, 300])
def test_alone(length: int) -> None:
    u, dt, A, B, C, D = inputs(4, length)
    assert_close_alone(lambda some: state_space(u[some], dt[some], A, B[some], C[some], D), 4)


@pytest.mark.parametrize("length", [19, 200])
def test_strided_inputs_and_single_gradients(length: int) -> None:
    given = inputs(2, length)
    wanted = gradients(state_space, given)
    strided = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in given]
    assert_close(gradients(state_space, strided), wanted)
    for i in range(len(given)):
        leaves = [x.detach().requires_grad_(j == i) for j, x in enumerate(given)]
        out = state_space(*leaves)
        (alone,) = torch.autograd.grad(out, leaves[i], random(*out.shape, seed=99))
        assert_close([alone], [wanted[1 + i]])
    with torch.no_grad():
        assert_close([state_space(*given)], [wanted[0]])


def test_reference_gradients_are_numerical_gradients() -> None:
    leaves = [x.double().requires_grad_() for x in inputs(1, 3, 2, 2, 2)]
    assert torch.autograd.gradcheck(state_space, leaves, fast_mode=True)
