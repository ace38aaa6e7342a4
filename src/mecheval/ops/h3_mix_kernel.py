"""The loops of H3's gated convolution, in the blocks and tiles of `long_conv_kernel`.

A lane is a channel c = h P + e, one of a head's P numbers. For each of P turns s, a block holds the products of k's
channels with v's, those of each head turned by s: entry e meets entry f = (e + s) mod P. So lanes are full however
few heads there are, and a head's P² products need P convolutions.

Shapes: B documents, L length of the longest, T tokens of all of them, A positions asked of each, Q of all of them, H
heads, P numbers in a head (e and f count them), C = H P channels, N numbers in a block. Documents stand end to end, the
first token of each in `starts_B`, with the total at its end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import fast_kernel
from mecheval.ops.long_conv_kernel import LANES, LEAD, add_convolution, add_reversed, load, padded, store

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]


@fast_kernel
def _turn(channel: int, width: int, turn: int, from_C: U32) -> None:
    """Fill which channel comes to each lane when every head's numbers are turned."""
    for i in range(len(from_C)):
        head, e = divmod(channel + i, width)
        from_C[i] = head * width + (e + turn) % width


@fast_kernel
def _load_turned(x_LC: F32, from_C: U32, block: F32) -> None:
    """As `load`, but for each lane from this channel."""
    block[len(x_LC) * LANES :] = 0
    for t in range(len(x_LC)):
        row, to = x_LC[t], block[t * LANES :]
        for i in range(len(from_C)):
            to[i] = row[from_C[i]]


@fast_kernel
def _add_turned(block: F32, from_C: U32, sum_LC: F32) -> None:
    """Add each lane to the channel that `_load_turned` gives it."""
    for t in range(len(sum_LC)):
        row, to = block[t * LANES :], sum_LC[t]
        for i in range(len(from_C)):
            to[from_C[i]] += row[i]


@fast_kernel
def _repeat(kernel_LH: F32, width: int) -> F32:
    """The taps of each head for all its channels, (L, C)."""
    taps_LC = np.empty((len(kernel_LH), kernel_LH.shape[1] * width), np.float32)
    for t in range(len(kernel_LH)):
        for h in range(kernel_LH.shape[1]):
            for e in range(width):
                taps_LC[t, h * width + e] = kernel_LH[t, h]
    return taps_LC


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
    tokens, heads, width = q_THP.shape
    channels, most = heads * width, padded(len(kernel_LH))
    q_TC, k_TC, v_TC = q_THP.reshape(tokens, channels), k_THP.reshape(tokens, channels), v_THP.reshape(tokens, channels)
    out_TC, taps_LC = out_THP.reshape(tokens, channels), _repeat(kernel_LH, width)
    out_TC[:] = 0
    for channel in range(0, channels, LANES):
        taps, from_C = np.zeros(most + LEAD, np.float32), np.empty(min(LANES, channels - channel), np.uint32)
        load(taps_LC, channel, False, taps[LEAD:])
        q, k, v = np.zeros(most, np.float32), np.zeros(most, np.float32), np.zeros(most, np.float32)
        product, mixed = np.empty(most, np.float32), np.empty(most, np.float32)
        for b in range(len(starts_B) - 1):
            start, end = starts_B[b], starts_B[b + 1]
            size = padded(end - start)
            load(q_TC[start:end], channel, False, q[:size])
            load(k_TC[start:end], channel, False, k[:size])
            for turn in range(width):
                _turn(channel, width, turn, from_C)
                _load_turned(v_TC[start:end], from_C, v[:size])
                _multiply(k, v, product[:size])
                mixed[:size] = 0
                add_convolution(product[:size], taps, mixed[:size])
                _multiply(q, mixed, product[:size])
                _add_turned(product[:size], from_C, out_TC[start:end])


@fast_kernel
def backward(
    q_THP: F32, k_THP: F32, v_THP: F32, kernel_LH: F32, starts_B: I64, dout_THP: F32,
    dq_THP: F32, dk_THP: F32, dv_THP: F32, dkernel_LH: F32,
) -> None:  # fmt: skip
    """Write the gradients. Those of a convolution are causal convolutions too, in reversed time (`turned`)."""
    tokens, heads, width = q_THP.shape
    channels, most = heads * width, padded(len(kernel_LH))
    q_TC, k_TC, v_TC = q_THP.reshape(tokens, channels), k_THP.reshape(tokens, channels), v_THP.reshape(tokens, channels)
    dq_TC, dk_TC = dq_THP.reshape(tokens, channels), dk_THP.reshape(tokens, channels)
    dout_TC, dv_TC = dout_THP.reshape(tokens, channels), dv_THP.reshape(tokens, channels)
    taps_LC = _repeat(kernel_LH, width)
    dtaps_LC = np.zeros_like(taps_LC)
    dv_TC[:] = 0
    for channel in range(0, channels, LANES):
        taps, product = np.zeros(most + LEAD, np.float32), np.zeros(most + LEAD, np.float32)
        from_C = np.empty(min(LANES, channels - channel), np.uint32)
        load(taps_LC, channel, False, taps[LEAD:])
        # Apart from one another: in one array, a multiple of 4 kB apart, they take three times as long.
        q, k, v = np.zeros(most, np.float32), np.zeros(most, np.float32), np.zeros(most, np.float32)
        dout, dq, dk = np.zeros(most, np.float32), np.empty(most, np.float32), np.empty(most, np.float32)
        mixed, dmixed, dproduct = np.empty(most, np.float32), np.empty(most, np.float32), np.empty(most, np.float32)
        turned, dproduct_turned = np.empty(most, np.float32), np.empty(most, np.float32)
        dtaps_turned = np.empty(most, np.float32)
        for b in range(len(starts_B) - 1):
            start, end = starts_B[b], starts_B[b + 1]
            length, size = end - start, padded(end - start)
            load(q_TC[start:end], channel, False, q[:size])
            load(k_TC[start:end], channel, False, k[:size])
            dq[:size] = 0
            dk[:size] = 0
            dtaps_turned[:size] = 0
            for turn in range(width):
                _turn(channel, width, turn, from_C)
                _load_turned(v_TC[start:end], from_C, v[:size])
                _load_turned(dout_TC[start:end], from_C, dout[:size])
                _multiply(k, v, product[LEAD : LEAD + size])
                mixed[:size] = 0
                add_convolution(product[LEAD : LEAD + size], taps, mixed[:size])
                _add_product(dout, mixed, dq[:size])
                _multiply(dout, q, dmixed[:size])
                _reverse(dmixed, length, turned[:size])
                add_convolution(turned[:size], product, dtaps_turned[:size])
                dproduct_turned[:size] = 0
                add_convolution(turned[:size], taps, dproduct_turned[:size])
                _reverse(dproduct_turned, length, dproduct[:size])
                _add_product(dproduct, v, dk[:size])
                _multiply(dproduct, k, mixed[:size])
                _add_turned(mixed[:size], from_C, dv_TC[start:end])
            store(dq, channel, False, dq_TC[start:end])
            store(dk, channel, False, dk_TC[start:end])
            add_reversed(dtaps_turned, length, channel, dtaps_LC)
    for t in range(len(dkernel_LH)):
        for h in range(heads):
            total = np.float32(0.0)
            for e in range(h * width, (h + 1) * width):
                total += dtaps_LC[t, e]
            dkernel_LH[t, h] = total


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
