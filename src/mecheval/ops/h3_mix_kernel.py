"""The loops of H3's gated convolution, in the blocks and tiles of `long_conv_kernel`: a lane is a head here.

Shapes: B documents, L length of the longest, T tokens of all of them, A positions asked of each, Q of all of them, H
heads, P numbers in a head (e and f count them), N numbers in a block. Documents stand end to end, the first token of
each in `starts_B`, with the total at its end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import fast_kernel
from mecheval.ops.long_conv_kernel import LANES, LEAD, add_convolution, add_reversed, load, padded

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@fast_kernel
def _load_planes(x_LHP: F32, head: int, x_PN: F32) -> None:
    """Copy LANES heads from `head` on, each of a head's P numbers to a block of its own, which ends in zeros."""
    length, heads, width = x_LHP.shape
    lanes = min(LANES, heads - head)
    for e in range(width):
        block = x_PN[e]
        block[length * LANES : padded(length)] = 0
        for t in range(length):
            for h in range(lanes):
                block[t * LANES + h] = x_LHP[t, head + h, e]


@fast_kernel
def _store_planes(x_PN: F32, head: int, x_LHP: F32) -> None:
    length, heads, width = x_LHP.shape
    lanes = min(LANES, heads - head)
    for e in range(width):
        block = x_PN[e]
        for t in range(length):
            for h in range(lanes):
                x_LHP[t, head + h, e] = block[t * LANES + h]


@fast_kernel
def _multiply(a: F32, b: F32, out: F32) -> None:
    for i in range(len(out)):
        out[i] = a[i] * b[i]


@fast_kernel
def _add_product(a: F32, b: F32, out: F32) -> None:
    for i in range(len(out)):
        out[i] += a[i] * b[i]


@fast_kernel
def _reverse(x: F32, length: int, out: F32) -> None:
    """Turn the first `length` rows of a block round; the rest of `out` becomes zero."""
    out[length * LANES :] = 0
    for t in range(length):
        row, turned = x[t * LANES : (t + 1) * LANES], out[(length - 1 - t) * LANES : (length - t) * LANES]
        for h in range(LANES):
            turned[h] = row[h]


@fast_kernel
def forward(q_THP: F32, k_THP: F32, v_THP: F32, kernel_LH: F32, starts_B: I64, out_THP: F32) -> None:
    """o_f = Σ_e q_e (kernel * (k_e v_f)), where * is the causal convolution."""
    _, heads, width = q_THP.shape
    most = padded(len(kernel_LH))
    for head in range(0, heads, LANES):
        taps = np.zeros(most + LEAD, np.float32)
        load(kernel_LH, head, False, taps[LEAD:])
        q, k, v = np.zeros((3, width, most), np.float32)
        out = np.empty((width, most), np.float32)
        product, mixed = np.empty(most, np.float32), np.empty(most, np.float32)
        for b in range(len(starts_B) - 1):
            start, end = starts_B[b], starts_B[b + 1]
            size = padded(end - start)
            _load_planes(q_THP[start:end], head, q)
            _load_planes(k_THP[start:end], head, k)
            _load_planes(v_THP[start:end], head, v)
            out[:, :size] = 0
            for e in range(width):
                for f in range(width):
                    _multiply(k[e], v[f], product[:size])
                    mixed[:size] = 0
                    add_convolution(product[:size], taps, mixed[:size])
                    _add_product(q[e], mixed, out[f][:size])
            _store_planes(out, head, out_THP[start:end])


