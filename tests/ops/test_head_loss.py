"""The loss of the head: fast against reference, from vocabularies that are just large enough to large ones."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops import dispatch
from mecheval.ops.head_loss import LANES, MANY, head_loss, head_loss_reference
from ops.agreement import assert_agree, assert_close, gradients, random


def drawn(predictions: int, vocabulary: int, width: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """What the head reads (1, N, D), weights (V, D) that make logits of about `scale`, and targets (1, N)."""
    targets = torch.randint(0, vocabulary, (1, predictions), generator=torch.Generator().manual_seed(3))
    weights = random(vocabulary, width, seed=2, scale=scale / math.sqrt(width))
    return random(1, predictions, width, seed=1), weights, targets


def test_worked_by_hand() -> None:
    """All tokens alike but the target, which is twice as likely as any other."""
    weight = torch.zeros(MANY // LANES, 1)
    weight[7] = 1
    h, targets = torch.full((LANES // 2, 2, 1), math.log(2)), torch.full((LANES // 2, 2), 7)
    loss, dh, dweight = gradients(lambda h, weight: head_loss(h, weight, targets), [h, weight])
    p = 2 / (len(weight) + 1)
    upstream = float(random(seed=99))
    torch.testing.assert_close(loss, torch.tensor(-math.log(p)))
    torch.testing.assert_close(dh, torch.full_like(h, upstream * (p - 1) / LANES))
    wanted = torch.full_like(weight, upstream * math.log(2) * p / 2)
    wanted[7] = upstream * math.log(2) * (p - 1)
    torch.testing.assert_close(dweight, wanted)


@pytest.mark.parametrize(
    ("predictions", "vocabulary"), [(16, 4096), (32, 8195), (37, 2000), (1000, 66), (16, 70000), (5000, 16)]
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_fast_is_reference(predictions: int, vocabulary: int, scale: float) -> None:
    """From logits that are almost equal to those of which one has all the weight."""
    h, weight, targets = drawn(predictions, vocabulary, 24, scale)
    assert_agree(lambda h, w: head_loss(h, w, targets), lambda h, w: head_loss_reference(h, w, targets), [h, weight])


def test_what_is_known_for_certain_has_no_loss_and_no_gradient() -> None:
    _, weight, targets = drawn(32, 4096, 24, 1.0)
    weight = F.normalize(weight)
    h = 1e4 * weight[targets]
    with dispatch.path("fast"):
        assert all(not tensor.any() for tensor in gradients(lambda h, w: head_loss(h, w, targets), [h, weight]))


def test_sums_of_many_equal_terms_keep_their_digits() -> None:
    """Single precision alone would lose three digits of this one."""
    h, weight = torch.ones(1, 16, 1), torch.full((300_000, 1), -0.3)
    weight[0] = 0
    targets = torch.zeros(1, 16, dtype=torch.int64)
    found = float(head_loss(h, weight, targets).double())
    assert found == pytest.approx(math.log(1 + 299_999 * math.exp(-float(torch.tensor(0.3)))), rel=2e-7)


def test_few_logits_are_left_to_torch() -> None:
    """To the bit, also of a vocabulary that would be large enough for more predictions."""
    for predictions, vocabulary in ((32, 41), (LANES - 1, 8195)):
        h, weight, targets = drawn(predictions, vocabulary, 24, 1.0)
        assert torch.equal(head_loss(h, weight, targets), head_loss_reference(h, weight, targets))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_give_a_loss_that_is_none(bad: float) -> None:
    h, weight, targets = drawn(32, 4096, 24, 1.0)
    h[0, 5, 3] = bad
    assert not math.isfinite(float(head_loss(h, weight, targets)))


@pytest.mark.parametrize("bad", [-1, 4096])
def test_targets_outside_the_vocabulary_are_refused(bad: int) -> None:
    h, weight, targets = drawn(32, 4096, 24, 1.0)
    targets[0, 5] = bad
    with pytest.raises(IndexError, match=f"{bad}"):
        head_loss(h, weight, targets)


def test_a_factor_of_the_loss_is_one_of_its_gradients() -> None:
    h, weight, targets = drawn(32, 4096, 24, 1.0)
    three = gradients(lambda h, w: 3 * head_loss(h, w, targets), [h, weight])
    assert_close([x / 3 for x in three], gradients(lambda h, w: head_loss(h, w, targets), [h, weight]))
