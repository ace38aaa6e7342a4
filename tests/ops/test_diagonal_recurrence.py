from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mecheval.ops.diagonal_recurrence import diagonal_recurrence, diagonal_recurrence_reference
from ops.agreement import LENGTHS, assert_agree, assert_same_alone, random


def inputs(batch: int, length: int, channels: int = 5) -> list[Tensor]:
    return [random(batch, length, channels, seed=1).sigmoid(), random(batch, length, channels, seed=2)]


def test_worked_by_hand() -> None:
    a, x = torch.tensor([0.5, 0.5, 0.0]).view(1, 3, 1), torch.tensor([8.0, 1.0, 3.0]).view(1, 3, 1)
    assert diagonal_recurrence(a, x).flatten().tolist() == [8.0, 5.0, 3.0]
    assert diagonal_recurrence(a, x, torch.tensor([[1, 0]])).flatten().tolist() == [5.0, 8.0]


@pytest.mark.parametrize("length", [*LENGTHS, 1024])
def test_fast_is_reference(length: int) -> None:
    a, x = inputs(3, length)
    assert_agree(diagonal_recurrence, diagonal_recurrence_reference, [a, x])
    for decay in (torch.zeros_like(a), torch.ones_like(a)):
        assert_agree(diagonal_recurrence, diagonal_recurrence_reference, [decay, x])


def test_alone_and_refused() -> None:
    a, x = inputs(4, 37)
    assert_same_alone(lambda i: diagonal_recurrence(a[i], x[i]), 4)
    with pytest.raises(ValueError, match="a has shape"):
        diagonal_recurrence(a[:, :2], x)
