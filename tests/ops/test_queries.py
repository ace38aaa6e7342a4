"""What every op does with `at`, however its tensors lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from mecheval.ops import dispatch
from mecheval.ops.diagonal_recurrence import diagonal_recurrence
from mecheval.ops.h3_kernels import h3_mix
from mecheval.ops.long_conv import long_conv
from mecheval.ops.queries import take
from mecheval.ops.ridge import ridge
from mecheval.ops.selective_scan import selective_scan
from mecheval.ops.short_conv import short_conv
from mecheval.ops.taylor_attention import taylor_attention
from ops import test_diagonal_recurrence as test_diagonal
from ops import test_h3_kernels, test_long_conv, test_ridge, test_selective_scan, test_short_conv
from ops import test_linear_recurrence as test_linear
from ops import test_taylor_attention as test_taylor
from ops.agreement import Op, assert_close

Case = tuple[Op, Callable[[], list[Tensor]], int | None]

BATCH, LENGTH = 3, 11
LAMB = test_ridge.inputs(BATCH, LENGTH)[4]
OPS: dict[str, Case] = {
    "short_conv": (short_conv, lambda: test_short_conv.inputs(BATCH, LENGTH, 5, 3), None),
    "long_conv": (long_conv, lambda: test_long_conv.inputs(BATCH, LENGTH, 5), None),
    "h3_mix": (h3_mix, lambda: test_h3_kernels.mix_inputs(BATCH, LENGTH, 3, 2), 0),
    "taylor_attention": (taylor_attention, lambda: test_taylor.inputs(BATCH, LENGTH, 2), 0),
    **{
        f"linear_recurrence, {case}": (test_linear.op_at(case), partial(test_linear.inputs, case, BATCH, LENGTH), 0)
        for case in test_linear.CASES
    },
    "ridge": (partial(ridge, lamb=LAMB), lambda: test_ridge.inputs(BATCH, LENGTH)[:4], 0),
    "diagonal_recurrence": (diagonal_recurrence, lambda: test_diagonal.inputs(BATCH, LENGTH), None),
    "selective_scan": (selective_scan, lambda: test_selective_scan.inputs(BATCH, LENGTH, 5), 4),
}
"""The op, its inputs, and which of them are queries (asked at `at` only), if any."""

AT: dict[str, Tensor] = {
    "transposed": torch.tensor([[10, 0, 4], [3, 3, 1]]).mT,
    "expanded": torch.tensor([[10, 3]]).expand(BATCH, 2),
    "strided": torch.arange(30).view(BATCH, 10)[:, ::4] % LENGTH,
    "empty": torch.empty(BATCH, 0, dtype=torch.int64),
}


def layouts(x: Tensor) -> list[Tensor]:
    """The same numbers: with the axes the other way round in memory, and as every second of twice as many."""
    turned = x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim)))
    return [turned, x.repeat_interleave(2, dim=-1)[..., ::2]]


@pytest.mark.parametrize("path", ["reference", "fast"])
@pytest.mark.parametrize("name", OPS)
def test_positions_and_inputs_may_lie_in_memory_in_any_way(name: str, path: dispatch.Path) -> None:
    op, make, queries = OPS[name]
    inputs = make()
    with dispatch.path(path):
        whole = op(*inputs)
        for at in AT.values():
            for given in (inputs, *zip(*map(layouts, inputs), strict=True)):
                asked = [take(x, at) if i == queries else x for i, x in enumerate(given)]
                found = op(*asked, at=at)
                assert found.shape == (*at.shape, *whole.shape[2:])
                if at.numel():
                    assert_close([found], [take(whole, at)])


@pytest.mark.parametrize("at", [[[0], [LENGTH], [0]], [[0], [-1], [0]]])
@pytest.mark.parametrize("kind", ["rows", "gathered"])
def test_positions_that_do_not_exist_are_never_read(at: list[list[int]], kind: str) -> None:
    x = torch.zeros(BATCH, LENGTH, *([] if kind == "rows" else [4]))
    with pytest.raises(IndexError, match=f"there are positions 0 to {LENGTH - 1}"):
        take(x, torch.tensor(at))


@pytest.mark.parametrize("at", [torch.zeros(BATCH, 1), torch.zeros(BATCH, 1).int(), torch.zeros(1, 1).long()])
def test_positions_are_int64_for_every_document(at: Tensor) -> None:
    with pytest.raises(ValueError, match=r"at is int64 of shape \(3, K\); got"):
        take(torch.zeros(BATCH, LENGTH, 4), at)
