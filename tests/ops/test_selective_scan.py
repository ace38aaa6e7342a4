from __future__ import annotations

import sys
from functools import partial
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops.fastmath import exp2
from mecheval.ops.queries import take
from mecheval.ops.selective_scan import (
    _scan_on_gpu,
    selective_scan,
    selective_scan_reference,
    selective_scan_states,
)
from ops.agreement import LENGTHS, assert_agree, assert_close, assert_same_alone, gradients, positions, random


def inputs(batch: int, length: int, channels: int, states: int = 16) -> list[Tensor]:
    """u, dt, A, B, C as in a Mamba layer a little after its initialisation."""
    u, dt = (random(batch, length, channels, seed=seed) for seed in (1, 2))
    A = -torch.arange(1.0, states + 1) * torch.exp(random(channels, states, seed=3, scale=0.1))
    B, C = (random(batch, length, states, seed=seed) for seed in (4, 5))
    return [u, F.softplus(dt - 3), A, B, C]


def test_worked_by_hand() -> None:
    """One state that keeps everything, one that forgets at once: a running sum plus ten times the newest input."""
    u, dt = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[[1.0], [1.0], [2.0]]])
    A, B, C = torch.tensor([[0.0, -1000.0]]), torch.tensor([1.0, 10.0]).expand(1, 3, 2), torch.ones(1, 3, 2)
    for scan in (selective_scan, selective_scan_reference):
        assert scan(u, dt, A, B, C).flatten().tolist() == [11.0, 23.0, 69.0]
        assert scan(u, dt, A, B, C[:, :2], torch.tensor([[2, 0]])).flatten().tolist() == [69.0, 11.0]


def test_rate_of_ln_2_halves_the_state() -> None:
    ones, A = torch.ones(1, 3, 1), torch.tensor([[-np.log(2.0)]], dtype=torch.float32)
    assert selective_scan(ones, ones, A, ones, ones).flatten().tolist() == pytest.approx([1.0, 1.5, 1.75], rel=1e-6)


@pytest.mark.parametrize(("channels", "states"), [(1, 1), (20, 16), (33, 5)])
@pytest.mark.parametrize("length", LENGTHS)
def test_fast_is_reference(length: int, channels: int, states: int) -> None:
    assert_agree(selective_scan, selective_scan_reference, inputs(3, length, channels, states))


