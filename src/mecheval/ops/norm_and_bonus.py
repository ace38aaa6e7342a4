"""The end of RWKV-7's time mixing: what each head read, normalised, and its bonus for the token's own value.

    y = (o - mean(o)) / sqrt(var(o) + ε) ⊙ w + c + (Σ_e r_e k_e u_e) v

Legend: N rows (batch and time), H heads, E width of a head's keys, V of its values; o, v and y (B, L, H, V), r and k
(B, L, H, E), u (H, E), w and c (H, V).
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

_ZERO, _ONE = np.float32(0), np.float32(1)


def norm_and_bonus(
    o: Tensor, r: Tensor, k: Tensor, v: Tensor, u: Tensor, w: Tensor, c: Tensor, epsilon: float
) -> Tensor:
    """y (B, L, H, V); see the module."""
    if use_fast(o, r, k, v, u, w, c):
        o = o.expand_as(v)  # an intervention may put in one read for all; the kernel reads every position
        y: Tensor = _NormAndBonus.apply(o, r, k, v, u, w, c, epsilon)  # type: ignore[no-untyped-call]
        return y
    return norm_and_bonus_reference(o, r, k, v, u, w, c, epsilon)


def norm_and_bonus_reference(
    o: Tensor, r: Tensor, k: Tensor, v: Tensor, u: Tensor, w: Tensor, c: Tensor, epsilon: float
) -> Tensor:
    """`norm_and_bonus` in PyTorch."""
    normed = F.layer_norm(o, o.shape[-1:], eps=epsilon)
    return normed * w + c + (r * k * u).sum(-1, keepdim=True) * v


# Rows are indexed and not sliced, because numba would count the references to each slice, which takes longer than the
# row itself. Each inner loop touches few arrays: LLVM vectorises a loop only if it has few pairs of them to tell apart.


@fast_kernel
def _normalise(o_NHV: Floats, n: int, h: int, epsilon: np.float32, normed_V: Floats) -> np.float32:
    """Fill what has mean 0 and variance 1; the factor that made it so."""
    total, squares, size = _ZERO, _ZERO, np.float32(len(normed_V))
    for i in range(len(normed_V)):
        total += o_NHV[n, h, i]
    mean = total / size
    for i in range(len(normed_V)):
        normed_V[i] = o_NHV[n, h, i] - mean
    for i in range(len(normed_V)):
        squares += normed_V[i] * normed_V[i]
    factor = np.float32(_ONE / np.sqrt(squares / size + epsilon))
    for i in range(len(normed_V)):
        normed_V[i] *= factor
    return factor


@fast_kernel
def _bonus(r_NHE: Floats, k_NHE: Floats, u_HE: Floats, n: int, h: int) -> np.float32:
    """How much of its own value a token gets."""
    total = _ZERO
    for e in range(u_HE.shape[1]):
        total += r_NHE[n, h, e] * k_NHE[n, h, e] * u_HE[h, e]
    return total


@fast_kernel
def _forward(
    o_NHV: Floats, r_NHE: Floats, k_NHE: Floats, v_NHV: Floats, u_HE: Floats, w_HV: Floats, c_HV: Floats,
    epsilon: np.float32, y_NHV: Floats,
) -> None:  # fmt: skip
    rows, heads, width = o_NHV.shape
    normed_V = np.empty(width, np.float32)
    for n in range(rows):
        for h in range(heads):
            _normalise(o_NHV, n, h, epsilon, normed_V)
            bonus = _bonus(r_NHE, k_NHE, u_HE, n, h)
            for i in range(width):
                y_NHV[n, h, i] = normed_V[i] * w_HV[h, i] + c_HV[h, i] + bonus * v_NHV[n, h, i]


@fast_kernel
def _norm_backward(
    o_NHV: Floats, w_HV: Floats, epsilon: np.float32, dy_NHV: Floats, do_NHV: Floats, dw_HV: Floats, dc_HV: Floats
) -> None:
    """Fill the gradient of what was normalised, and add to those of w and c, which start at zero."""
    rows, heads, width = o_NHV.shape
    normed_V, size = np.empty(width, np.float32), np.float32(width)
    for n in range(rows):
        for h in range(heads):
            factor, total, along = _normalise(o_NHV, n, h, epsilon, normed_V), _ZERO, _ZERO
            for i in range(width):
                do_NHV[n, h, i] = dy_NHV[n, h, i] * w_HV[h, i]
            for i in range(width):
                total += do_NHV[n, h, i]
                along += do_NHV[n, h, i] * normed_V[i]
            total, along = total / size, along / size  # what would only shift or scale o is taken out
            for i in range(width):
                do_NHV[n, h, i] = factor * (do_NHV[n, h, i] - total - along * normed_V[i])
            for i in range(width):
                dw_HV[h, i] += dy_NHV[n, h, i] * normed_V[i]
                dc_HV[h, i] += dy_NHV[n, h, i]


@fast_kernel
def _bonus_backward(
    r_NHE: Floats, k_NHE: Floats, v_NHV: Floats, u_HE: Floats, dy_NHV: Floats,
    dr_NHE: Floats, dk_NHE: Floats, dv_NHV: Floats, du_HE: Floats,
) -> None:  # fmt: skip
    """Fill the gradients of r, k and v, and add to that of u, which starts at zero."""
    rows, heads, width = r_NHE.shape
    for n in range(rows):
        for h in range(heads):
            bonus, dbonus = _bonus(r_NHE, k_NHE, u_HE, n, h), _ZERO
            for i in range(v_NHV.shape[2]):
                dbonus += dy_NHV[n, h, i] * v_NHV[n, h, i]
            for i in range(v_NHV.shape[2]):
                dv_NHV[n, h, i] = bonus * dy_NHV[n, h, i]
            for e in range(width):
                dr_NHE[n, h, e] = dbonus * k_NHE[n, h, e] * u_HE[h, e]
            for e in range(width):
                dk_NHE[n, h, e] = dbonus * r_NHE[n, h, e] * u_HE[h, e]
            for e in range(width):
                du_HE[h, e] += dbonus * r_NHE[n, h, e] * k_NHE[n, h, e]


class _NormAndBonus(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, epsilon = given
        inputs = [x.detach().contiguous() for x in tensors]
        y = torch.empty_like(inputs[0])
        o_NHV, r_NHE, k_NHE, v_NHV, u_HE, w_HV, c_HV, y_NHV = arrays(*inputs, y)
        _forward(o_NHV, r_NHE, k_NHE, v_NHV, u_HE, w_HV, c_HV, np.float32(epsilon), y_NHV)
        ctx.save_for_backward(*inputs)
        ctx.epsilon = epsilon
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in inputs[:4]] + [torch.zeros_like(x) for x in inputs[4:]]
        o, r, k, v, u, w, _ = arrays(*inputs)
        dy_NHV, do, dr, dk, dv, du, dw, dc = arrays(dy.contiguous(), *grads)
        _norm_backward(o, w, np.float32(ctx.epsilon), dy_NHV, do, dw, dc)
        _bonus_backward(r, k, v, u, dy_NHV, dr, dk, dv, du)
        return *grads, None
