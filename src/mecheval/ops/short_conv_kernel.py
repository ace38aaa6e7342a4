"""The short convolution's loops.

A document is one flat array, so that a tap is a shift by C and a block of R rows is one inner loop. The taps and
the bias are repeated R times to fit such a block, with R chosen so that the loop is long enough for its set-up not
to count (with 16 channels, that is three quarters of the time) and the block stays in the first cache.

Shapes: B documents, T tokens of all of them, P positions asked of each, Q outputs of all documents, C channels, K taps.
Documents stand end to end, the first token of each in `starts_B`, with the total at its end. `at_BP` without rows means
every position; else blocks are single positions.
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
def forward(x_TC: F32, w_CK: F32, bias_C: F32, starts_B: I64, at_BP: I64, y_QC: F32) -> None:
    """Write the convolution to y_QC."""
    channels = len(w_CK)
    rows = _rows(at_BP, channels)
    w, bias = _repeat(w_CK, bias_C, rows)
    for b in range(len(starts_B) - 1):
        x, y_document = x_TC[starts_B[b] : starts_B[b + 1]].ravel(), _outputs(y_QC, starts_B, at_BP, b)
        for p in range(0, len(y_document) // channels, rows):
            n, t = min(rows, len(y_document) // channels - p), at_BP[b, p] if len(at_BP) else p
            _convolve(x, w, bias, t, n, channels, y_document[p * channels : (p + n) * channels])


@fast_kernel
def _outputs(y_QC: F32, starts_B: I64, at_BP: I64, b: int) -> F32:
    """The outputs of document b, flat."""
    if len(at_BP):
        return y_QC[b * at_BP.shape[1] : (b + 1) * at_BP.shape[1]].ravel()
    return y_QC[starts_B[b] : starts_B[b + 1]].ravel()


@fast_kernel
def backward(
    x_TC: F32, w_CK: F32, bias_C: F32, starts_B: I64, at_BP: I64, dy_QC: F32, dx_TC: F32, dw_CK: F32, dbias_C: F32
) -> None:
    """Add the gradients to dx_TC, dw_CK and dbias_C, which start at zero."""
    channels = len(w_CK)
    rows = _rows(at_BP, channels)
    w, bias = _repeat(w_CK, bias_C, rows)
    dw, dbias = np.zeros_like(w), np.zeros_like(bias)
    for b in range(len(starts_B) - 1):
        x, dx = x_TC[starts_B[b] : starts_B[b + 1]].ravel(), dx_TC[starts_B[b] : starts_B[b + 1]].ravel()
        dy_document = _outputs(dy_QC, starts_B, at_BP, b)
        for p in range(0, len(dy_document) // channels, rows):
            n, t = min(rows, len(dy_document) // channels - p), at_BP[b, p] if len(at_BP) else p
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
