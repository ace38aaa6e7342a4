"""SiLU of channels that are then parted, as in front of Mamba-2's state space model: silu(x) split into some parts.

Each part is written, and its gradient read, where it lies. Left to autograd, the gradients were copied together first.

Legend: N rows (batch and time), C channels of all parts, P of one; x (..., C), its parts (..., P).
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.fastmath import sigmoid
from mecheval.ops.rows import Floats, as_rows

_ONE = np.float32(1)


def silu_split(x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """SiLU of x, parted into so many channels each."""
    if use_fast(x):
        parts: tuple[Tensor, ...] = _SiluSplit.apply(x, sizes)  # type: ignore[no-untyped-call]
        return parts
    return silu_split_reference(x, sizes)


def silu_split_reference(x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """`silu_split` in PyTorch."""
    parts: tuple[Tensor, ...] = F.silu(x).split(sizes, dim=-1)
    return parts


@fast_kernel
def _forward(x_NC: Floats, first: int, part_NP: Floats) -> None:
    """Fill one part, whose channels start at `first`."""
    rows, size = part_NP.shape
    for n in range(rows):
        x_P, part_P = x_NC[n, first : first + size], part_NP[n]
        for p in range(size):
            part_P[p] = x_P[p] * sigmoid(x_P[p])


@fast_kernel
def _backward(x_NC: Floats, first: int, dpart_NP: Floats, dx_NC: Floats) -> None:
    """Fill the gradient of one part's channels."""
    rows, size = dpart_NP.shape
    for n in range(rows):
        x_P, dx_P, dpart_P = x_NC[n, first : first + size], dx_NC[n, first : first + size], dpart_NP[n]
        for p in range(size):
            s = sigmoid(x_P[p])
            dx_P[p] = dpart_P[p] * (s + x_P[p] * s * (_ONE - s))


class _SiluSplit(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        x = x.detach().contiguous()
        parts = tuple(x.new_empty(*x.shape[:-1], size) for size in sizes)
        for part, first in zip(parts, accumulate(sizes, initial=0), strict=False):
            x_NC, part_NP = as_rows(x, part)
            _forward(x_NC, first, part_NP)
        ctx.save_for_backward(x)
        ctx.sizes = sizes
        return parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *dparts: Tensor) -> tuple[Tensor, None]:
        [x] = ctx.saved_tensors
        dx = torch.empty_like(x)
        for dpart, first in zip(dparts, accumulate(ctx.sizes, initial=0), strict=False):
            x_NC, dpart_NP, dx_NC = as_rows(x, dpart.contiguous(), dx)
            _backward(x_NC, first, dpart_NP, dx_NC)
        return dx, None
