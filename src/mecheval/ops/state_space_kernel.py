"""The loops of the state space model beside its matrix products, on rows: chunks of T positions.

Inner loops touch few arrays each: LLVM vectorises a loop only if it has few pairs of them to tell apart.

Legend: R rows, T = S positions of a row, H heads, P channels of a head, N width of keys and queries, E = H P channels.
G are sums of log-decays in double precision, within a row up to each position: a strong decay would take the last
digits of the weak ones beside it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import fast_kernel
from mecheval.ops.fastmath import LOG2_E, exp2

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
_ZERO = np.float32(0)


@fast_kernel
def _shares(G: np.float64, G_S: Doubles, left_S: Floats) -> None:
    """What is left, where the sum of log-decays is G, of each position in `left`."""
    for s in range(len(left_S)):
        left_S[s] = exp2(np.float32(LOG2_E * (G - G_S[s])))


@fast_kernel
def weigh(G_RHT: Doubles, dt_RHT: Floats, D_H: Floats, scores_RTS: Floats, weighed_HRTS: Floats) -> None:
    """Fill the weights of each written position s at each reader t: scores exp(G_t - G_s) dt_s, and D where s = t."""
    rows, heads, size = G_RHT.shape
    left_S = np.empty(size, np.float32)
    for r in range(rows):
        for h in range(heads):
            G_T, dt_S = G_RHT[r, h], dt_RHT[r, h]
            for t in range(size):
                scores_S, weighed_S = scores_RTS[r, t], weighed_HRTS[h, r, t]
                _shares(G_T[t], G_T, left_S[: t + 1])
                for s in range(t + 1):
                    weighed_S[s] = scores_S[s] * left_S[s] * dt_S[s]
                weighed_S[t] += D_H[h]
                weighed_S[t + 1 :] = 0


@fast_kernel
def weigh_backward(
    G_RHT: Doubles,
    dt_RHT: Floats,
    D_H: Floats,
    scores_RTS: Floats,
    dweighed_HRTS: Floats,
    weighed_HRTS: Floats,
    dscores_RTS: Floats,
    dG_RHT: Doubles,
    ddt_RHT: Floats,
    dD_H: Doubles,
) -> None:
    """Fill the weights once more, and the gradients from theirs; add to that of D.

    The sums are in double precision, because a weak decay's gradient is a small difference of them.
    """
    rows, heads, size = G_RHT.shape
    left_S, column_S = np.empty(size, np.float32), np.empty(size, np.float64)
    for r in range(rows):
        dscores_RTS[r] = 0
        for h in range(heads):
            G_T, dt_S = G_RHT[r, h], dt_RHT[r, h]
            column_S[:] = 0
            for t in range(size):
                scores_S, weighed_S = scores_RTS[r, t], weighed_HRTS[h, r, t]
                dweighed_S, dscores_S = dweighed_HRTS[h, r, t], dscores_RTS[r, t]
                _shares(G_T[t], G_T, left_S[: t + 1])
                for s in range(t + 1):
                    weighed_S[s] = scores_S[s] * left_S[s]
                total = 0.0
                for s in range(t + 1):
                    column_S[s] += np.float64(weighed_S[s] * dweighed_S[s])
                for s in range(t + 1):
                    total += np.float64(weighed_S[s] * dweighed_S[s]) * np.float64(dt_S[s])
                dG_RHT[r, h, t] = total
                for s in range(t + 1):
                    dscores_S[s] += left_S[s] * dt_S[s] * dweighed_S[s]
                for s in range(t + 1):
                    weighed_S[s] *= dt_S[s]
                weighed_S[t] += D_H[h]
                weighed_S[t + 1 :] = 0
                dD_H[h] += dweighed_S[t]
            for s in range(size):
                ddt_RHT[r, h, s] = column_S[s]
                dG_RHT[r, h, s] -= column_S[s] * np.float64(dt_S[s])


@fast_kernel
def fade(u_RTHP: Floats, G_RHT: Doubles, dt_RHT: Floats, v_RTHP: Floats) -> None:
    """Fill with what each position writes, as it is left after the last of its row: exp(G_last - G_t) dt_t u_t."""
    rows, size, heads, width = u_RTHP.shape
    for r in range(rows):
        for t in range(size):
            for h in range(heads):
                share = exp2(np.float32(LOG2_E * (G_RHT[r, h, -1] - G_RHT[r, h, t]))) * dt_RHT[r, h, t]
                u_P, v_P = u_RTHP[r, t, h], v_RTHP[r, t, h]
                for p in range(width):
                    v_P[p] = share * u_P[p]


@fast_kernel
def fade_backward(
    u_RTHP: Floats, G_RHT: Doubles, dt_RHT: Floats, dv_RTHP: Floats, du_RTHP: Floats, dG_RHT: Doubles, ddt_RHT: Floats
) -> None:
    """Add to the gradients of u, G and dt."""
    rows, size, heads, width = u_RTHP.shape
    for r in range(rows):
        for t in range(size):
            for h in range(heads):
                dt = dt_RHT[r, h, t]
                share = exp2(np.float32(LOG2_E * (G_RHT[r, h, -1] - G_RHT[r, h, t])))
                u_P, du_P, dv_P, dot = u_RTHP[r, t, h], du_RTHP[r, t, h], dv_RTHP[r, t, h], _ZERO
                for p in range(width):
                    du_P[p] += share * dt * dv_P[p]
                for p in range(width):
                    dot += u_P[p] * dv_P[p]
                ddt_RHT[r, h, t] += share * dot
                dlog = np.float64(share * dt * dot)
                dG_RHT[r, h, t] -= dlog
                dG_RHT[r, h, -1] += dlog


@fast_kernel
def add_read(read_RTHP: Floats, G_RHT: Doubles, y_RTHP: Floats) -> None:
    """Add to y what is read from the memory before each row, as it is left at each position."""
    rows, size, heads, width = y_RTHP.shape
    for r in range(rows):
        for t in range(size):
            for h in range(heads):
                share = exp2(np.float32(LOG2_E * G_RHT[r, h, t]))
                y_P, read_P = y_RTHP[r, t, h], read_RTHP[r, t, h]
                for p in range(width):
                    y_P[p] += share * read_P[p]


@fast_kernel
def scale_read(dy_RTHP: Floats, G_RHT: Doubles, dread_RTHP: Floats) -> None:
    """Fill the gradient of what is read."""
    rows, size, heads, width = dy_RTHP.shape
    for r in range(rows):
        for t in range(size):
            for h in range(heads):
                share = exp2(np.float32(LOG2_E * G_RHT[r, h, t]))
                dy_P, dread_P = dy_RTHP[r, t, h], dread_RTHP[r, t, h]
                for p in range(width):
                    dread_P[p] = share * dy_P[p]


@fast_kernel
def add_queries(C_RTN: Floats, dC_HRTN: Floats, dC_RTN: Floats, dG_RHT: Doubles) -> None:
    """Add up the gradients that the heads' reading gives to the queries they share, and to G."""
    heads, rows, size, width = dC_HRTN.shape
    for r in range(rows):
        for t in range(size):
            C_N, dC_N = C_RTN[r, t], dC_RTN[r, t]
            for h in range(heads):
                more_N, dot = dC_HRTN[h, r, t], _ZERO
                for n in range(width):
                    dC_N[n] += more_N[n]
                for n in range(width):
                    dot += C_N[n] * more_N[n]
                dG_RHT[r, h, t] += np.float64(dot)


