"""An RMS norm over the last axis: y = x / sqrt(mean(x²) + 1e-5) · w.

PyTorch has no kernel of its own for it on a CPU: it puts one together from ten operations.

Legend: N rows (batch, time and heads), C channels; x and y (..., C), w (C,).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.rows import Floats, as_rows

EPSILON = 1e-5
_ZERO, _ONE, _EPSILON = np.float32(0), np.float32(1), np.float32(EPSILON)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    """x normalised and weighed by w."""
    if use_fast(x, w):
        y: Tensor = _RMSNorm.apply(x, w)  # type: ignore[no-untyped-call]
        return y
    return rms_norm_reference(x, w)


def rms_norm_reference(x: Tensor, w: Tensor) -> Tensor:
    """`rms_norm` in PyTorch."""
    return F.rms_norm(x, w.shape, w, EPSILON)


@fast_kernel
def _forward(x_NC: Floats, w_C: Floats, y_NC: Floats, scale_N: Floats) -> None:
    rows, channels = x_NC.shape
    for n in range(rows):
        x_C, y_C, total = x_NC[n], y_NC[n], _ZERO
        for c in range(channels):
            total += x_C[c] * x_C[c]
        scale = _ONE / np.sqrt(total / np.float32(channels) + _EPSILON)
        scale_N[n] = scale
        for c in range(channels):
            y_C[c] = x_C[c] * scale * w_C[c]


@fast_kernel
def _backward(x_NC: Floats, w_C: Floats, scale_N: Floats, dy_NC: Floats, dx_NC: Floats, dw_C: Floats) -> None:
    """Fill the gradients."""
    rows, channels = x_NC.shape
    dz_C = np.empty_like(w_C)
    dw_C[:] = 0
    for n in range(rows):
        x_C, dy_C, dx_C, scale, dot = x_NC[n], dy_NC[n], dx_NC[n], scale_N[n], _ZERO
        for c in range(channels):
            dw_C[c] += dy_C[c] * x_C[c] * scale
        for c in range(channels):
            dz_C[c] = dy_C[c] * w_C[c]
        for c in range(channels):
            dot += dz_C[c] * x_C[c]
        by = dot * scale * scale / np.float32(channels)
        for c in range(channels):
            dx_C[c] = scale * (dz_C[c] - x_C[c] * by)


class _RMSNorm(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        x, w = x.detach().contiguous(), w.detach().contiguous()
        y, scale_N = torch.empty_like(x), x.new_empty(x.shape[:-1].numel())
        x_NC, y_NC = as_rows(x, y)
        _forward(x_NC, w.numpy(), y_NC, scale_N.numpy())
        ctx.save_for_backward(x, w, scale_N)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, w, scale_N = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        x_NC, dy_NC, dx_NC = as_rows(x, dy.contiguous(), dx)
        _backward(x_NC, w.numpy(), scale_N.numpy(), dy_NC, dx_NC, dw.numpy())
        return dx, dw
