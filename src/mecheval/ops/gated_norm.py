"""A gate by SiLU and then an RMS norm, as at the end of Mamba-2: z = y ⊙ silu(g), out = z / sqrt(mean(z²) + 1e-5) · w.

Legend: N rows (batch and time), C channels; y, g and out (..., C), w (C,).
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

EPSILON = 1e-5
_ZERO, _ONE, _EPSILON = np.float32(0), np.float32(1), np.float32(EPSILON)


def gated_norm(y: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """y gated by g, then normalised and weighed by w."""
    if use_fast(y, g, w):
        out: Tensor = _GatedNorm.apply(y, g, w)  # type: ignore[no-untyped-call]
        return out
    return gated_norm_reference(y, g, w)


def gated_norm_reference(y: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """`gated_norm` in PyTorch."""
    return F.rms_norm(y * F.silu(g), w.shape, w, EPSILON)


@fast_kernel
def _forward(y_NC: Floats, g_NC: Floats, w_C: Floats, out_NC: Floats, scale_N: Floats) -> None:
    rows, channels = y_NC.shape
    z_C = np.empty(channels, np.float32)
    for n in range(rows):
        y_C, g_C, out_C, total = y_NC[n], g_NC[n], out_NC[n], _ZERO
        for c in range(channels):
            z_C[c] = y_C[c] * g_C[c] * sigmoid(g_C[c])
        for c in range(channels):
            total += z_C[c] * z_C[c]
        scale = _ONE / np.sqrt(total / np.float32(channels) + _EPSILON)
        scale_N[n] = scale
        for c in range(channels):
            out_C[c] = z_C[c] * scale * w_C[c]


@fast_kernel
def _backward(
    y_NC: Floats,
    g_NC: Floats,
    w_C: Floats,
    scale_N: Floats,
    dout_NC: Floats,
    dy_NC: Floats,
    dg_NC: Floats,
    dw_C: Floats,
) -> None:
    """Fill the gradients. The gate is computed again, which is cheaper than to keep it.

    Each inner loop touches few arrays: LLVM vectorises a loop only if it has few pairs of them to tell apart.
    """
    rows, channels = y_NC.shape
    silu_C, slope_C, z_C, dz_C = np.empty_like(w_C), np.empty_like(w_C), np.empty_like(w_C), np.empty_like(w_C)
    dw_C[:] = 0
    for n in range(rows):
        y_C, g_C, dout_C, dy_C, dg_C = y_NC[n], g_NC[n], dout_NC[n], dy_NC[n], dg_NC[n]
        scale, dot = scale_N[n], _ZERO
        for c in range(channels):
            s = sigmoid(g_C[c])
            silu_C[c] = g_C[c] * s
            slope_C[c] = s + g_C[c] * s * (_ONE - s)
        for c in range(channels):
            z_C[c] = y_C[c] * silu_C[c] * scale
        for c in range(channels):
            dw_C[c] += dout_C[c] * z_C[c]
        for c in range(channels):
            dz_C[c] = dout_C[c] * w_C[c]
        for c in range(channels):
            dot += dz_C[c] * z_C[c]
        mean = dot / np.float32(channels)
        for c in range(channels):
            dz_C[c] = scale * (dz_C[c] - z_C[c] * mean)
        for c in range(channels):
            dy_C[c] = dz_C[c] * silu_C[c]
        for c in range(channels):
            dg_C[c] = dz_C[c] * y_C[c] * slope_C[c]


class _GatedNorm(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, g: Tensor, w: Tensor) -> Tensor:
        y, g, w = (x.detach().contiguous() for x in (y, g, w))
        out, scale_N = torch.empty_like(y), y.new_empty(y.shape[:-1].numel())
        y_NC, g_NC, out_NC = as_rows(y, g, out)
        _forward(y_NC, g_NC, w.numpy(), out_NC, scale_N.numpy())
        ctx.save_for_backward(y, g, w, scale_N)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, g, w, scale_N = ctx.saved_tensors
        dy, dg, dw = (torch.empty_like(x) for x in (y, g, w))
        y_NC, g_NC, dout_NC, dy_NC, dg_NC = as_rows(y, g, dout.contiguous(), dy, dg)
        _backward(y_NC, g_NC, w.numpy(), scale_N.numpy(), dout_NC, dy_NC, dg_NC, dw.numpy())
        return dy, dg, dw
