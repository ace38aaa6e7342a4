"""The gates of the RG-LRU: from gates and inputs to the decays and the inputs of its diagonal recurrence.

    a_t = exp(-8 s r_t)          x_t = sqrt(max(1 - a_t², STEEPEST)) i_t u_t

At a document's first token x = i u: its state starts from nothing, and is not scaled down.

Legend: B batch, L length, C channels; r recurrence gate, i input gate, u input (all (B, L, C)), s (C,) steepness.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.fastmath import LOG2_E, exp2
from mecheval.ops.pieces import tokens_before

STEEPEST = 2.5e-7
"""Lower bound on 1 - a², because the slope of its root is unbounded at 0; upstream bounds the slope instead."""
Floats = NDArray[np.float32]
_STEEPEST, _LOG2_E = np.float32(STEEPEST), np.float32(LOG2_E)
_ZERO, _ONE, _TWO, _EIGHT = np.float32(0), np.float32(1), np.float32(2), np.float32(8)
_NEAR = np.float32(-0.5)  # above it, 1 - exp(z) is a series in z, because the difference would lose digits
_D2, _D3, _D4, _D5, _D6, _D7 = (np.float32(1 / n) for n in (2, 3, 4, 5, 6, 7))


def gated_decay(r: Tensor, i: Tensor, u: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """a and x (B, L, C) for gates r and i between 0 and 1, inputs u and steepness s >= 0."""
    first = tokens_before() == 0
    if use_fast(r, i, u, s):
        a, x = _GatedDecay.apply(r, i, u, s, first)  # type: ignore[no-untyped-call]
        return a, x
    return gated_decay_reference(r, i, u, s, first)


def gated_decay_reference(r: Tensor, i: Tensor, u: Tensor, s: Tensor, first: bool = True) -> tuple[Tensor, Tensor]:
    """`gated_decay` in PyTorch; `first` says whether the first token is the first of its document."""
    log_a = -8 * r * s
    return torch.exp(log_a), u * i * input_scale(log_a, first)


def input_scale(log_a: Tensor, first: bool) -> Tensor:
    """sqrt(1 - a²), bounded below, and 1 at a document's first token."""
    scale = torch.sqrt((-torch.expm1(2 * log_a)).clamp(min=STEEPEST))
    return torch.cat([torch.ones_like(scale[:, :1]), scale[:, 1:]], dim=1) if first else scale


@fast_kernel
def gap_below_one(z: np.float32, exp_z: np.float32) -> np.float32:
    """1 - exp(z) for z <= 0."""
    series = -z * (_ONE + z * _D2 * (_ONE + z * _D3 * (_ONE + z * _D4 * (_ONE + z * _D5 * (_ONE + z * _D6 * (
        _ONE + z * _D7))))))  # fmt: skip
    return series if z > _NEAR else _ONE - exp_z


@fast_kernel
def _forward(
    r_BLC: Floats, i_BLC: Floats, u_BLC: Floats, s_C: Floats, first: bool, a_BLC: Floats, x_BLC: Floats
) -> None:
    batch, length, channels = r_BLC.shape
    for b in range(batch):
        for t in range(length):
            whole = first and t == 0
            for c in range(channels):
                log_a = -_EIGHT * s_C[c] * r_BLC[b, t, c]
                a = exp2(log_a * _LOG2_E)
                gap = gap_below_one(_TWO * log_a, a * a)
                scale = np.sqrt(_STEEPEST if gap < _STEEPEST else gap)
                a_BLC[b, t, c] = a
                x_BLC[b, t, c] = (_ONE if whole else scale) * i_BLC[b, t, c] * u_BLC[b, t, c]


@fast_kernel
def _backward(
    r_BLC: Floats, i_BLC: Floats, u_BLC: Floats, s_C: Floats, first: bool, a_BLC: Floats, da_BLC: Floats,
    dx_BLC: Floats, dr_BLC: Floats, di_BLC: Floats, du_BLC: Floats, ds_C: Floats,
) -> None:  # fmt: skip
    """Fill the gradients. The scale is computed again, which is cheaper than to keep it.

    Every inner loop touches few arrays: LLVM vectorises a loop only if it has few pairs of them to tell apart.
    """
    batch, length, channels = r_BLC.shape
    scale_C, slope_C, dlog_C = np.empty(channels, np.float32), np.empty(channels, np.float32), np.empty_like(s_C)
    ds_C[:] = 0
    for b in range(batch):
        for t in range(length):
            whole = first and t == 0
            for c in range(channels):
                square = a_BLC[b, t, c] * a_BLC[b, t, c]
                gap = gap_below_one(-_TWO * _EIGHT * s_C[c] * r_BLC[b, t, c], square)
                bound = gap < _STEEPEST
                scale = np.sqrt(_STEEPEST if bound else gap)
                slope_C[c] = _ZERO if whole or bound else square / scale  # how fast the scale falls with log a
                scale_C[c] = _ONE if whole else scale
            for c in range(channels):
                di_BLC[b, t, c] = dx_BLC[b, t, c] * u_BLC[b, t, c] * scale_C[c]
            for c in range(channels):
                du_BLC[b, t, c] = dx_BLC[b, t, c] * i_BLC[b, t, c] * scale_C[c]
            for c in range(channels):
                dscale = dx_BLC[b, t, c] * i_BLC[b, t, c] * u_BLC[b, t, c]
                dlog_C[c] = _EIGHT * (dscale * slope_C[c] - da_BLC[b, t, c] * a_BLC[b, t, c])
            for c in range(channels):
                dr_BLC[b, t, c] = s_C[c] * dlog_C[c]
            for c in range(channels):
                ds_C[c] += r_BLC[b, t, c] * dlog_C[c]


class _GatedDecay(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, r: Tensor, i: Tensor, u: Tensor, s: Tensor, first: bool) -> tuple[Tensor, Tensor]:
        r, i, u, s = (each.detach().contiguous() for each in (r, i, u, s))
        a, x = torch.empty_like(r), torch.empty_like(r)
        _forward(r.numpy(), i.numpy(), u.numpy(), s.numpy(), first, a.numpy(), x.numpy())
        ctx.save_for_backward(r, i, u, s, a)
        ctx.first = first
        return a, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, da: Tensor, dx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        r, i, u, s, a = ctx.saved_tensors
        dr, di, du, ds = (torch.empty_like(each) for each in (r, i, u, s))
        given = [each.numpy() for each in (a, da.contiguous(), dx.contiguous(), dr, di, du, ds)]
        _backward(r.numpy(), i.numpy(), u.numpy(), s.numpy(), ctx.first, *given)
        return dr, di, du, ds, None
