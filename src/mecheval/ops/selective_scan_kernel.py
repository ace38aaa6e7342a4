"""The selective scan for the CPU: a forward kernel that saves few states, a backward kernel that recomputes the rest.

Legend: B documents, T tokens of all of them, E channels, N states per channel, Q queries, G segments of each
document, M of all of them, S steps of one.
Documents stand end to end, the first token of each in `starts_B` and their queries from `asked_B` on, both with the
total at their end. The queries of a document come in order of time: `at_Q`, their positions in it, ascends; `which_Q`
are their places in C, y, dC, dy.

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
    u_TE: Floats,
    dt_TE: Floats,
    A2_NE: Floats,
    B_TN: Floats,
    C_QN: Floats,
    starts_B: Ints,
    asked_B: Ints,
    at_Q: Ints,
    which_Q: Ints,
    y_QE: Floats,
    saved_MNE: Floats,
) -> None:
    """Fill y, and, unless it has no room (M = 0), the state before each segment. Stops after the last query."""
    states, channels = A2_NE.shape
    groups = len(saved_MNE) // max(1, len(starts_B) - 1)
    S_NE = np.empty((states, channels), np.float32)
    x_E = np.empty(channels, np.float32)
    for b in range(len(starts_B) - 1):
        S_NE[:] = 0
        asked, last = asked_B[b], asked_B[b + 1]
        steps = at_Q[last - 1] + 1 if last > asked else 0
        for t in range(steps):
            if t % SEGMENT == 0 and groups > 0:
                copy_table(S_NE, saved_MNE[b * groups + t // SEGMENT])
            u_E, dt_E, B_N = u_TE[starts_B[b] + t], dt_TE[starts_B[b] + t], B_TN[starts_B[b] + t]
            for e in range(channels):
                x_E[e] = dt_E[e] * u_E[e]
            for n in range(states):
                B_n = B_N[n]
                for e in range(channels):
                    S_NE[n, e] = exp2(dt_E[e] * A2_NE[n, e]) * S_NE[n, e] + x_E[e] * B_n
            while asked < last and at_Q[asked] == t:
                k = which_Q[asked]
                y_QE[k] = 0
                for n in range(states):
                    C_n = C_QN[k, n]
                    for e in range(channels):
                        y_QE[k, e] += S_NE[n, e] * C_n
                asked += 1


@fast_kernel
def scan_backward(
    u_TE: Floats,
    dt_TE: Floats,
    A2_NE: Floats,
    B_TN: Floats,
    C_QN: Floats,
    starts_B: Ints,
    asked_B: Ints,
    at_Q: Ints,
    which_Q: Ints,
    saved_MNE: Floats,
    dy_QE: Floats,
    du_TE: Floats,
    ddt_TE: Floats,
    dA_NE: Floats,
    dB_TN: Floats,
    dC_QN: Floats,
) -> None:
    """Fill the gradients, from the last segment to the first: recompute its states and decays, then walk it back.

    g is the cotangent of the state. With x = dt u and z = dt A, one step S' = exp(z) S + x B gives
    dB = sum_e g x, dx = sum_n g B, and the cotangent of S is exp(z) g, from which dz = S exp(z) g.
    """
    states, channels = A2_NE.shape
    groups = len(saved_MNE) // max(1, len(starts_B) - 1)
    decay_SNE = np.empty((SEGMENT, states, channels), np.float32)
    S_SNE = np.empty((SEGMENT + 1, states, channels), np.float32)  # S_SNE[i]: the state before step i
    g_NE = np.empty((states, channels), np.float32)
    own_dA_NE = np.empty((states, channels), np.float32)  # of one document: sums of sums round less
    x_E = np.empty(channels, np.float32)
    dx_E = np.empty(channels, np.float32)
    dz_A2_E = np.empty(channels, np.float32)
    dA_NE[:] = 0
    for b in range(len(starts_B) - 1):
        g_NE[:] = 0
        own_dA_NE[:] = 0
        first, asked = starts_B[b], asked_B[b + 1]
        steps = at_Q[asked - 1] + 1 if asked > asked_B[b] else 0
        du_TE[first + steps : starts_B[b + 1]] = 0
        ddt_TE[first + steps : starts_B[b + 1]] = 0
        dB_TN[first + steps : starts_B[b + 1]] = 0
        for segment in range((steps - 1) // SEGMENT, -1, -1):
            start = segment * SEGMENT
            stop = min(start + SEGMENT, steps)
            copy_table(saved_MNE[b * groups + segment], S_SNE[0])
            for t in range(start, stop):
                i = t - start
                u_E, dt_E, B_N = u_TE[first + t], dt_TE[first + t], B_TN[first + t]
                for e in range(channels):
                    x_E[e] = dt_E[e] * u_E[e]
                for n in range(states):
                    B_n = B_N[n]
                    for e in range(channels):
                        decay = exp2(dt_E[e] * A2_NE[n, e])
                        decay_SNE[i, n, e] = decay
                        S_SNE[i + 1, n, e] = decay * S_SNE[i, n, e] + x_E[e] * B_n
            for t in range(stop - 1, start - 1, -1):
                i = t - start
                while asked > asked_B[b] and at_Q[asked - 1] == t:
                    asked -= 1
                    k = which_Q[asked]
                    for n in range(states):
                        C_n = C_QN[k, n]
                        dC_n = _ZERO
                        for e in range(channels):
                            g_NE[n, e] += dy_QE[k, e] * C_n
                        for e in range(channels):
                            dC_n += dy_QE[k, e] * S_SNE[i + 1, n, e]
                        dC_QN[k, n] = dC_n
                u_E, dt_E, B_N, dB_N = u_TE[first + t], dt_TE[first + t], B_TN[first + t], dB_TN[first + t]
                for e in range(channels):
                    x_E[e] = dt_E[e] * u_E[e]
                    dx_E[e] = 0
                    dz_A2_E[e] = 0
                for n in range(states):
                    B_n = B_N[n]
                    dB_n = _ZERO
                    for e in range(channels):
                        dB_n += g_NE[n, e] * x_E[e]
                    for e in range(channels):
                        g = g_NE[n, e]
                        dx_E[e] += g * B_n
                        g = g * decay_SNE[i, n, e]
                        g = _ZERO if abs(g) < _NEGLIGIBLE else g
                        g_NE[n, e] = g
                        dz = g * S_SNE[i, n, e]
                        dz_A2_E[e] += dz * A2_NE[n, e]
                        own_dA_NE[n, e] += dz * dt_E[e]
                    dB_N[n] = dB_n
                for e in range(channels):
                    du_TE[first + t, e] = dx_E[e] * dt_E[e]
                    ddt_TE[first + t, e] = dx_E[e] * u_E[e] + dz_A2_E[e] * _LN_2
        for n in range(states):
            for e in range(channels):
                dA_NE[n, e] += own_dA_NE[n, e]