@fast_kernel
def backward(
    q_THP: F32, k_THP: F32, v_THP: F32, kernel_LH: F32, starts_B: I64, dout_THP: F32,
    dq_THP: F32, dk_THP: F32, dv_THP: F32, dkernel_LH: F32,
) -> None:  # fmt: skip
    """Write the gradients. Those of a convolution are causal convolutions too, in reversed time (`turned`)."""
    _, heads, width = q_THP.shape
    most = padded(len(kernel_LH))
    dkernel_LH[:] = 0
    for head in range(0, heads, LANES):
        taps, product = np.zeros(most + LEAD, np.float32), np.zeros(most + LEAD, np.float32)
        load(kernel_LH, head, False, taps[LEAD:])
        q, k, v, dout = np.zeros((4, width, most), np.float32)
        dq, dk, dv = np.empty((3, width, most), np.float32)
        # Apart from one another: in one array, a multiple of 4 kB apart, they take three times as long.
        mixed, dmixed, dproduct = np.empty(most, np.float32), np.empty(most, np.float32), np.empty(most, np.float32)
        turned, dproduct_turned = np.empty(most, np.float32), np.empty(most, np.float32)
        dtaps_turned = np.empty(most, np.float32)
        for b in range(len(starts_B) - 1):
            start, end = starts_B[b], starts_B[b + 1]
            length, size = end - start, padded(end - start)
            _load_planes(q_THP[start:end], head, q)
            _load_planes(k_THP[start:end], head, k)
            _load_planes(v_THP[start:end], head, v)
            _load_planes(dout_THP[start:end], head, dout)
            dq[:, :size] = 0
            dk[:, :size] = 0
            dv[:, :size] = 0
            dtaps_turned[:size] = 0
            for e in range(width):
                for f in range(width):
                    _multiply(k[e], v[f], product[LEAD : LEAD + size])
                    mixed[:size] = 0
                    add_convolution(product[LEAD : LEAD + size], taps, mixed[:size])
                    _add_product(dout[f], mixed, dq[e][:size])
                    _multiply(dout[f], q[e], dmixed[:size])
                    _reverse(dmixed, length, turned[:size])
                    add_convolution(turned[:size], product, dtaps_turned[:size])
                    dproduct_turned[:size] = 0
                    add_convolution(turned[:size], taps, dproduct_turned[:size])
                    _reverse(dproduct_turned, length, dproduct[:size])
                    _add_product(dproduct, v[f], dk[e][:size])
                    _add_product(dproduct, k[e], dv[f][:size])
            _store_planes(dq, head, dq_THP[start:end])
            _store_planes(dk, head, dk_THP[start:end])
            _store_planes(dv, head, dv_THP[start:end])
            add_reversed(dtaps_turned, length, head, dkernel_LH)


@fast_kernel
def forward_at(q_QHP: F32, k_THP: F32, v_THP: F32, kernel_LH: F32, starts_B: I64, at_BA: I64, out_QHP: F32) -> None:
    """Add o = Σ_{s<=t} kernel[t-s] (q_t . k_s) v_s at single positions t to out_QHP, which starts at zero."""
    (batch, positions), (_, heads, width) = at_BA.shape, q_QHP.shape
    for b in range(batch):
        for a in range(positions):
            q_HP, out_HP = q_QHP[b * positions + a], out_QHP[b * positions + a]
            for s in range(at_BA[b, a] + 1):
                k_HP, v_HP = k_THP[starts_B[b] + s], v_THP[starts_B[b] + s]
                for h in range(heads):
                    score = np.float32(0.0)
                    for e in range(width):
                        score += q_HP[h, e] * k_HP[h, e]
                    weight = score * kernel_LH[at_BA[b, a] - s, h]
                    for f in range(width):
                        out_HP[h, f] += weight * v_HP[h, f]


@fast_kernel
def backward_at(
    q_QHP: F32, k_THP: F32, v_THP: F32, kernel_LH: F32, starts_B: I64, at_BA: I64, dout_QHP: F32,
    dq_QHP: F32, dk_THP: F32, dv_THP: F32, dkernel_LH: F32,
) -> None:  # fmt: skip
    """Add the gradients of `forward_at` to arrays which start at zero."""
    (batch, positions), (_, heads, width) = at_BA.shape, q_QHP.shape
    for b in range(batch):
        for a in range(positions):
            asked = b * positions + a
            q_HP, dout_HP, dq_HP = q_QHP[asked], dout_QHP[asked], dq_QHP[asked]
            for s in range(at_BA[b, a] + 1):
                k_HP, v_HP = k_THP[starts_B[b] + s], v_THP[starts_B[b] + s]
                dk_HP, dv_HP = dk_THP[starts_B[b] + s], dv_THP[starts_B[b] + s]
                for h in range(heads):
                    tap = kernel_LH[at_BA[b, a] - s, h]
                    score, dweight = np.float32(0.0), np.float32(0.0)
                    for e in range(width):
                        score += q_HP[h, e] * k_HP[h, e]
                        dweight += dout_HP[h, e] * v_HP[h, e]
                    dkernel_LH[at_BA[b, a] - s, h] += score * dweight
                    for e in range(width):
                        dq_HP[h, e] += dweight * tap * k_HP[h, e]
                        dk_HP[h, e] += dweight * tap * q_HP[h, e]
                        dv_HP[h, e] += score * tap * dout_HP[h, e]
