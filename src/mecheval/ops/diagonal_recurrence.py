"""The diagonal linear recurrence of the RG-LRU: every channel fades by its own decay and adds its own input.

    h_t = a_t h_{t-1} + x_t          the state h (C,) starts at zero

Legend: B batch, L length, C channels, K positions asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import copy_row, fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.pieces import current
from mecheval.ops.queries import take

Floats = NDArray[np.float32]
_ZERO, _NEGLIGIBLE = np.float32(0.0), np.float32(1e-30)  # smaller cotangents become zero: subnormal numbers are slow


def diagonal_recurrence(a: Tensor, x: Tensor, at: Tensor | None = None) -> Tensor:
    """h (B, L, C) for decays a (B, L, C) and inputs x (B, L, C); with `at` (B, K), only at those positions."""
    if a.shape != x.shape:
        raise ValueError(f"diagonal_recurrence: a has shape {tuple(a.shape)}, x has {tuple(x.shape)}")
    now = current(at)
    if now is not None and (before := now.recall()) is not None:
        x = torch.cat([x[:, :1] + a[:, :1] * before, x[:, 1:]], dim=1)
    if use_fast(a, x):
        h: Tensor = _Diagonal.apply(a, x)  # type: ignore[no-untyped-call]
    else:
        h = diagonal_recurrence_reference(a, x)
    if now is not None:
        now.keep(h[:, -1:])
    return h if at is None else take(h, at)


def diagonal_recurrence_reference(a: Tensor, x: Tensor) -> Tensor:
    """`diagonal_recurrence` as a loop over time."""
    h_BC, states = torch.zeros_like(x[:, 0]), []
    for a_BC, x_BC in zip(a.unbind(1), x.unbind(1), strict=True):
        h_BC = a_BC * h_BC + x_BC
        states.append(h_BC)
    return torch.stack(states, dim=1)


@fast_kernel
def _forward(a_BLC: Floats, x_BLC: Floats, h_BLC: Floats) -> None:
    batch, length, channels = a_BLC.shape
    for b in range(batch):
        copy_row(x_BLC[b, 0], h_BLC[b, 0])
        for t in range(1, length):
            for c in range(channels):
                h_BLC[b, t, c] = a_BLC[b, t, c] * h_BLC[b, t - 1, c] + x_BLC[b, t, c]


@fast_kernel
def _backward(a_BLC: Floats, h_BLC: Floats, dh_BLC: Floats, da_BLC: Floats, dx_BLC: Floats) -> None:
    """Fill the gradients, from the last position to the first; dx is also the whole cotangent of h.

    Each inner loop touches three arrays, and what a position passes on to the one before it waits in a row: LLVM
    vectorises a loop only if it has few pairs of arrays to tell apart.
    """
    batch, length, channels = a_BLC.shape
    passed_C = np.empty(channels, np.float32)
    for b in range(batch):
        copy_row(dh_BLC[b, length - 1], dx_BLC[b, length - 1])
        for t in range(length - 1, 0, -1):
            for c in range(channels):
                g = dx_BLC[b, t, c] * a_BLC[b, t, c]
                passed_C[c] = _ZERO if abs(g) < _NEGLIGIBLE else g
            for c in range(channels):
                da_BLC[b, t, c] = dx_BLC[b, t, c] * h_BLC[b, t - 1, c]
            for c in range(channels):
                dx_BLC[b, t - 1, c] = dh_BLC[b, t - 1, c] + passed_C[c]
        da_BLC[b, 0] = 0


class _Diagonal(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor) -> Tensor:
        a_BLC, x_BLC, h_BLC = a.detach().contiguous(), x.detach().contiguous(), x.new_empty(x.shape)
        _forward(a_BLC.numpy(), x_BLC.numpy(), h_BLC.numpy())
        ctx.save_for_backward(a_BLC, h_BLC)
        return h_BLC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh_BLC: Tensor) -> tuple[Tensor, Tensor]:
        a_BLC, h_BLC = ctx.saved_tensors
        da_BLC, dx_BLC = torch.empty_like(a_BLC), torch.empty_like(a_BLC)
        _backward(*(x.numpy() for x in (a_BLC, h_BLC, dh_BLC.contiguous(), da_BLC, dx_BLC)))
        return da_BLC, dx_BLC
