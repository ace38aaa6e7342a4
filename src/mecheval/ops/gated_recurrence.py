"""The recurrence of the RG-LRU with its gates, from inputs u to states h.

    r_t = σ(u_t w_r + b_r)          i_t = σ(u_t w_i + b_i)
    a_t = exp(-8 s r_t)             x_t = sqrt(max(1 - a_t², STEEPEST)) i_t u_t
    h_t = a_t h_{t-1} + x_t

At a document's first token x = i u: its state starts from nothing, and is not scaled down.

Legend: B batch, L length, K positions asked for, C channels, H blocks of the gates' maps, E = C / H, D = L C numbers of
a document, N numbers in some rows of it, M = N + C; r recurrence gate, i input gate, a decay, x what enters the state,
s (C,) steepness.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.diagonal_recurrence import diagonal_recurrence
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.fastmath import LOG2_E, exp2, sigmoid
from mecheval.ops.gated_decay import STEEPEST, gap_below_one, gated_decay
from mecheval.ops.pieces import current
from mecheval.ops.queries import take

AT_ONCE = 8192
"""Numbers of a document that are handled at once, about.

Backward takes such parts from the last to the first. At the start of each, the CPU has not fetched in advance what
comes next, so they are as large as the second cache allows.
"""
Floats = NDArray[np.float32]
_STEEPEST, _LOG2_E = np.float32(STEEPEST), np.float32(LOG2_E)
_FLAT = np.sqrt(_STEEPEST)  # the lowest scale, which does not change with the decay
_ZERO, _ONE, _TWO, _EIGHT = np.float32(0), np.float32(1), np.float32(2), np.float32(8)
_NEGLIGIBLE = np.float32(1e-30)  # smaller cotangents become zero: subnormal numbers are slow


def gated_recurrence(
    u: Tensor, w_r: Tensor, b_r: Tensor, w_i: Tensor, b_i: Tensor, s: Tensor, *, at: Tensor | None = None
) -> Tensor:
    """h (B, L, C) for inputs u (B, L, C), the gates' weights (H, E, E) and biases (H, E), and steepness s >= 0 (C,).

    With `at` (B, K), only at those positions.
    """
    channels = u.shape[-1]
    if not channels == b_r.numel() == b_i.numel() == s.numel():  # a compiled kernel would read past the ends of arrays
        given = f"{b_r.numel()} and {b_i.numel()} biases, and {s.numel()} numbers of steepness"
        raise ValueError(f"gated_recurrence: u has {channels} channels; got {given}")
    if current(at) is None and use_fast(u, w_r, b_r, w_i, b_i, s):
        h: Tensor = _GatedRecurrence.apply(u, w_r, b_r, w_i, b_i, s)  # type: ignore[no-untyped-call]
        return h if at is None else take(h, at)
    return gated_recurrence_reference(u, w_r, b_r, w_i, b_i, s, at=at)


def gated_recurrence_reference(
    u: Tensor, w_r: Tensor, b_r: Tensor, w_i: Tensor, b_i: Tensor, s: Tensor, *, at: Tensor | None = None
) -> Tensor:
    """`gated_recurrence` by its parts, which also read documents in pieces."""
    a, x = gated_decay(sigmoid_gate(u, w_r, b_r), sigmoid_gate(u, w_i, b_i), u, s)
    return diagonal_recurrence(a, x, at)


def sigmoid_gate(u: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """r or i (B, L, C), between 0 and 1, from u (B, L, C) with weights (H, E, E) and biases (H, E)."""
    return torch.sigmoid(F.linear(u, _whole(w).mT, b.flatten()))


def _whole(w_HEE: Tensor) -> Tensor:
    """The weights of all channels (C, C), with the blocks on the diagonal.

    A product with the whole matrix, zeros and all, is faster than one for each of a few small blocks, whose inputs and
    outputs would be copied.
    """
    whole: Tensor = torch.block_diag(*w_HEE) if len(w_HEE) > 1 else w_HEE[0]
    return whole


# The kernels read a document as one flat array, so that an inner loop goes through many rows, and what belongs to the
# channels is repeated for each row. Its first token is apart, because no state fades there. Each inner loop touches few
# arrays: LLVM vectorises a loop only if it has few pairs of them to tell apart.


@fast_kernel
def _rows(length: int, channels: int) -> int:
    """How many rows are handled at once."""
    return max(1, min(length, AT_ONCE // channels))


@fast_kernel
def _repeated(x_C: Floats, rows: int) -> Floats:
    """(N,): the same numbers in every row."""
    channels = len(x_C)
    x_N = np.empty(rows * channels, np.float32)
    for row in range(rows):
        for c in range(channels):
            x_N[row * channels + c] = x_C[c]
    return x_N


@fast_kernel
def _open(z_N: Floats, b_N: Floats) -> None:
    """Turn products u w into gates, in place; the biases may be of more rows."""
    for n in range(len(z_N)):
        z_N[n] = sigmoid(z_N[n] + b_N[n])


@fast_kernel
def _fill_decays(r_N: Floats, s_N: Floats, a_N: Floats, scale_N: Floats) -> None:
    """Fill the decays and the scales of what enters the state."""
    for n in range(len(r_N)):
        log_a = -_EIGHT * s_N[n] * r_N[n]
        a = exp2(log_a * _LOG2_E)
        gap = gap_below_one(_TWO * log_a, a * a)
        a_N[n] = a
        scale_N[n] = np.sqrt(_STEEPEST if gap < _STEEPEST else gap)


@fast_kernel
def _forward_rows(r_N: Floats, i_N: Floats, u_N: Floats, s_N: Floats, h_M: Floats, channels: int) -> None:
    """Fill the states of some rows; h_M starts with the row before them."""
    a_N, x_N = np.empty_like(r_N), np.empty_like(r_N)
    _fill_decays(r_N, s_N, a_N, x_N)
    for n in range(len(x_N)):
        x_N[n] *= i_N[n] * u_N[n]
    for row in range(len(x_N) // channels):
        before = row * channels
        for c in range(channels):
            h_M[before + channels + c] = a_N[before + c] * h_M[before + c] + x_N[before + c]


@fast_kernel
def _forward(r_BD: Floats, i_BD: Floats, u_BD: Floats, b_r: Floats, b_i: Floats, s_C: Floats, h_BD: Floats) -> None:
    """Fill the states, and turn the products u w in r and i into the gates; a document's first r is never needed."""
    channels = len(s_C)
    length = u_BD.shape[1] // channels
    rows = _rows(length, channels)
    s_N, br_N, bi_N = _repeated(s_C, rows), _repeated(b_r, rows), _repeated(b_i, rows)
    for b in range(len(u_BD)):
        r_D, i_D, u_D, h_D = r_BD[b], i_BD[b], u_BD[b], h_BD[b]
        _open(i_D[:channels], bi_N)
        for c in range(channels):
            h_D[c] = i_D[c] * u_D[c]
        for t in range(1, length, rows):
            start, end = t * channels, min(length, t + rows) * channels
            _open(r_D[start:end], br_N)
            _open(i_D[start:end], bi_N)
            _forward_rows(r_D[start:end], i_D[start:end], u_D[start:end], s_N, h_D[start - channels : end], channels)


