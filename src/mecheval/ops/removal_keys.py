"""The keys of RWKV-7: what a token looks up in the memory and removes from it, and under which key it then writes.

    κ = z / max(|z|, 1e-12),  z = p ⊙ s        removal key, of unit length in each head
    a = -κ,  b = κ ⊙ r                         look up and remove: the correction of the linear recurrence
    k = p ⊙ (1 + (r - 1) ⊙ t)                  write

Legend: N rows (batch and time), H heads, E head width; p plain key, r rate (both (B, L, H, E)), s and t (H, E).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.ragged import arrays
from mecheval.ops.rows import Floats

SHORTEST = 1e-12
"""Keys that are shorter are not made as long as one."""
_ZERO, _ONE, _SHORTEST = np.float32(0), np.float32(1), np.float32(SHORTEST)


def removal_keys(p: Tensor, r: Tensor, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """k, a and b (B, L, H, E); see the module."""
    if use_fast(p, r, s, t):
        r = r.expand_as(p)  # an intervention may put in one rate for all; the kernel reads every position
        k, a, b = _RemovalKeys.apply(p, r, s, t)  # type: ignore[no-untyped-call]
        return k, a, b
    return removal_keys_reference(p, r, s, t)


def removal_keys_reference(p: Tensor, r: Tensor, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`removal_keys` in PyTorch."""
    removal = F.normalize(p * s, dim=-1, eps=SHORTEST)
    return p * (1 + (r - 1) * t), -removal, removal * r


# Rows are indexed and not sliced, because numba would count the references to each slice, which takes longer than the
# row itself. Each inner loop touches few arrays: LLVM vectorises a loop only if it has few pairs of them to tell apart.


@fast_kernel
def _removal(p_NHE: Floats, s_HE: Floats, n: int, h: int, removal_E: Floats) -> tuple[np.float32, np.float32]:
    """Fill a head's removal key; its length before it was scaled, and the factor."""
    total = _ZERO
    for e in range(len(removal_E)):
        removal_E[e] = p_NHE[n, h, e] * s_HE[h, e]
    for e in range(len(removal_E)):
        total += removal_E[e] * removal_E[e]
    length = np.sqrt(total)
    factor = _ONE / (length if length > _SHORTEST else _SHORTEST)
    for e in range(len(removal_E)):
        removal_E[e] *= factor
    return length, factor


@fast_kernel
def _forward(
    p_NHE: Floats, r_NHE: Floats, s_HE: Floats, t_HE: Floats, k_NHE: Floats, a_NHE: Floats, b_NHE: Floats
) -> None:
    rows, heads, width = p_NHE.shape
    removal_E = np.empty(width, np.float32)
    for n in range(rows):
        for h in range(heads):
            _removal(p_NHE, s_HE, n, h, removal_E)
            for e in range(width):
                k_NHE[n, h, e] = p_NHE[n, h, e] * (_ONE + (r_NHE[n, h, e] - _ONE) * t_HE[h, e])
            for e in range(width):
                a_NHE[n, h, e] = -removal_E[e]
                b_NHE[n, h, e] = removal_E[e] * r_NHE[n, h, e]


@fast_kernel
def _backward(
    p_NHE: Floats, r_NHE: Floats, s_HE: Floats, t_HE: Floats, dk_NHE: Floats, da_NHE: Floats, db_NHE: Floats,
    dp_NHE: Floats, dr_NHE: Floats, ds_HE: Floats, dt_HE: Floats,
) -> None:  # fmt: skip
    """Fill the gradients of p and r, and add to those of s and t, which start at zero."""
    rows, heads, width = p_NHE.shape
    removal_E, dz_E = np.empty(width, np.float32), np.empty(width, np.float32)
    for n in range(rows):
        for h in range(heads):
            length, factor = _removal(p_NHE, s_HE, n, h, removal_E)
            along = _ZERO
            for e in range(width):
                dz_E[e] = db_NHE[n, h, e] * r_NHE[n, h, e] - da_NHE[n, h, e]
            for e in range(width):
                along += dz_E[e] * removal_E[e]
            along = along if length > _SHORTEST else _ZERO
            for e in range(width):
                dz_E[e] = factor * (dz_E[e] - along * removal_E[e])
            for e in range(width):
                ds_HE[h, e] += dz_E[e] * p_NHE[n, h, e]
            for e in range(width):
                dt_HE[h, e] += dk_NHE[n, h, e] * p_NHE[n, h, e] * (r_NHE[n, h, e] - _ONE)
            for e in range(width):
                dp_NHE[n, h, e] = dk_NHE[n, h, e] * (_ONE + (r_NHE[n, h, e] - _ONE) * t_HE[h, e])
            for e in range(width):
                dp_NHE[n, h, e] += dz_E[e] * s_HE[h, e]
            for e in range(width):
                dr_NHE[n, h, e] = dk_NHE[n, h, e] * p_NHE[n, h, e] * t_HE[h, e]
            for e in range(width):
                dr_NHE[n, h, e] += db_NHE[n, h, e] * removal_E[e]


class _RemovalKeys(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs = [x.detach().contiguous() for x in given]
        k, a, b = (torch.empty_like(inputs[0]) for _ in range(3))
        _forward(*arrays(*inputs, k, a, b))
        ctx.save_for_backward(*inputs)
        return k, a, b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, ...]:
        p, r, s, t = inputs = ctx.saved_tensors
        grads = torch.empty_like(p), torch.empty_like(r), torch.zeros_like(s), torch.zeros_like(t)
        _backward(*arrays(*inputs, *(dy.contiguous() for dy in cotangents), *grads))
        return grads
