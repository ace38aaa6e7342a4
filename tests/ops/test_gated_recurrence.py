from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mecheval.ops.gated_recurrence import AT_ONCE, gated_recurrence, gated_recurrence_reference
from mecheval.ops.pieces import NOTHING_READ, reading
from mecheval.ops.queries import take
from ops.agreement import LENGTHS, assert_agree, assert_close, assert_close_alone, positions, random


def inputs(batch: int, length: int, channels: int = 5, heads: int = 1, steepness: float = 0.1) -> list[Tensor]:
    size = channels // heads
    w_r, w_i = (random(heads, size, size, seed=seed, scale=size**-0.5) for seed in (2, 4))
    b_r, b_i = (random(heads, size, seed=seed) for seed in (3, 5))
    s = steepness * random(channels, seed=6).abs()
    return [random(batch, length, channels, seed=1), w_r, b_r, w_i, b_i, s]


def test_worked_by_hand() -> None:
    """Gates of 1/2 and a = exp(-8 s / 2) = 1/2; the first input is not scaled, the second by sqrt(1 - 1/4)."""
    w, b, s = torch.zeros(1, 1, 1), torch.zeros(1, 1), torch.tensor([2.0]).log() / 4
    h = gated_recurrence(torch.full((1, 2, 1), 8.0), w, b, w, b, s)
    assert h.flatten().tolist() == pytest.approx([4.0, 2 + 4 * 0.75**0.5])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("steepness", [1e-7, 1e-4, 0.01, 0.1, 1.0, 30.0])
def test_fast_is_reference(length: int, steepness: float) -> None:
    """From decays that are one to decays that are zero."""
    assert_agree(gated_recurrence, gated_recurrence_reference, inputs(3, length, steepness=steepness))


@pytest.mark.parametrize(("channels", "heads"), [(1, 1), (6, 3), (33, 1), (64, 4)])
def test_fast_is_reference_for_any_channels_and_blocks(channels: int, heads: int) -> None:
    assert_agree(gated_recurrence, gated_recurrence_reference, inputs(2, 37, channels, heads))


@pytest.mark.parametrize("steepness", [1e-4, 0.1, 30.0])
@pytest.mark.parametrize(("length", "channels"), [(2100, 9), (30, AT_ONCE // 8)])
def test_fast_is_reference_for_documents_in_several_parts(length: int, channels: int, steepness: float) -> None:
    assert_agree(gated_recurrence, gated_recurrence_reference, inputs(2, length, channels, steepness=steepness))


def test_gates_that_are_all_or_nothing() -> None:
    """Logits of hundreds: sigmoids of zero and one, without a NaN."""
    u, *maps, s = inputs(3, 37)
    assert_agree(gated_recurrence, gated_recurrence_reference, [300 * u, *maps, s])


def test_small_cotangents_fade_to_zero() -> None:
    """The gradient of the last state, further and further back: it skips the subnormal numbers, which are slow."""
    leaves = [x.requires_grad_() for x in inputs(2, 300, steepness=0.5)]
    du = torch.autograd.grad(gated_recurrence(*leaves)[:, -1].sum(), leaves)[0].abs()
    assert du[:, -1].min() > 0
    assert not du[:, :2].any()
    assert float(du[du > 0].min()) > torch.finfo(torch.float32).tiny


def test_positions() -> None:
    given, at = inputs(3, 20), positions(3, 4, 20)
    whole = gated_recurrence(*given)
    assert torch.equal(gated_recurrence(*given, at=at), take(whole, at))
    assert_agree(lambda *x: gated_recurrence(*x, at=at), lambda *x: gated_recurrence_reference(*x, at=at), given)
    with pytest.raises(IndexError):
        gated_recurrence(*given, at=at + 20)


def test_pieces() -> None:
    """Later pieces continue from the state, and are scaled from their first token on."""
    u, *rest = inputs(2, 10)
    whole = gated_recurrence(u, *rest)
    with reading(NOTHING_READ) as now:
        first = gated_recurrence(u[:, :4], *rest)
    with reading(now.after(4)):
        second = gated_recurrence(u[:, 4:], *rest)
    assert_close([torch.cat([first, second], dim=1)], [whole])


def test_only_the_gradients_that_are_asked_for_and_again() -> None:
    """Backward leaves what it was given as it was."""
    leaves = [x.requires_grad_() for x in inputs(2, 20)]
    h = gated_recurrence(*leaves)
    every = torch.autograd.grad(h.sum(), leaves, retain_graph=True)
    for leaf, wanted in zip(leaves, every, strict=True):
        (found,) = torch.autograd.grad(h.sum(), leaf, retain_graph=True)
        assert torch.equal(found, wanted)


def test_refused() -> None:
    u, w_r, b_r, w_i, b_i, s = inputs(2, 10)
    with pytest.raises(ValueError, match="u has 5 channels; got 5 and 5 biases, and 4 numbers of steepness"):
        gated_recurrence(u, w_r, b_r, w_i, b_i, s[:4])
    with pytest.raises(ValueError, match="got 5 and 4 biases"):
        gated_recurrence(u, w_r, b_r, w_i, b_i[:, :4], s)


def test_alone_and_without_contiguity() -> None:
    u, *rest = inputs(4, 37)
    assert_close_alone(lambda n: gated_recurrence(u[n], *rest), 4)
    assert_close([gated_recurrence(u.mT.contiguous().mT, *rest)], [gated_recurrence(u, *rest)])
