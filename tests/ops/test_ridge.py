from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops import ridge as ops
from mecheval.ops.queries import take
from mecheval.ops.ridge import ridge, ridge_reference
from mecheval.ops.ridge_kernel import LANES
from ops.agreement import LENGTHS, Op, assert_agree, assert_close_alone, positions, random


def inputs(batch: int, length: int, heads: int = 2, size: int = 7, decay: float = 0.1) -> list[Tensor]:
    """q, k, g, beta, lamb as in a MesaNet layer."""
    q, k = (F.normalize(random(batch, length, heads, size, seed=seed), dim=-1) for seed in (1, 2))
    g, beta = -decay * random(batch, length, heads, seed=3).sigmoid(), random(batch, length, heads, seed=4).sigmoid()
    return [q, k, g, beta, 0.25 + random(heads, size, seed=5).sigmoid()]


@pytest.mark.parametrize(("heads", "size"), [(1, 1), (2, 7), (3, 4), (1, 18)])
def test_fast_is_reference(heads: int, size: int) -> None:
    for length in (*LENGTHS, 300):
        assert_agree(ridge, ridge_reference, inputs(2, length, heads, size))
    at, (q, *rest) = positions(2, 5, 100), inputs(2, 100, heads, size)
    assert_agree(partial(ridge, at=at), partial(ridge_reference, at=at), [take(q, at), *rest])


@pytest.mark.parametrize("short", [0.0, 1000.0], ids=["whole matrices", "smaller matrices"])
def test_both_matrices_are_the_reference(short: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the length that divides them, and far from it; strengths and weights that vanish; strengths below zero."""
    monkeypatch.setattr("mecheval.ops.ridge.SHORT", short)
    for length, size in ((1, 40), (37, 40), (40, 40), (63, 8)):
        q, k, g, beta, lamb = inputs(2, length, 2, size)
        assert_agree(ridge, ridge_reference, [q, k, g, beta, lamb])
        forgotten = torch.full_like(g, -200.0)  # exp(-200) is zero in single precision
        assert_agree(with_decay(ridge, forgotten), with_decay(ridge_reference, forgotten), [q, k, beta, lamb])
        fading = torch.where(g < g.median(), g, 500 * g)  # by as much as exp(-25) in a step, and next hardly at all
        assert_agree(with_decay(ridge, fading), with_decay(ridge_reference, fading), [q, k, beta, lamb])
        assert_agree(ridge, ridge_reference, [q, k, g, torch.zeros_like(beta), lamb])
        assert_agree(ridge, ridge_reference, [q, k, g, -0.001 * beta, lamb])
        at = positions(2, 5, length)
        assert_agree(partial(ridge, at=at), partial(ridge_reference, at=at), [take(q, at), k, g, beta, lamb])


@pytest.mark.parametrize("short", [0.0, 1000.0], ids=["whole matrices", "smaller matrices"])
@pytest.mark.parametrize("batch", [1, 3, 9, 40])
def test_few_and_many_documents(short: float, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few documents each has several lanes, and many do not all have one at once; with one query or with several."""
    monkeypatch.setattr("mecheval.ops.ridge.SHORT", short)
    q, *rest = inputs(batch, 11, 3, 5)
    assert_agree(ridge, ridge_reference, [q, *rest])
    for count in (1, 6):
        at = positions(batch, count, 11)
        assert_agree(partial(ridge, at=at), partial(ridge_reference, at=at), [take(q, at), *rest])


def test_the_last_token_that_is_read_decides_between_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    for name in ("_solve_by_tokens", "_solve_by_channels"):
        monkeypatch.setattr(ops, name, recording(taken, name))
    q, *rest = inputs(2, 40, 2, 20)
    last = math.ceil(20 * ops.SHORT) - 1
    for latest, kernel in ((last, "_solve_by_tokens"), (last + 1, "_solve_by_channels")):
        at = torch.tensor([[3, latest], [0, 0]])
        assert_agree(partial(ridge, at=at), partial(ridge_reference, at=at), [take(q, at), *rest])
        assert taken == [kernel, kernel]  # forward and backward
        taken.clear()


def recording(taken: list[str], name: str) -> Callable[..., None]:
    """The kernel, which also notes its name."""
    kernel = getattr(ops, name)

    def recorded(*given: object) -> None:
        taken.append(name)
        kernel(*given)

    return recorded


@pytest.mark.parametrize("short", [0.0, 1000.0], ids=["whole matrices", "smaller matrices"])
def test_nothing_of_a_document_reaches_another(short: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even NaN, which shows also what is multiplied by zero, or is left of a document that had the lane before."""
    monkeypatch.setattr("mecheval.ops.ridge.SHORT", short)
    batch = LANES + 3
    q, k, g, beta, lamb = inputs(batch, 14, 1)
    at = torch.tensor([[13, 5]] * LANES + [[0, 9]] * 3)
    for broken in (list(range(LANES)), [0, LANES + 1]):
        others = [b for b in range(batch) if b not in broken]
        k_broken = k.clone()
        k_broken[broken] = torch.nan
        found = ridge(q[:, :2], k_broken, g, beta, lamb, at)
        assert found[broken].isnan().all()
        assert torch.equal(found[others], ridge(q[:, :2], k, g, beta, lamb, at)[others])


def test_worked_by_hand() -> None:
    """Two steps under one key: G = 2 (1/2) + 3 = 4, so x = 10 / (4 + 1)."""
    k, beta = torch.ones(1, 2, 1, 1), torch.tensor([2.0, 3.0]).view(1, 2, 1)
    g = torch.full((1, 2, 1), 0.5).log()
    assert ridge(10 * k, k, g, beta, torch.ones(1, 1))[0, 1].item() == pytest.approx(2.0, rel=1e-6)


def with_decay(op: Op, g: Tensor) -> Op:
    """The op with this log-decay, of which no gradient is asked."""
    return lambda q, k, beta, lamb: op(q, k, g.to(q.dtype), beta, lamb)


def test_little_ridge_and_repeated_keys_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that repeat leave G nearly singular: single precision alone would be off by one in a hundred.

    The gradient of g is not compared: 16 x 16 terms of up to 2e7 cancel to 4 in it, and rounding these in single
    precision leaves more than that, whatever the CPU and the order of the sum.
    """
    q, k, g, beta, lamb = inputs(1, 200, 1, 16)
    repeated, kept = k[:, :3].repeat(1, 67, 1, 1)[:, :200], torch.zeros_like(g)
    given = [q, repeated, beta, 1e-3 * lamb]
    assert_agree(with_decay(ridge, kept), with_decay(ridge_reference, kept), given)
    monkeypatch.setattr("mecheval.ops.ridge.SHORT", 1000.0)
    assert_agree(with_decay(ridge, kept), with_decay(ridge_reference, kept), given)


def test_reference_gradients_are_numerical_gradients() -> None:
    assert torch.autograd.gradcheck(ridge_reference, [x.double().requires_grad_() for x in inputs(1, 3, 1, 2)])


@pytest.mark.parametrize("short", [0.0, 1000.0], ids=["whole matrices", "smaller matrices"])
def test_alone(short: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to rounding: in how many parts a document is read depends on how many documents there are."""
    monkeypatch.setattr("mecheval.ops.ridge.SHORT", short)
    q, k, g, beta, lamb = inputs(4, 37)
    assert_close_alone(lambda i: ridge(q[i], k[i], g[i], beta[i], lamb), 4)