@pytest.mark.parametrize("length", [1, 40])
def test_positions_are_a_choice_of_outputs(length: int) -> None:
    at, arguments = positions(3, 6, length), inputs(3, length, 10)

    def some(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        return selective_scan(u, dt, A, B, take(C, at), at)

    assert_close(gradients(some, arguments), gradients(lambda *a: take(selective_scan(*a), at), arguments))


def test_fast_is_reference_at_positions() -> None:
    at, (u, dt, A, B, C) = positions(3, 6, 40), inputs(3, 40, 10)
    arguments = [u, dt, A, B, take(C, at)]
    assert_agree(partial(selective_scan, at=at), partial(selective_scan_reference, at=at), arguments)


@pytest.mark.parametrize("at", [None, torch.tensor([[2, 0, 2]])])
def test_reference_gradients_are_numerical_gradients(at: Tensor | None) -> None:
    leaves = [x.double().requires_grad_() for x in inputs(1, 3, 2, 2)]
    torch.autograd.gradcheck(partial(selective_scan_reference, at=at), leaves)


def test_causal() -> None:
    """To the bit: our own loop has not read later tokens yet."""
    u, dt, A, B, C = inputs(2, 30, 7)
    later = [x.clone() for x in (u, dt, B, C)]
    for x in later:
        x[:, 17:] = x[:, 17:].roll(1, dims=2)
    changed = selective_scan(later[0], later[1], A, later[2], later[3])
    assert torch.equal(changed[:, :17], selective_scan(u, dt, A, B, C)[:, :17])
    assert not torch.equal(changed[:, 17], selective_scan(u, dt, A, B, C)[:, 17])


def test_alone() -> None:
    """To the bit: our own loop goes through documents one by one."""
    u, dt, A, B, C = inputs(3, 37, 40)
    assert_same_alone(lambda some: selective_scan(u[some], dt[some], A, B[some], C[some]), 3)


def test_strided_inputs_and_single_gradients() -> None:
    arguments = inputs(2, 19, 6)
    wanted = gradients(selective_scan, arguments)
    strided = [x.mT.contiguous().mT for x in arguments]
    assert_close(gradients(selective_scan, strided), wanted)
    for i in range(5):
        leaves = [x.detach().requires_grad_(j == i) for j, x in enumerate(arguments)]
        out = selective_scan(*leaves)
        (alone,) = torch.autograd.grad(out, leaves[i], random(*out.shape, seed=99))
        assert torch.equal(alone, wanted[1 + i])  # our own loop computes all gradients at once, always


def test_no_grad_gives_the_same_bits() -> None:
    """Our own loop; whether it keeps states for the backward pass changes none."""
    leaves = [x.requires_grad_() for x in inputs(2, 19, 6)]
    with torch.no_grad():
        quiet = selective_scan(*leaves)
    assert not quiet.requires_grad
    assert torch.equal(quiet, selective_scan(*leaves))


@pytest.mark.parametrize(("step", "rate"), [(1e-6, 1.0), (1e3, 1.0), (1e3, 1e5), (1.0, 1e30)])
def test_extreme_steps_and_rates(step: float, rate: float) -> None:
    u, dt, A, B, C = inputs(2, 37, 5)
    arguments = [u, dt * step, A * rate, B, C]
    assert_agree(selective_scan, selective_scan_reference, arguments)
    assert all(x.isfinite().all() for x in gradients(selective_scan, arguments))


def test_distant_loss() -> None:
    """One query at the end: far from it cotangents fall below what a float can hold."""
    u, dt, A, B, C = inputs(2, 200, 8)
    at = torch.tensor([[199], [150]])
    arguments = [u, dt * 10, A, B, take(C, at)]
    assert_agree(partial(selective_scan, at=at), partial(selective_scan_reference, at=at), arguments)


@pytest.mark.parametrize("name", ["u", "dt", "A"])
def test_nan_shows_where_the_reference_shows_it(name: str) -> None:
    arguments = dict(zip(("u", "dt", "A", "B", "C"), inputs(2, 20, 3), strict=True))
    bad = arguments[name] = arguments[name].clone()
    bad.view(-1)[bad[0].numel() // 2] = torch.nan
    found, wanted = selective_scan(**arguments), selective_scan_reference(**arguments)
    assert wanted.isnan().any()
    assert torch.equal(found.isnan(), wanted.isnan())


def test_output_reads_the_states() -> None:
    u, dt, A, B, C = inputs(2, 21, 4)
    y = torch.einsum("blen,bln->ble", selective_scan_states(u, dt, A, B), C)
    assert_close([y], [selective_scan(u, dt, A, B, C)])


def test_gpu_package_gets_its_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with mamba_ssm's documented layout: time last."""

    def selective_scan_fn(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        return selective_scan_reference(u.mT, delta.mT, A, B.mT, C.mT).mT

    module = ModuleType("mamba_ssm.ops.selective_scan_interface")
    module.selective_scan_fn = selective_scan_fn  # type: ignore[attr-defined]
    for name in ("mamba_ssm", "mamba_ssm.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    at, (u, dt, A, B, C) = positions(3, 6, 15), inputs(3, 15, 4)
    assert_close([_scan_on_gpu(u, dt, A, B, C, None)], [selective_scan(u, dt, A, B, C)])
    some = [u, dt, A, B, take(C, at)]
    assert_close(gradients(partial(_scan_on_gpu, at=at), some), gradients(partial(selective_scan, at=at), some))


@pytest.mark.parametrize("at", [torch.tensor([[3]]), torch.tensor([[-1]])])
def test_positions_outside_are_refused(at: Tensor) -> None:
    u, dt, A, B, C = inputs(1, 3, 2)
    with pytest.raises(IndexError, match="positions 0 to 2"):
        selective_scan(u, dt, A, B, C[:, :1], at)


def test_shapes_that_do_not_fit_are_refused() -> None:
    u, dt, A, B, C = inputs(1, 3, 2)
    with pytest.raises(ValueError, match="B has shape"):
        selective_scan(u, dt, A, B[:, :2], C)


def test_exp2_is_two_to_the_power() -> None:
    z = np.linspace(-99.9, 20.0, 20_001).astype(np.float32)
    found = np.array([exp2(x) for x in z])
    assert np.abs(found / np.exp2(z.astype(np.float64)) - 1).max() < 2e-7
    assert exp2(np.float32(0.0)) == 1.0
    assert exp2(np.float32(-np.inf)) == 0.0
    assert np.isnan(exp2(np.float32(np.nan)))
