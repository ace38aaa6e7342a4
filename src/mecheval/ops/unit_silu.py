"""SiLU of unit length, as the delta rule wants its queries and keys: u = silu(x), y = c u / sqrt(Σ u² + 1e-6).

The sum is over the last axis, which is the width of a head; c is a constant scale, for queries.

Legend: N rows (batch, time and heads), E channels of a head; x and y (..., E).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.fastmath import sigmoid
from mecheval.ops.rows import Floats, as_rows

EPSILON = 1e-6
_ZERO, _ONE, _EPSILON = np.float32(0), np.float32(1), np.float32(EPSILON)


def unit_silu(x: Tensor, scale: float = 1.0) -> Tensor:
    """SiLU of x (..., E), scaled to length `scale` over the last axis."""
    if use_fast(x):
        y: Tensor = _UnitSilu.apply(x, scale)  # type: ignore[no-untyped-call]
        return y
    return unit_silu_reference(x, scale)


def unit_silu_reference(x: Tensor, scale: float = 1.0) -> Tensor:
    """`unit_silu` in PyTorch."""
    u = F.silu(x)
    return u * torch.rsqrt((u * u).sum(-1, keepdim=True) + EPSILON) * scale


@fast_kernel
def _forward(x_NE: Floats, scale: np.float32, y_NE: Floats) -> None:
    rows, width = x_NE.shape
    for n in range(rows):
        x_E, y_E, total = x_NE[n], y_NE[n], _ZERO
        for e in range(width):
            y_E[e] = x_E[e] * sigmoid(x_E[e])
        for e in range(width):
            total += y_E[e] * y_E[e]
        factor = scale / np.sqrt(total + _EPSILON)
        for e in range(width):
            y_E[e] *= factor


@fast_kernel
def _backward(x_NE: Floats, scale: np.float32, dy_NE: Floats, dx_NE: Floats) -> None:
    """Fill the gradient. SiLU is computed again, which is cheaper than to keep it."""
    rows, width = x_NE.shape
    u_E, slope_E = np.empty(width, np.float32), np.empty(width, np.float32)
    for n in range(rows):
        x_E, dy_E, dx_E, total, dot = x_NE[n], dy_NE[n], dx_NE[n], _ZERO, _ZERO
        for e in range(width):
            s = sigmoid(x_E[e])
            u = x_E[e] * s
            u_E[e] = u
            slope_E[e] = s + u * (_ONE - s)
        for e in range(width):
            total += u_E[e] * u_E[e]
            dot += dy_E[e] * u_E[e]
        inverse = _ONE / np.sqrt(total + _EPSILON)
        along, factor = dot * inverse * inverse, scale * inverse  # what would only change the length is taken out
        for e in range(width):
            dx_E[e] = factor * (dy_E[e] - along * u_E[e]) * slope_E[e]


class _UnitSilu(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        x = x.detach().contiguous()
        y = torch.empty_like(x)
        x_NE, y_NE = as_rows(x, y)
        _forward(x_NE, np.float32(scale), y_NE)
        ctx.save_for_backward(x)
        ctx.scale = scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        [x] = ctx.saved_tensors
        dx = torch.empty_like(x)
        x_NE, dy_NE, dx_NE = as_rows(x, dy.contiguous(), dx)
        _backward(x_NE, np.float32(ctx.scale), dy_NE, dx_NE)
        return dx, None
