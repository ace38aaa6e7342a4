"""The selective scan for the CPU: a forward kernel that saves few states, a backward kernel that recomputes the rest.

Legend: B batch, L length, E channels, N states per channel, K queries, G segments, T steps of a segment.
The queries of a document come in order of time: `at_BK` ascending, `which_BK` their places in C, y, dC, dy.

The state lies as (N, E), so that every inner loop runs over channels, which are contiguous in u, dt, y and in the
state: no sum across vector lanes but those of dB and dC. Decay is 2^(dt A2) with A2 = A log2(e).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import copy_table, fast_kernel
from mecheval.ops.fastmath import LN_2, exp2

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

# Steps between saved states. Measured flat from 8 to 36: the backward's buffers of one segment fit the
# second-level cache, and saved states take a sixteenth of the memory of all states.
SEGMENT = 16

_LN_2 = np.float32(LN_2)
# Cotangents decay like the state. Left alone they reach subnormal numbers, which made the backward of a loss at
# one position seven times slower; a threshold this far above them keeps their products with dt and A normal too.
_NEGLIGIBLE = np.float32(1e-30)
_ZERO = np.float32(0.0)


def segments(length: int) -> int:
    """How many states the forward saves."""
    return -(-length // SEGMENT)


@fast_kernel
def scan_forward(
    u_BLE: Floats,
    dt_BLE: Floats,
    A2_NE: Floats,
    B_BLN: Floats,
    C_BKN: Floats,
    at_BK: Ints,
    which_BK: Ints,
    y_BKE: Floats,
    saved_BGNE: Floats,
) -> None:
    """Fill y, and, unless it has no room (G = 0), the state before each segment. Stops after the last query."""
    batch, _, channels = u_BLE.shape
    states = A2_NE.shape[0]
    queries = at_BK.shape[1]
    S_NE = np.empty((states, channels), np.float32)
    x_E = np.empty(channels, np.float32)
    for b in range(batch):
        S_NE[:] = 0
        asked = 0
        steps = at_BK[b, queries - 1] + 1 if queries > 0 else 0
        for t in range(steps):
            if t % SEGMENT == 0 and saved_BGNE.shape[1] > 0:
                copy_table(S_NE, saved_BGNE[b, t // SEGMENT])
            for e in range(channels):
                x_E[e] = dt_BLE[b, t, e] * u_BLE[b, t, e]
            for n in range(states):
                B_n = B_BLN[b, t, n]
                for e in range(channels):
                    S_NE[n, e] = exp2(dt_BLE[b, t, e] * A2_NE[n, e]) * S_NE[n, e] + x_E[e] * B_n
            while asked < queries and at_BK[b, asked] == t:
                k = which_BK[b, asked]
                y_BKE[b, k] = 0
                for n in range(states):
                    C_n = C_BKN[b, k, n]
                    for e in range(channels):
                        y_BKE[b, k, e] += S_NE[n, e] * C_n
                asked += 1


@fast_kernel
def scan_backward(
    u_BLE: Floats,
    dt_BLE: Floats,
    A2_NE: Floats,
    B_BLN: Floats,
    C_BKN: Floats,
    at_BK: Ints,
    which_BK: Ints,
    saved_BGNE: Floats,
    dy_BKE: Floats,
    du_BLE: Floats,
    ddt_BLE: Floats,
    dA_NE: Floats,
    dB_BLN: Floats,
    dC_BKN: Floats,
) -> None:
    """Fill the gradients, from the last segment to the first: recompute its states and decays, then walk it back.

    g is the cotangent of the state. With x = dt u and z = dt A, one step S' = exp(z) S + x B gives
    dB = sum_e g x, dx = sum_n g B, and the cotangent of S is exp(z) g, from which dz = S exp(z) g.
    """
    batch, _, channels = u_BLE.shape
    states = A2_NE.shape[0]
    queries = at_BK.shape[1]
    decay_TNE = np.empty((SEGMENT, states, channels), np.float32)
    S_TNE = np.empty((SEGMENT + 1, states, channels), np.float32)  # S_TNE[i]: the state before step i
    g_NE = np.empty((states, channels), np.float32)
    own_dA_NE = np.empty((states, channels), np.float32)  # of one document: sums of sums round less
    x_E = np.empty(channels, np.float32)
    dx_E = np.empty(channels, np.float32)
    dz_A2_E = np.empty(channels, np.float32)
    dA_NE[:] = 0
    for b in range(batch):
        g_NE[:] = 0
        own_dA_NE[:] = 0
        asked = queries
        steps = at_BK[b, queries - 1] + 1 if queries > 0 else 0
        du_BLE[b, steps:] = 0
        ddt_BLE[b, steps:] = 0
        dB_BLN[b, steps:] = 0
        for segment in range((steps - 1) // SEGMENT, -1, -1):
            start = segment * SEGMENT
            stop = min(start + SEGMENT, steps)
            copy_table(saved_BGNE[b, segment], S_TNE[0])
            for t in range(start, stop):
                i = t - start
                for e in range(channels):
                    x_E[e] = dt_BLE[b, t, e] * u_BLE[b, t, e]
                for n in range(states):
                    B_n = B_BLN[b, t, n]
                    for e in range(channels):
                        decay = exp2(dt_BLE[b, t, e] * A2_NE[n, e])
                        decay_TNE[i, n, e] = decay
                        S_TNE[i + 1, n, e] = decay * S_TNE[i, n, e] + x_E[e] * B_n
            for t in range(stop - 1, start - 1, -1):
                i = t - start
                while asked > 0 and at_BK[b, asked - 1] == t:
                    asked -= 1
                    k = which_BK[b, asked]
                    for n in range(states):
                        C_n = C_BKN[b, k, n]
                        dC_n = _ZERO
                        for e in range(channels):
                            g_NE[n, e] += dy_BKE[b, k, e] * C_n
                            dC_n += dy_BKE[b, k, e] * S_TNE[i + 1, n, e]
                        dC_BKN[b, k, n] = dC_n
                for e in range(channels):
                    x_E[e] = dt_BLE[b, t, e] * u_BLE[b, t, e]
                    dx_E[e] = 0
                    dz_A2_E[e] = 0
                for n in range(states):
                    B_n = B_BLN[b, t, n]
                    dB_n = _ZERO
                    for e in range(channels):
                        g = g_NE[n, e]
                        dB_n += g * x_E[e]
                        dx_E[e] += g * B_n
                        g = g * decay_TNE[i, n, e]
                        g = _ZERO if abs(g) < _NEGLIGIBLE else g
                        g_NE[n, e] = g
                        dz = g * S_TNE[i, n, e]
                        dz_A2_E[e] += dz * A2_NE[n, e]
                        own_dA_NE[n, e] += dz * dt_BLE[b, t, e]
                    dB_BLN[b, t, n] = dB_n
                for e in range(channels):
                    du_BLE[b, t, e] = dx_E[e] * dt_BLE[b, t, e]
                    ddt_BLE[b, t, e] = dx_E[e] * u_BLE[b, t, e] + dz_A2_E[e] * _LN_2
        for n in range(states):
            for e in range(channels):
                dA_NE[n, e] += own_dA_NE[n, e]
