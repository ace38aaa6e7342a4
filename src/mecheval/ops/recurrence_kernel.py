"""The linear recurrence for the CPU: a forward kernel that saves few memories, a backward one that recomputes the rest.

    u = S^T a;  S <- diag(w) S + b u^T + k v^T;  o = S^T q

The queries of a document come in order of time: `at_BK` ascending, `which_BK` their places in q, o, dq, do. Without
corrections, a and b are empty. If b alone is empty, it is -k, and a step writes k (v - u)^T, which is cheaper. Every
inner loop runs over values, which are contiguous in S, v, o and u.

Legend: B batch, L length, H heads, D = Dk key size, V = Dv value size, K queries, G segments, T steps of a segment.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import copy_table, fast_kernel

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SEGMENT = 16
"""Steps between saved memories: saved ones take a sixteenth of all, and the recomputed ones fit the second cache."""

_NEGLIGIBLE = np.float32(1e-30)
# Cotangents below it become zero: they decay like the memory, and subnormal numbers are slow.
_ZERO = np.float32(0.0)


def segments(length: int) -> int:
    """How many memories the forward saves."""
    return -(-length // SEGMENT)


@fast_kernel
def _read(q_D: Floats, S_DV: Floats, o_V: Floats) -> None:
    """Write S^T q to o."""
    o_V[:] = 0
    whole = len(q_D) // 4 * 4
    for d in range(0, whole, 4):  # four rows at a time, so that o is loaded and stored a fourth as often
        q_0, q_1, q_2, q_3 = q_D[d], q_D[d + 1], q_D[d + 2], q_D[d + 3]
        S_0, S_1, S_2, S_3 = S_DV[d], S_DV[d + 1], S_DV[d + 2], S_DV[d + 3]
        for j in range(len(o_V)):
            o_V[j] += q_0 * S_0[j] + q_1 * S_1[j] + q_2 * S_2[j] + q_3 * S_3[j]
    for d in range(whole, len(q_D)):
        q, S_V = q_D[d], S_DV[d]
        for j in range(len(o_V)):
            o_V[j] += q * S_V[j]


@fast_kernel
def _step(S_DV: Floats, w_D: Floats, k_D: Floats, v_V: Floats, next_DV: Floats) -> None:
    """Write the memory after a step without a correction to `next`.

    Not to S itself, here and below: where arrays overlap, the loop is not vectorised, and three to five times slower.
    """
    for d in range(len(w_D)):
        w, k, S_V, next_V = w_D[d], k_D[d], S_DV[d], next_DV[d]
        for j in range(len(v_V)):
            next_V[j] = w * S_V[j] + k * v_V[j]


@fast_kernel
def _replaced(S_DV: Floats, w_D: Floats, k_D: Floats, v_V: Floats, a_D: Floats, e_V: Floats, next_DV: Floats) -> None:
    """Write e = v - u, and the memory after a step that writes k e^T to `next`."""
    _read(a_D, S_DV, e_V)
    for j in range(len(v_V)):
        e_V[j] = v_V[j] - e_V[j]
    _step(S_DV, w_D, k_D, e_V, next_DV)


@fast_kernel
def _corrected(
    S_DV: Floats, w_D: Floats, k_D: Floats, v_V: Floats, a_D: Floats, b_D: Floats, u_V: Floats, next_DV: Floats
) -> None:
    """Write u, and the memory after a step with a correction to `next`."""
    _read(a_D, S_DV, u_V)
    for d in range(len(w_D)):
        w, k, b, S_V, next_V = w_D[d], k_D[d], b_D[d], S_DV[d], next_DV[d]
        for j in range(len(v_V)):
            next_V[j] = w * S_V[j] + k * v_V[j] + b * u_V[j]


@fast_kernel
def loop_forward(
    q_BKHD: Floats,
    k_BLHD: Floats,
    v_BLHV: Floats,
    w_BLHD: Floats,
    a_BLHD: Floats,
    b_BLHD: Floats,
    start_BHDV: Floats,
    at_BK: Ints,
    which_BK: Ints,
    o_BKHV: Floats,
    S_BHDV: Floats,
    saved_BGHDV: Floats,
) -> None:
    """Fill o, the memory after the last position, and, unless it has no room (G = 0), that before each segment."""
    batch, length, heads, _ = k_BLHD.shape
    queries, corrects, replaces = at_BK.shape[1], len(b_BLHD) > 0, len(a_BLHD) > 0
    u_V, two = np.empty(v_BLHV.shape[3], np.float32), np.empty((2, *start_BHDV.shape[2:]), np.float32)
    for b in range(batch):
        for h in range(heads):
            S, after = two[0], two[1]
            copy_table(start_BHDV[b, h], S)
            asked = 0
            for t in range(length):
                if t % SEGMENT == 0 and saved_BGHDV.shape[1] > 0:
                    copy_table(S, saved_BGHDV[b, t // SEGMENT, h])
                w, k, v = w_BLHD[b, t, h], k_BLHD[b, t, h], v_BLHV[b, t, h]
                if corrects:
                    _corrected(S, w, k, v, a_BLHD[b, t, h], b_BLHD[b, t, h], u_V, after)
                elif replaces:
                    _replaced(S, w, k, v, a_BLHD[b, t, h], u_V, after)
                else:
                    _step(S, w, k, v, after)
                S, after = after, S
                while asked < queries and at_BK[b, asked] == t:
                    which = which_BK[b, asked]
                    _read(q_BKHD[b, which, h], S, o_BKHV[b, which, h])
                    asked += 1
            copy_table(S, S_BHDV[b, h])


@fast_kernel
def _read_backward(S_DV: Floats, q_D: Floats, do_V: Floats, dS_DV: Floats, dq_D: Floats) -> None:
    for d in range(len(q_D)):
        q, S_V, dS_V, dq = q_D[d], S_DV[d], dS_DV[d], _ZERO
        for j in range(len(do_V)):
            dq += S_V[j] * do_V[j]
            dS_V[j] += q * do_V[j]
        dq_D[d] = dq


@fast_kernel
def _step_backward(
    S_DV: Floats, w_D: Floats, k_D: Floats, v_V: Floats, dS_DV: Floats, dw_D: Floats, dk_D: Floats, dv_V: Floats
) -> None:
    """From the cotangent dS of the memory after a step to that of the memory S before it, in place."""
    _read(k_D, dS_DV, dv_V)
    for d in range(len(w_D)):
        w, S_V, dS_V, dw, dk = w_D[d], S_DV[d], dS_DV[d], _ZERO, _ZERO
        for j in range(len(v_V)):
            dS = dS_V[j]
            dw += dS * S_V[j]
            dk += dS * v_V[j]
            dS = dS * w
            dS_V[j] = _ZERO if abs(dS) < _NEGLIGIBLE else dS
        dw_D[d], dk_D[d] = dw, dk


@fast_kernel
def _corrected_backward(
    S_DV: Floats, w_D: Floats, k_D: Floats, v_V: Floats, a_D: Floats, b_D: Floats, u_V: Floats, du_V: Floats,
    dS_DV: Floats, dw_D: Floats, dk_D: Floats, dv_V: Floats, da_D: Floats, db_D: Floats,
) -> None:  # fmt: skip
    """The same of a step with a correction; du is room for the cotangent of u."""
    _read(k_D, dS_DV, dv_V)
    _read(b_D, dS_DV, du_V)
    for d in range(len(w_D)):
        w, a, S_V, dS_V = w_D[d], a_D[d], S_DV[d], dS_DV[d]
        dw, dk, da, db = _ZERO, _ZERO, _ZERO, _ZERO
        for j in range(len(v_V)):
            dS = dS_V[j]
            dw += dS * S_V[j]
            dk += dS * v_V[j]
            da += S_V[j] * du_V[j]
            db += dS * u_V[j]
            dS = w * dS + a * du_V[j]
            dS_V[j] = _ZERO if abs(dS) < _NEGLIGIBLE else dS
        dw_D[d], dk_D[d], da_D[d], db_D[d] = dw, dk, da, db


@fast_kernel
def _replaced_backward(
    S_DV: Floats, w_D: Floats, k_D: Floats, a_D: Floats, e_V: Floats, dS_DV: Floats, dw_D: Floats, dk_D: Floats,
    dv_V: Floats, da_D: Floats,
) -> None:  # fmt: skip
    """The same of a step that writes k e^T; dv is the cotangent of e, too, and minus that of u."""
    _read(k_D, dS_DV, dv_V)
    for d in range(len(w_D)):
        w, a, S_V, dS_V = w_D[d], a_D[d], S_DV[d], dS_DV[d]
        dw, dk, da = _ZERO, _ZERO, _ZERO
        for j in range(len(e_V)):
            dS = dS_V[j]
            dw += dS * S_V[j]
            dk += dS * e_V[j]
            da -= S_V[j] * dv_V[j]
            dS = w * dS - a * dv_V[j]
            dS_V[j] = _ZERO if abs(dS) < _NEGLIGIBLE else dS
        dw_D[d], dk_D[d], da_D[d] = dw, dk, da


@fast_kernel
def loop_backward(
    q_BKHD: Floats,
    k_BLHD: Floats,
    v_BLHV: Floats,
    w_BLHD: Floats,
    a_BLHD: Floats,
    b_BLHD: Floats,
    at_BK: Ints,
    which_BK: Ints,
    saved_BGHDV: Floats,
    do_BKHV: Floats,
    dq_BKHD: Floats,
    dk_BLHD: Floats,
    dv_BLHV: Floats,
    dw_BLHD: Floats,
    da_BLHD: Floats,
    db_BLHD: Floats,
    dS_BHDV: Floats,
) -> None:
    """Fill the gradients, and turn the cotangent of the last memory, dS, into that of the first.

    From the last segment to the first: recompute its memories, then walk it back.
    """
    batch, length, heads, key_size = k_BLHD.shape
    queries, corrects, replaces, value_size = at_BK.shape[1], len(b_BLHD) > 0, len(a_BLHD) > 0, v_BLHV.shape[3]
    S_TDV = np.empty((SEGMENT + 1, key_size, value_size), np.float32)  # S_TDV[i]: the memory before step i
    u_TV = np.empty((SEGMENT, value_size), np.float32)
    du_V = np.empty(value_size, np.float32)
    for b in range(batch):
        for h in range(heads):
            dS = dS_BHDV[b, h]
            asked = queries
            for segment in range((length - 1) // SEGMENT, -1, -1):
                start, stop = segment * SEGMENT, min((segment + 1) * SEGMENT, length)
                copy_table(saved_BGHDV[b, segment, h], S_TDV[0])
                for t in range(start, stop):
                    i, w, k, v = t - start, w_BLHD[b, t, h], k_BLHD[b, t, h], v_BLHV[b, t, h]
                    if corrects:
                        _corrected(S_TDV[i], w, k, v, a_BLHD[b, t, h], b_BLHD[b, t, h], u_TV[i], S_TDV[i + 1])
                    elif replaces:
                        _replaced(S_TDV[i], w, k, v, a_BLHD[b, t, h], u_TV[i], S_TDV[i + 1])
                    else:
                        _step(S_TDV[i], w, k, v, S_TDV[i + 1])
                for t in range(stop - 1, start - 1, -1):
                    i, w, k, v = t - start, w_BLHD[b, t, h], k_BLHD[b, t, h], v_BLHV[b, t, h]
                    while asked > 0 and at_BK[b, asked - 1] == t:
                        asked -= 1
                        which = which_BK[b, asked]
                        _read_backward(
                            S_TDV[i + 1], q_BKHD[b, which, h], do_BKHV[b, which, h], dS, dq_BKHD[b, which, h]
                        )
                    dw, dk, dv = dw_BLHD[b, t, h], dk_BLHD[b, t, h], dv_BLHV[b, t, h]
                    if corrects:
                        _corrected_backward(
                            S_TDV[i], w, k, v, a_BLHD[b, t, h], b_BLHD[b, t, h], u_TV[i], du_V, dS, dw, dk, dv,
                            da_BLHD[b, t, h], db_BLHD[b, t, h],
                        )  # fmt: skip
                    elif replaces:
                        _replaced_backward(S_TDV[i], w, k, a_BLHD[b, t, h], u_TV[i], dS, dw, dk, dv, da_BLHD[b, t, h])
                    else:
                        _step_backward(S_TDV[i], w, k, v, dS, dw, dk, dv)
