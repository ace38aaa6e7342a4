from __future__ import annotations

import torch
from torch import Tensor

from mecheval.ops.linear_recurrence import _by_products
from mecheval.ops.ragged import Documents, end_to_end
from mecheval.ops.recurrence_loop import Parts


def test_loops_where_they_are_faster() -> None:
    """The delta rule of small memories end to end or in several chunks, sums only end to end; and all little work."""
    at = torch.zeros(32, 1, dtype=torch.int64)

    def products(width: int, *lead: int, beta: bool = True, at: Tensor | None = None) -> bool:
        k = torch.zeros(*lead, 1, width)
        return _by_products(k, k, Parts(beta=k[..., 0] if beta else None), at)

    assert products(64, 32, 36)
    assert not products(16, 32, 36)
    assert not products(64, 32, 128)
    assert products(128, 32, 128)
    assert not products(128, 8, 128)
    assert products(16, 32, 128, beta=False)
    assert products(16, 1, 4, beta=False)
    with end_to_end(Documents(torch.full((32,), 36))):
        assert not products(64, 1, 32 * 36)
        assert products(128, 1, 32 * 36)
        assert not products(32, 1, 32 * 36, beta=False)
        assert products(64, 1, 32 * 36, beta=False)
        assert products(32, 1, 32 * 36, beta=False, at=at)
        assert not products(16, 1, 32 * 36, beta=False, at=at)
