"""The long convolution's loops: all of a document's outputs, or single ones, and transposes for the Fourier path.

Blocks: LANES channels at a time are copied to scratch memory, flat, so that a row is LANES numbers and an inner loop
over lanes has constant bounds and distances. Outputs and inputs then meet in tiles of 4 x 4 rows, which share their
loads: an output row t and an input row u need the kernel's row t - u, and a tile has only 7 different ones of those.

Shapes: B documents, L length of the longest, T tokens of all of them, P positions asked of each, Q of all of
them, C channels. Documents stand end to end, the first token of each in `starts_B`, with the total at its end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import fast_kernel

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

LANES = 32
ROWS = 4 * LANES
"""Numbers in a tile's four rows."""
LEAD = 3 * LANES
"""Zeros before a kernel's row 0: tiles on the diagonal ask for rows -3 .. 3, and the past only has those from 0 on."""


@fast_kernel
def padded(length: int) -> int:
    """Numbers in a block of `length` rows, rounded up to whole tiles."""
    return -(-length // 4) * ROWS


@fast_kernel
def load(x_LC: F32, channel: int, reverse: bool, block: F32) -> None:
    """Copy LANES channels (or what is left of them) from `channel` on; other lanes are zero already, rows become so."""
    length, channels = x_LC.shape
    lanes = min(LANES, channels - channel)
    block[length * LANES :] = 0
    for t in range(length):
        row, to = x_LC[length - 1 - t if reverse else t, channel : channel + lanes], block[t * LANES :]
        for c in range(lanes):
            to[c] = row[c]


@fast_kernel
def store(block: F32, channel: int, reverse: bool, y_LC: F32) -> None:
    """Undo `load`."""
    length, channels = y_LC.shape
    lanes = min(LANES, channels - channel)
    for t in range(length):
        row, to = block[t * LANES :], y_LC[length - 1 - t if reverse else t, channel : channel + lanes]
        for c in range(lanes):
            to[c] = row[c]


@fast_kernel
def add_convolution(x: F32, k: F32, y: F32) -> None:
    """y[t] += Σ_{u<=t} k[t-u] x[u], on blocks; k has LEAD zeros before its row 0."""
    for t in range(0, len(y), ROWS):
        out = y[t : t + ROWS]
        for u in range(0, t + ROWS, ROWS):
            past, taps = x[u : u + ROWS], k[t - u : t - u + ROWS + LEAD]
            for c in range(LANES):
                x0, x1, x2, x3 = past[c], past[LANES + c], past[2 * LANES + c], past[3 * LANES + c]
                k0, k1, k2, k3 = taps[c], taps[LANES + c], taps[2 * LANES + c], taps[3 * LANES + c]
                k4, k5, k6 = taps[4 * LANES + c], taps[5 * LANES + c], taps[6 * LANES + c]
                out[c] += k3 * x0 + k2 * x1 + k1 * x2 + k0 * x3
                out[LANES + c] += k4 * x0 + k3 * x1 + k2 * x2 + k1 * x3
                out[2 * LANES + c] += k5 * x0 + k4 * x1 + k3 * x2 + k2 * x3
                out[3 * LANES + c] += k6 * x0 + k5 * x1 + k4 * x2 + k3 * x3


@fast_kernel
def add_reversed(block: F32, length: int, channel: int, sum_LC: F32) -> None:
    """Add the first `length` rows of a block, the last of them first."""
    lanes = min(LANES, sum_LC.shape[1] - channel)
    for t in range(length):
        row, to = block[t * LANES :], sum_LC[length - 1 - t, channel : channel + lanes]
        for c in range(lanes):
            to[c] += row[c]


@fast_kernel
def forward(x_TC: F32, k_LC: F32, starts_B: I64, y_TC: F32) -> None:
    """Write the convolution of every document to y_TC."""
    length, channels = k_LC.shape
    most = padded(length)
    for channel in range(0, channels, LANES):
        x, y, k = np.zeros(most, np.float32), np.empty(most, np.float32), np.zeros(most + LEAD, np.float32)
        load(k_LC, channel, False, k[LEAD:])
        for b in range(len(starts_B) - 1):
            x_LC, y_LC = x_TC[starts_B[b] : starts_B[b + 1]], y_TC[starts_B[b] : starts_B[b + 1]]
            size = padded(len(x_LC))
            load(x_LC, channel, False, x[:size])
            y[:size] = 0
            add_convolution(x[:size], k, y[:size])
            store(y, channel, False, y_LC)


@fast_kernel
def backward(x_TC: F32, k_LC: F32, starts_B: I64, dy_TC: F32, dx_TC: F32, dk_LC: F32) -> None:
    """Write the gradients to dx_TC and dk_LC.

    In reversed time both are causal convolutions again: reverse(dx) = reverse(dy) * k, reverse(dk) = reverse(dy) * x.
    """
    length, channels = k_LC.shape
    most = padded(length)
    dk_LC[:] = 0
    for channel in range(0, channels, LANES):
        dy, dx, dk = np.zeros(most, np.float32), np.empty(most, np.float32), np.empty(most, np.float32)
        k, x = np.zeros(most + LEAD, np.float32), np.zeros(most + LEAD, np.float32)
        load(k_LC, channel, False, k[LEAD:])
        for b in range(len(starts_B) - 1):
            x_LC, dx_LC = x_TC[starts_B[b] : starts_B[b + 1]], dx_TC[starts_B[b] : starts_B[b + 1]]
            size = padded(len(x_LC))
            load(dy_TC[starts_B[b] : starts_B[b + 1]], channel, True, dy[:size])
            load(x_LC, channel, False, x[LEAD : LEAD + size])
            dx[:size] = 0
            dk[:size] = 0
            add_convolution(dy[:size], k, dx[:size])
            add_convolution(dy[:size], x, dk[:size])
            store(dx, channel, True, dx_LC)
            add_reversed(dk, len(x_LC), channel, dk_LC)


@fast_kernel
def forward_at(x_TC: F32, k_LC: F32, starts_B: I64, at_BP: I64, y_QC: F32) -> None:
    """Add the convolution at single positions to y_QC, which starts at zero: a dot product of length t + 1 each."""
    (batch, positions), channels = at_BP.shape, k_LC.shape[1]
    for b in range(batch):
        for p in range(positions):
            y_C, t = y_QC[b * positions + p], at_BP[b, p]
            for s in range(t + 1):
                k_C, x_C = k_LC[s], x_TC[starts_B[b] + t - s]
                for c in range(channels):
                    y_C[c] += k_C[c] * x_C[c]


@fast_kernel
def backward_at(x_TC: F32, k_LC: F32, starts_B: I64, at_BP: I64, dy_QC: F32, dx_TC: F32, dk_LC: F32) -> None:
    """Add the gradients of `forward_at` to dx_TC and dk_LC, which start at zero."""
    (batch, positions), channels = at_BP.shape, k_LC.shape[1]
    for b in range(batch):
        for p in range(positions):
            dy_C, t = dy_QC[b * positions + p], at_BP[b, p]
            for s in range(t + 1):
                k_C, x_C = k_LC[s], x_TC[starts_B[b] + t - s]
                dk_C, dx_C = dk_LC[s], dx_TC[starts_B[b] + t - s]
                for c in range(channels):
                    dx_C[c] += k_C[c] * dy_C[c]
                    dk_C[c] += x_C[c] * dy_C[c]


@fast_kernel
def to_columns(x_LC: F32, reverse: bool, x_CN: F32) -> None:
    """Transpose; N >= L. By 16 rows: to jump from column to column would evict lines whose distance is a power of 2."""
    length, channels = x_LC.shape
    for start in range(0, length, 16):
        for c in range(channels):
            column_N = x_CN[c]
            for t in range(start, min(start + 16, length)):
                column_N[t] = x_LC[length - 1 - t if reverse else t, c]


@fast_kernel
def to_rows(y_CN: F32, reverse: bool, y_LC: F32) -> None:
    """Undo `to_columns`."""
    length, channels = y_LC.shape
    for start in range(0, length, 16):
        for c in range(channels):
            column_N = y_CN[c]
            for t in range(start, min(start + 16, length)):
                y_LC[length - 1 - t if reverse else t, c] = column_N[t]
