"""The short convolution's loops.

A document is one flat array, so that a tap is a shift by C and a block of R rows is one inner loop. The taps and
the bias are repeated R times to fit such a block, with R chosen so that the loop is long enough for its set-up not
to count (with 16 channels, that is three quarters of the time) and the block stays in the first cache.

Shapes: B batch, L length, P positions, C channels, K taps.
`at_BP` without rows means every position; else blocks are single positions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import fast_kernel

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

BLOCK = 512
"""Numbers in a block, about."""


@fast_kernel
def _rows(at_BP: I64, channels: int) -> int:
    return 1 if len(at_BP) else max(1, BLOCK // channels)


@fast_kernel
def _repeat(w_CK: F32, bias_C: F32, rows: int) -> tuple[F32, F32]:
    """Taps (K, R * C) and bias (R * C,) for a block."""
    channels, taps = w_CK.shape
    w, bias = np.empty((taps, rows * channels), np.float32), np.empty(rows * channels, np.float32)
    for r in range(rows):
        for c in range(channels):
            bias[r * channels + c] = bias_C[c]
            for k in range(taps):
                w[k, r * channels + c] = w_CK[c, k]
    return w, bias


@fast_kernel
def _convolve(x: F32, w: F32, bias: F32, t: int, rows: int, channels: int, y: F32) -> None:
    """Write the convolution of a document x (L * C,) at positions t .. t + rows - 1 to y (rows * C,)."""
    for i in range(len(y)):
        y[i] = bias[i]
    for lag in range(min(len(w), t + rows)):
        first = max(lag - t, 0)  # rows above it would reach back beyond the first token
        past = x[(t + first - lag) * channels : (t + rows - lag) * channels]
        tap, out = w[len(w) - 1 - lag, first * channels :], y[first * channels :]
        for i in range(len(past)):
            out[i] += tap[i] * past[i]


@fast_kernel
def forward(x_BLC: F32, w_CK: F32, bias_C: F32, at_BP: I64, y_BPC: F32) -> None:
    """Write the convolution to y_BPC."""
    batch, positions, channels = y_BPC.shape
    rows = _rows(at_BP, channels)
    w, bias = _repeat(w_CK, bias_C, rows)
    for b in range(batch):
        x, y_document = x_BLC[b].ravel(), y_BPC[b].ravel()
        for p in range(0, positions, rows):
            n, t = min(rows, positions - p), at_BP[b, p] if len(at_BP) else p
            _convolve(x, w, bias, t, n, channels, y_document[p * channels : (p + n) * channels])


@fast_kernel
def backward(
    x_BLC: F32, w_CK: F32, bias_C: F32, at_BP: I64, dy_BPC: F32, dx_BLC: F32, dw_CK: F32, dbias_C: F32
) -> None:
    """Add the gradients to dx_BLC, dw_CK and dbias_C, which start at zero."""
    batch, positions, channels = dy_BPC.shape
    rows = _rows(at_BP, channels)
    w, bias = _repeat(w_CK, bias_C, rows)
    dw, dbias = np.zeros_like(w), np.zeros_like(bias)
    for b in range(batch):
        x, dx, dy_document = x_BLC[b].ravel(), dx_BLC[b].ravel(), dy_BPC[b].ravel()
        for p in range(0, positions, rows):
            n, t = min(rows, positions - p), at_BP[b, p] if len(at_BP) else p
            dy = dy_document[p * channels : (p + n) * channels]
            for i in range(len(dy)):
                dbias[i] += dy[i]
            for lag in range(min(len(w), t + n)):
                first = max(lag - t, 0)
                start, end = (t + first - lag) * channels, (t + n - lag) * channels
                past, dpast, dy_tap = x[start:end], dx[start:end], dy[first * channels :]
                tap, dtap = w[len(w) - 1 - lag, first * channels :], dw[len(w) - 1 - lag, first * channels :]
                for i in range(len(past)):
                    dpast[i] += tap[i] * dy_tap[i]
                    dtap[i] += past[i] * dy_tap[i]
    for r in range(rows):
        for c in range(channels):
            dbias_C[c] += dbias[r * channels + c]
            for k in range(len(w)):
                dw_CK[c, k] += dw[k, r * channels + c]