@fast_kernel
def add_up(S_RNE: Floats, G_RHT: Doubles, chunks: int) -> None:
    """Turn what each row writes into the memory before it, in place; `chunks` rows are a document."""
    rows, keys, channels = S_RNE.shape
    heads = G_RHT.shape[1]
    width = channels // heads
    now_NE = np.empty((keys, channels), np.float32)
    for r in range(rows):
        if r % chunks == 0:
            now_NE[:] = 0
        for h in range(heads):
            share, first = exp2(np.float32(LOG2_E * G_RHT[r, h, -1])), h * width
            for n in range(keys):
                S_P, now_P = S_RNE[r, n, first : first + width], now_NE[n, first : first + width]
                for p in range(width):
                    before = now_P[p]
                    now_P[p] = share * before + S_P[p]
                    S_P[p] = before


@fast_kernel
def add_up_backward(dS_RNE: Floats, S_RNE: Floats, G_RHT: Doubles, chunks: int, dG_RHT: Doubles) -> None:
    """Turn gradients of the memory before each row, from its own reading, into those after it, in place.

    Add what the row's decay gets.
    """
    rows, keys, channels = S_RNE.shape
    heads = G_RHT.shape[1]
    width = channels // heads
    now_NE = np.empty((keys, channels), np.float32)
    for r in range(rows - 1, -1, -1):
        if r % chunks == chunks - 1:
            now_NE[:] = 0
        for h in range(heads):
            share, first, dot = exp2(np.float32(LOG2_E * G_RHT[r, h, -1])), h * width, 0.0
            for n in range(keys):
                dS_P, now_P = dS_RNE[r, n, first : first + width], now_NE[n, first : first + width]
                S_P, part = S_RNE[r, n, first : first + width], _ZERO
                for p in range(width):
                    part += now_P[p] * S_P[p]
                for p in range(width):
                    after = now_P[p]
                    now_P[p] = share * after + dS_P[p]
                    dS_P[p] = after
                dot += np.float64(part)
            dG_RHT[r, h, -1] += np.float64(share) * dot
