"""RWKV's token shift: mixtures of each token with the one before it, y = x + (before - x) ⊙ μ, one for each map.

All mixtures are made at once, and their gradients come together in one pass. PyTorch goes through whole sequences a
dozen times for each.

Legend: N rows (batch and time), C channels, M mixtures; x, before and each mixture (B, L, C), its shares (1, 1, C).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.rows import Floats, as_rows

_ZERO = np.float32(0)


def token_shift(x: Tensor, before: Tensor, shares: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The mixture of x with `before` for each tensor of shares."""
    if use_fast(x, before, *shares):
        before = before.expand_as(x)  # an intervention may put in one token for all; the kernel reads every position
        mixtures: tuple[Tensor, ...] = _TokenShift.apply(x, before, *shares)  # type: ignore[no-untyped-call]
        return mixtures
    return token_shift_reference(x, before, shares)


def token_shift_reference(x: Tensor, before: Tensor, shares: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`token_shift` in PyTorch."""
    return tuple(torch.lerp(x, before, share) for share in shares)


@fast_kernel
def _forward(x_NC: Floats, before_NC: Floats, share_MC: Floats, y_MNC: tuple[Floats, ...]) -> None:
    rows, channels = x_NC.shape
    for n in range(rows):
        x_C, before_C = x_NC[n], before_NC[n]
        for m in range(len(y_MNC)):
            y_C, share_C = y_MNC[m][n], share_MC[m]
            for c in range(channels):
                y_C[c] = x_C[c] + (before_C[c] - x_C[c]) * share_C[c]


@fast_kernel
def _backward(
    x_NC: Floats, before_NC: Floats, share_MC: Floats, dy_MNC: tuple[Floats, ...],
    dx_NC: Floats, dbefore_NC: Floats, dshare_MC: Floats,
) -> None:  # fmt: skip
    """Fill the gradients of x and before, and add to those of the shares, which start at zero."""
    rows, channels = x_NC.shape
    gap_C, total_C, part_C = np.empty_like(share_MC[0]), np.empty_like(share_MC[0]), np.empty_like(share_MC[0])
    for n in range(rows):
        x_C, before_C, dx_C, dbefore_C = x_NC[n], before_NC[n], dx_NC[n], dbefore_NC[n]
        for c in range(channels):
            gap_C[c] = before_C[c] - x_C[c]
            total_C[c] = _ZERO
            part_C[c] = _ZERO
        for m in range(len(dy_MNC)):
            dy_C, share_C, dshare_C = dy_MNC[m][n], share_MC[m], dshare_MC[m]
            for c in range(channels):
                total_C[c] += dy_C[c]
                part_C[c] += dy_C[c] * share_C[c]
                dshare_C[c] += dy_C[c] * gap_C[c]
        for c in range(channels):  # the two tokens share what the mixtures get
            dbefore_C[c] = part_C[c]
            dx_C[c] = total_C[c] - part_C[c]


class _TokenShift(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor, *shares: Tensor) -> tuple[Tensor, ...]:
        x, before = x.detach().contiguous(), before.detach().contiguous()
        share_MC = torch.stack([share.detach().flatten() for share in shares])
        mixtures = tuple(torch.empty_like(x) for _ in shares)
        x_NC, before_NC, *y_MNC = as_rows(x, before, *mixtures)
        _forward(x_NC, before_NC, share_MC.numpy(), tuple(y_MNC))
        ctx.save_for_backward(x, before, share_MC)
        return mixtures

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, ...]:
        x, before, share_MC = ctx.saved_tensors
        dx, dbefore, dshare_MC = torch.empty_like(x), torch.empty_like(before), torch.zeros_like(share_MC)
        given = (dy.contiguous() for dy in cotangents)
        x_NC, before_NC, dx_NC, dbefore_NC, *dy_MNC = as_rows(x, before, dx, dbefore, *given)
        _backward(x_NC, before_NC, share_MC.numpy(), tuple(dy_MNC), dx_NC, dbefore_NC, dshare_MC.numpy())
        return dx, dbefore, *(dshare_C.view(1, 1, -1) for dshare_C in dshare_MC)
