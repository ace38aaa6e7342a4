from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mecheval.ops.gated_decay import STEEPEST, gated_decay, gated_decay_reference
from mecheval.ops.pieces import NOTHING_READ, reading
from ops.agreement import LENGTHS, assert_agree, assert_same_alone, random


def inputs(batch: int, length: int, channels: int = 5, steepness: float = 1.0) -> list[Tensor]:
    r, i, u = (random(batch, length, channels, seed=seed) for seed in (1, 2, 3))
    return [r.sigmoid(), i.sigmoid(), u, steepness * random(channels, seed=4).abs()]


def test_worked_by_hand() -> None:
    """a = exp(-8 s r) = 1/2; the first token is not scaled, the second by sqrt(1 - 1/4)."""
    half = torch.full((1, 2, 1), 0.5)
    a, x = gated_decay(half, half, torch.full((1, 2, 1), 8.0), torch.tensor([2.0]).log() / 4)
    assert a.flatten().tolist() == pytest.approx([0.5, 0.5])
    assert x.flatten().tolist() == pytest.approx([4.0, 4 * 0.75**0.5])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("steepness", [1e-7, 1e-4, 0.01, 0.1, 1.0, 30.0])
def test_fast_is_reference(length: int, steepness: float) -> None:
    """From decays that are one to decays that are zero: both outputs, and the recurrence's input alone."""
    given = inputs(3, length, steepness=steepness)
    assert_agree(lambda *x: torch.stack(gated_decay(*x)), lambda *x: torch.stack(gated_decay_reference(*x)), given)
    assert_agree(lambda *x: gated_decay(*x)[1], lambda *x: gated_decay_reference(*x)[1], given)


def test_small_gaps_keep_their_digits() -> None:
    """1 - a² to single precision, where a itself is rounded to one or nearly; and its bound."""
    s = torch.logspace(-9, 1, 4001)
    r = i = u = torch.ones(1, 2, len(s))
    found = gated_decay(r, i, u, s)[1][0, 1]
    wanted = gated_decay_reference(r.double(), i.double(), u.double(), s.double())[1][0, 1]
    assert float(((found - wanted) / wanted).abs().max()) < 1e-6
    assert float(found[0]) == pytest.approx(STEEPEST**0.5)


def test_later_pieces_are_scaled_from_their_first_token_on() -> None:
    r, i, u, s = inputs(2, 10)
    whole = gated_decay(r, i, u, s)[1]
    with reading(NOTHING_READ) as now:
        gated_decay(r[:, :4], i[:, :4], u[:, :4], s)
    with reading(now.after(4)):
        rest = gated_decay(r[:, 4:], i[:, 4:], u[:, 4:], s)[1]
    assert torch.equal(rest, whole[:, 4:])


def test_alone_and_without_contiguity() -> None:
    r, i, u, s = inputs(4, 37)
    assert_same_alone(lambda n: gated_decay(r[n], i[n], u[n], s)[1], 4)
    r_turned, i_turned, u_turned = (x.mT.contiguous().mT for x in (r, i, u))
    assert torch.equal(gated_decay(r_turned, i_turned, u_turned, s)[1], gated_decay(r, i, u, s)[1])
