"""The loops of H3's gated convolution, in the blocks and tiles of `long_conv_kernel`: a lane is a head here.

Shapes: B batch, L length, A positions, H heads, P numbers in a head (e and f count them), T numbers in a block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import fast_kernel
from mecheval.ops.long_conv_kernel import LANES, LEAD, add_convolution, load, padded, store

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@fast_kernel
def _load_planes(x_LHP: F32, head: int, x_PT: F32) -> None:
    """Copy LANES heads from `head` on, each of a head's P numbers to a block of its own."""
    length, heads, width = x_LHP.shape
    lanes = min(LANES, heads - head)
    for e in range(width):
        block = x_PT[e]
        for t in range(length):
            for h in range(lanes):
                block[t * LANES + h] = x_LHP[t, head + h, e]


@fast_kernel
def _store_planes(x_PT: F32, head: int, x_LHP: F32) -> None:
    length, heads, width = x_LHP.shape
    lanes = min(LANES, heads - head)
    for e in range(width):
        block = x_PT[e]
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
    """Turn the first `length` rows of a block round; the rest of `out` is zero already."""
    for t in range(length):
        row, turned = x[t * LANES : (t + 1) * LANES], out[(length - 1 - t) * LANES : (length - t) * LANES]
        for h in range(LANES):
            turned[h] = row[h]


@fast_kernel
def forward(q_BLHP: F32, k_BLHP: F32, v_BLHP: F32, kernel_LH: F32, out_BLHP: F32) -> None:
    """o_f = Σ_e q_e (kernel * (k_e v_f)), where * is the causal convolution."""
    batch, length, heads, width = q_BLHP.shape
    size = padded(length)
    for head in range(0, heads, LANES):
        taps = np.zeros(size + LEAD, np.float32)
        load(kernel_LH, head, False, taps[LEAD:])
        q, k, v = np.zeros((3, width, size), np.float32)
        out = np.empty((width, size), np.float32)
        product, mixed = np.empty(size, np.float32), np.empty(size, np.float32)
        for b in range(batch):
            _load_planes(q_BLHP[b], head, q)
            _load_planes(k_BLHP[b], head, k)
            _load_planes(v_BLHP[b], head, v)
            out[:] = 0
            for e in range(width):
                for f in range(width):
                    _multiply(k[e], v[f], product)
                    mixed[:] = 0
                    add_convolution(product, taps, mixed)
                    _add_product(q[e], mixed, out[f])
            _store_planes(out, head, out_BLHP[b])


@fast_kernel
def backward(
    q_BLHP: F32, k_BLHP: F32, v_BLHP: F32, kernel_LH: F32, dout_BLHP: F32,
    dq_BLHP: F32, dk_BLHP: F32, dv_BLHP: F32, dkernel_LH: F32,
) -> None:  # fmt: skip
    """Write the gradients. Those of a convolution are causal convolutions too, in reversed time (`turned`)."""
    batch, length, heads, width = q_BLHP.shape
    size = padded(length)
    for head in range(0, heads, LANES):
        taps, product = np.zeros(size + LEAD, np.float32), np.zeros(size + LEAD, np.float32)
        load(kernel_LH, head, False, taps[LEAD:])
        q, k, v, dout = np.zeros((4, width, size), np.float32)
        dq, dk, dv = np.empty((3, width, size), np.float32)
        mixed, dmixed, dproduct = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32)
        turned, dproduct_turned, dtaps_turned = (
            np.zeros(size, np.float32),
            np.zeros(size, np.float32),
            np.zeros(size, np.float32),
        )
        for b in range(batch):
            _load_planes(q_BLHP[b], head, q)
            _load_planes(k_BLHP[b], head, k)
            _load_planes(v_BLHP[b], head, v)
            _load_planes(dout_BLHP[b], head, dout)
            dq[:] = 0
            dk[:] = 0
            dv[:] = 0
            for e in range(width):
                for f in range(width):
                    _multiply(k[e], v[f], product[LEAD:])
                    mixed[:] = 0
                    add_convolution(product[LEAD:], taps, mixed)
                    _add_product(dout[f], mixed, dq[e])
                    _multiply(dout[f], q[e], dmixed)
                    _reverse(dmixed, length, turned)
                    add_convolution(turned, product, dtaps_turned)
                    dproduct_turned[:] = 0
                    add_convolution(turned, taps, dproduct_turned)
                    _reverse(dproduct_turned, length, dproduct)
                    _add_product(dproduct, v[f], dk[e])
                    _add_product(dproduct, k[e], dv[f])
            _store_planes(dq, head, dq_BLHP[b])
            _store_planes(dk, head, dk_BLHP[b])
            _store_planes(dv, head, dv_BLHP[b])
        store(dtaps_turned, head, True, dkernel_LH)


@fast_kernel
def forward_at(q_BAHP: F32, k_BLHP: F32, v_BLHP: F32, kernel_LH: F32, at_BA: I64, out_BAHP: F32) -> None:
    """Add o = Σ_{s<=t} kernel[t-s] (q_t . k_s) v_s at single positions t to out_BAHP, which starts at zero."""
    batch, positions, heads, width = q_BAHP.shape
    for b in range(batch):
        for a in range(positions):
            for s in range(at_BA[b, a] + 1):
                for h in range(heads):
                    score = np.float32(0.0)
                    for e in range(width):
                        score += q_BAHP[b, a, h, e] * k_BLHP[b, s, h, e]
                    weight = score * kernel_LH[at_BA[b, a] - s, h]
                    for f in range(width):
                        out_BAHP[b, a, h, f] += weight * v_BLHP[b, s, h, f]


@fast_kernel
def backward_at(
    q_BAHP: F32, k_BLHP: F32, v_BLHP: F32, kernel_LH: F32, at_BA: I64, dout_BAHP: F32,
    dq_BAHP: F32, dk_BLHP: F32, dv_BLHP: F32, dkernel_LH: F32,
) -> None:  # fmt: skip
    """Add the gradients of `forward_at` to arrays which start at zero."""
    batch, positions, heads, width = q_BAHP.shape
    for b in range(batch):
        for a in range(positions):
            for s in range(at_BA[b, a] + 1):
                for h in range(heads):
                    tap = kernel_LH[at_BA[b, a] - s, h]
                    score, dweight = np.float32(0.0), np.float32(0.0)
                    for e in range(width):
                        score += q_BAHP[b, a, h, e] * k_BLHP[b, s, h, e]
                        dweight += dout_BAHP[b, a, h, e] * v_BLHP[b, s, h, e]
                    dkernel_LH[at_BA[b, a] - s, h] += score * dweight
                    for e in range(width):
                        dq_BAHP[b, a, h, e] += dweight * tap * k_BLHP[b, s, h, e]
                        dk_BLHP[b, s, h, e] += dweight * tap * q_BAHP[b, a, h, e]
                        dv_BLHP[b, s, h, e] += score * tap * dout_BAHP[b, a, h, e]