@fast_kernel
def _pass_back(a_C: Floats, dh_C: Floats, passed_C: Floats, g_C: Floats) -> None:
    """Fill the whole cotangent g of a state; what it is passed by the state after becomes what it passes on."""
    for c in range(len(a_C)):
        g = dh_C[c] + passed_C[c]
        passed = g * a_C[c]
        g_C[c] = g
        passed_C[c] = _ZERO if abs(passed) < _NEGLIGIBLE else passed


@fast_kernel
def _backward_rows(
    r_N: Floats, i_N: Floats, u_N: Floats, s_N: Floats, before_N: Floats, dh_N: Floats, passed_C: Floats,
    dr_N: Floats, di_N: Floats, du_N: Floats, ds_N: Floats,
) -> None:  # fmt: skip
    """Fill the gradients of some rows, given the states before each, and add to those of the steepness.

    Decays and scales are computed again, which is cheaper than to keep them.
    """
    size, channels = len(r_N), len(passed_C)
    a_N, scale_N, g_N, fade_N = np.empty_like(r_N), np.empty_like(r_N), np.empty_like(r_N), np.empty_like(r_N)
    _fill_decays(r_N, s_N, a_N, scale_N)
    for start in range(size - channels, -1, -channels):
        end = start + channels
        _pass_back(a_N[start:end], dh_N[start:end], passed_C, g_N[start:end])
    for n in range(size):
        du_N[n] = g_N[n] * scale_N[n] * i_N[n]
    for n in range(size):
        di_N[n] = du_N[n] * u_N[n] * (_ONE - i_N[n])
    for n in range(size):  # how fast the state grows with log a
        slope = a_N[n] / scale_N[n] if scale_N[n] > _FLAT else _ZERO
        fade_N[n] = a_N[n] * (before_N[n] - slope * i_N[n] * u_N[n])
    for n in range(size):
        fade_N[n] *= -_EIGHT * g_N[n] * r_N[n]
        ds_N[n] += fade_N[n]
    for n in range(size):
        dr_N[n] = s_N[n] * fade_N[n] * (_ONE - r_N[n])


