from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mecheval.ops.unit_lower import solve_unit_lower, solve_unit_lower_reference
from ops.agreement import LENGTHS, assert_agree, assert_same_alone, random


def inputs(size: int, width: int = 5) -> list[Tensor]:
    """Systems as the delta rule has them, with products of unit keys, so that solutions stay small."""
    keys = torch.nn.functional.normalize(random(3, size, 16, seed=1), dim=2)
    return [0.5 * keys @ keys.mT, random(3, size, width, seed=2)]


def test_worked_by_hand() -> None:
    A = torch.tensor([[[7.0, 7.0, 7.0], [2.0, 7.0, 7.0], [3.0, -1.0, 7.0]]])  # sevens are not read
    y = torch.tensor([[[1.0], [5.0], [0.0]]])
    assert solve_unit_lower(A, y).flatten().tolist() == [1.0, 3.0, 0.0]


@pytest.mark.parametrize("size", [*LENGTHS, 64])
def test_fast_is_reference(size: int) -> None:
    assert_agree(solve_unit_lower, solve_unit_lower_reference, inputs(size))


@pytest.mark.parametrize("width", [1, 32, 100])
def test_any_number_of_right_hand_sides(width: int) -> None:
    assert_agree(solve_unit_lower, solve_unit_lower_reference, inputs(37, width))


def test_strided_systems_alone_and_together() -> None:
    """To the bit: the loop makes the same operations for every system."""
    A, y = inputs(20)
    strided = y.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(solve_unit_lower(A.mT.contiguous().mT, strided), solve_unit_lower(A, y))
    assert_same_alone(lambda documents: solve_unit_lower(A[documents], y[documents]), 3)


def test_its_inputs_stay_as_they_are() -> None:
    A, y = inputs(9)
    before = A.clone(), y.clone()
    solve_unit_lower(A.requires_grad_(), y.requires_grad_()).sum().backward()
    assert torch.equal(A, before[0])
    assert torch.equal(y, before[1])
