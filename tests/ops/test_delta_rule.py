from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops.delta_rule import (
    ONE_CHUNK,
    _delta_on_gpu,
    delta_rule,
    delta_rule_reference,
    delta_rule_states,
)
from mecheval.ops.queries import take
from ops.agreement import LENGTHS, assert_agree, assert_close, assert_close_alone, gradients, positions, random


def inputs(batch: int, length: int, heads: int = 2, key_size: int = 16, value_size: int = 16) -> list[Tensor]:
    """q, k, v, beta as in a DeltaNet layer: unit keys and queries, strengths between 0 and 1."""
    q, k = (F.normalize(random(batch, length, heads, key_size, seed=seed), dim=-1) for seed in (1, 2))
    v, beta = random(batch, length, heads, value_size, seed=3), random(batch, length, heads, seed=4)
    return [q, k, v, beta.sigmoid()]


def read_at(at: Tensor) -> Any:
    """The op as a function of queries at every position, of which only those at `at` are asked."""
    return lambda q, k, v, beta: delta_rule(take(q, at), k, v, beta, at)


def test_worked_by_hand() -> None:
    """Two keys; the first is written 5, then moved half way to 9."""
    k, v = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([[5.0], [7.0], [9.0]])
    beta, q = torch.tensor([1.0, 1.0, 0.5]), torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    q, k, v, beta = q.view(1, 3, 1, 2), k.view(1, 3, 1, 2), v.view(1, 3, 1, 1), beta.view(1, 3, 1)
    for rule in (delta_rule, delta_rule_reference):
        assert rule(q, k, v, beta).flatten().tolist() == [5.0, 12.0, 7.0]
        assert rule(q[:, [2, 0]], k, v, beta, torch.tensor([[2, 0]])).flatten().tolist() == [7.0, 5.0]


def test_full_strength_recalls_the_newest_value() -> None:
    _, k, v, beta = inputs(2, 50)
    assert_close([delta_rule(k, k, v, torch.ones_like(beta))], [v])


@pytest.mark.parametrize(("heads", "key_size", "value_size"), [(1, 1, 1), (2, 16, 16), (3, 5, 9)])
@pytest.mark.parametrize("length", [*LENGTHS, ONE_CHUNK, ONE_CHUNK + 1, 160])
def test_fast_is_reference(length: int, heads: int, key_size: int, value_size: int) -> None:
    assert_agree(delta_rule, delta_rule_reference, inputs(3, length, heads, key_size, value_size))


@pytest.mark.parametrize("count", [5, ONE_CHUNK + 20])
@pytest.mark.parametrize("length", [1, 40, 100])
def test_positions_are_a_choice_of_outputs(length: int, count: int) -> None:
    at, arguments = positions(3, count, length), inputs(3, length)
    assert_close(gradients(read_at(at), arguments), gradients(lambda *a: take(delta_rule(*a), at), arguments))


@pytest.mark.parametrize("count", [5, ONE_CHUNK + 20])
def test_fast_is_reference_at_positions(count: int) -> None:
    at, (q, k, v, beta) = positions(3, count, 100), inputs(3, 100)
    assert_agree(partial(delta_rule, at=at), partial(delta_rule_reference, at=at), [take(q, at), k, v, beta])


def test_keys_that_repeat_at_full_strength() -> None:
    """Where undoing an update would divide by zero."""
    q, k, v, beta = inputs(2, 200)
    assert_agree(delta_rule, delta_rule_reference, [q, k[:, :3].repeat(1, 67, 1, 1)[:, :200], v, torch.ones_like(beta)])


@pytest.mark.parametrize("at", [None, torch.tensor([[2, 0, 2]])])
def test_reference_gradients_are_numerical_gradients(at: Tensor | None) -> None:
    leaves = [x.double().requires_grad_() for x in inputs(1, 3, 1, 2, 2)]
    torch.autograd.gradcheck(partial(delta_rule_reference, at=at), leaves)


@pytest.mark.parametrize("length", [30, 100])
def test_causal(length: int) -> None:
    q, k, v, beta = inputs(2, length)
    before = delta_rule(q, k, v, beta)
    for x in (q, k, v, beta):
        x[:, 17:] = x[:, 17:].roll(1, dims=1)
    after = delta_rule(q, k, v, beta)
    assert_close([after[:, :17]], [before[:, :17]])
    assert not torch.allclose(after[:, 17], before[:, 17])


@pytest.mark.parametrize("length", [37, 100])
def test_alone(length: int) -> None:
    """To rounding: a library of matrix products may choose another method for another batch."""
    assert_close_alone(lambda documents: delta_rule(*(x[documents] for x in inputs(4, length))), 4)


def test_strided_inputs_and_single_gradients() -> None:
    arguments = inputs(2, 19)
    wanted = gradients(delta_rule, arguments)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in arguments]
    assert_close(gradients(delta_rule, strided), wanted)
    for i in range(4):
        leaves = [x.detach().requires_grad_(j == i) for j, x in enumerate(arguments)]
        out = delta_rule(*leaves)
        (alone,) = torch.autograd.grad(out, leaves[i], random(*out.shape, seed=99))
        assert_close([alone], [wanted[1 + i]])


def test_no_grad_gives_the_same_values() -> None:
    """To rounding: PyTorch may multiply in another way where no gradient is wanted."""
    leaves = [x.requires_grad_() for x in inputs(2, 19)]
    with torch.no_grad():
        quiet = delta_rule(*leaves)
    assert not quiet.requires_grad
    assert_close([quiet], [delta_rule(*leaves)])


def test_output_reads_the_states() -> None:
    q, k, v, beta = inputs(2, 21)
    o = torch.einsum("blhde,blhd->blhe", delta_rule_states(k, v, beta), q)
    assert_close([o], [delta_rule(q, k, v, beta)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpu_package_gets_its_layout(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """A stand-in with fla's documented layout, scale and refusal of float32 in chunks."""

    def recurrent(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, None]:
        return delta_rule_reference(q * scale, k, v, beta), None

    def chunked(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, None]:
        assert q.dtype != torch.float32
        return recurrent(q, k, v, beta, scale)

    module = ModuleType("fla.ops.delta_rule")
    module.chunk_delta_rule, module.fused_recurrent_delta_rule = chunked, recurrent  # type: ignore[attr-defined]
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    at, (q, k, v, beta) = positions(3, 6, 15), [x.to(dtype) for x in inputs(3, 15)]
    torch.testing.assert_close(_delta_on_gpu(q, k, v, beta, None), delta_rule(q, k, v, beta))
    some = take(q, at)
    torch.testing.assert_close(_delta_on_gpu(some, k, v, beta, at), delta_rule(some, k, v, beta, at))


def test_positions_outside_are_refused() -> None:
    q, k, v, beta = inputs(1, 3)
    with pytest.raises(IndexError, match="positions 0 to 2"):
        delta_rule(q[:, :1], k, v, beta, torch.tensor([[3]]))


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k, v, beta = inputs(1, 3)
    with pytest.raises(ValueError, match="beta has shape"):
        delta_rule(q, k, v, beta[:, :2])