@fast_kernel
def _backward(
    r_BD: Floats, i_BD: Floats, u_BD: Floats, s_C: Floats, h_BD: Floats, dh_BD: Floats,
    dr_BD: Floats, di_BD: Floats, du_BD: Floats, ds_C: Floats,
) -> None:  # fmt: skip
    """Fill the gradients, where dr and di are those of the gates before their sigmoids, and du is without theirs."""
    channels = len(s_C)
    length = u_BD.shape[1] // channels
    rows = _rows(length, channels)
    s_N, passed_C = _repeated(s_C, rows), np.empty_like(s_C)
    ds_N = np.zeros_like(s_N)
    for b in range(len(u_BD)):
        r_D, i_D, u_D, h_D, dh_D = r_BD[b], i_BD[b], u_BD[b], h_BD[b], dh_BD[b]
        dr_D, di_D, du_D = dr_BD[b], di_BD[b], du_BD[b]
        for c in range(channels):
            passed_C[c] = _ZERO
        for last in range(length, 1, -rows):
            start, end = max(1, last - rows) * channels, last * channels
            _backward_rows(
                r_D[start:end], i_D[start:end], u_D[start:end], s_N, h_D[start - channels : end - channels],
                dh_D[start:end], passed_C, dr_D[start:end], di_D[start:end], du_D[start:end], ds_N,
            )  # fmt: skip
        for c in range(channels):
            du_D[c] = (dh_D[c] + passed_C[c]) * i_D[c]
        for c in range(channels):
            di_D[c] = du_D[c] * u_D[c] * (_ONE - i_D[c])
        for c in range(channels):
            dr_D[c] = _ZERO
    for c in range(channels):
        ds_C[c] = _ZERO
    for row in range(rows):
        for c in range(channels):
            ds_C[c] += ds_N[row * channels + c]


class _GatedRecurrence(torch.autograd.Function):
    """The gates' products and the loops under autograd."""

    @staticmethod
    def forward(ctx: Any, u_BLC: Tensor, w_r: Tensor, b_r: Tensor, w_i: Tensor, b_i: Tensor, s_C: Tensor) -> Tensor:
        u_BLC, b_r, b_i, s_C = (x.detach().contiguous() for x in (u_BLC, b_r, b_i, s_C))
        wr_CC, wi_CC = _whole(w_r.detach()), _whole(w_i.detach())
        r_BLC, i_BLC, h_BLC = u_BLC @ wr_CC, u_BLC @ wi_CC, torch.empty_like(u_BLC)
        r_BD, i_BD, u_BD, h_BD = (_flat(x) for x in (r_BLC, i_BLC, u_BLC, h_BLC))
        _forward(r_BD, i_BD, u_BD, b_r.view(-1).numpy(), b_i.view(-1).numpy(), s_C.numpy(), h_BD)
        ctx.save_for_backward(r_BLC, i_BLC, u_BLC, wr_CC, wi_CC, s_C, h_BLC)
        ctx.blocks = b_r.shape
        return h_BLC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh_BLC: Tensor) -> tuple[Tensor | None, ...]:
        r_BLC, i_BLC, u_BLC, wr_CC, wi_CC, s_C, h_BLC = ctx.saved_tensors
        dr_BLC, di_BLC, du_BLC, ds_C = (torch.empty_like(x) for x in (r_BLC, i_BLC, u_BLC, s_C))
        r_BD, i_BD, u_BD, h_BD, dh_BD = (_flat(x) for x in (r_BLC, i_BLC, u_BLC, h_BLC, dh_BLC.contiguous()))
        dr_BD, di_BD, du_BD = (_flat(x) for x in (dr_BLC, di_BLC, du_BLC))
        _backward(r_BD, i_BD, u_BD, s_C.numpy(), h_BD, dh_BD, dr_BD, di_BD, du_BD, ds_C.numpy())
        u, dr, di, du = (x.view(-1, len(s_C)) for x in (u_BLC, dr_BLC, di_BLC, du_BLC))
        du.addmm_(dr, wr_CC.T).addmm_(di, wi_CC.T)
        dw_r, dw_i = (
            _blocks(u.T @ dz, *ctx.blocks) if needed else None
            for dz, needed in ((dr, ctx.needs_input_grad[1]), (di, ctx.needs_input_grad[3]))
        )
        return du_BLC, dw_r, dr.sum(0).view(ctx.blocks), dw_i, di.sum(0).view(ctx.blocks), ds_C


def _flat(x_BLC: Tensor) -> Floats:
    """(B, D)."""
    x_BD: Floats = x_BLC.flatten(1).numpy()
    return x_BD


def _blocks(w_CC: Tensor, heads: int, size: int) -> Tensor:
    """The blocks (H, E, E) on the diagonal."""
    return w_CC.view(heads, size, heads, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()
