"""Steps of the linear recurrence as compiled loops, forward and backward; `recurrence_loop.py` goes through documents.

    S <- diag(w) S + k e^T                what is written, e, is v, or with beta:
    e = beta m  where  m = v - S^T (w k)  what the memory lacks, with S as it was before the step
    S <- diag(w) S + k v^T + b u^T        with a and b, where u = S^T a, again of the memory before the step
    o = S^T q                             after the step

Every inner loop runs over values, which are contiguous in S, v, o and u. No step calls another, nor allocates: handing
arrays on takes as long as a row. Without decay, w is empty.

Legend: D = Dk key size, V = Dv value size, I one number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import fast_kernel

Floats = NDArray[np.float32]

_NEGLIGIBLE = np.float32(1e-30)
_ZERO = np.float32(0.0)


@fast_kernel
def read(q_D: Floats, S_DV: Floats, o_V: Floats) -> None:
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
def multiply(x_D: Floats, y_D: Floats, xy_D: Floats) -> None:
    """Fill the product of each two numbers."""
    for d in range(len(xy_D)):
        xy_D[d] = x_D[d] * y_D[d]


@fast_kernel
def replace(v_V: Floats, beta_I: Floats, m_V: Floats, e_V: Floats) -> None:
    """Turn what is found in place of a value into what is missing, m, and fill what is written, e."""
    for j in range(len(v_V)):
        m_V[j] = v_V[j] - m_V[j]
        e_V[j] = beta_I[0] * m_V[j]


@fast_kernel
def scale(x_V: Floats, by_I: Floats, y_V: Floats) -> None:
    """Fill x times a number."""
    for j in range(len(x_V)):
        y_V[j] = by_I[0] * x_V[j]


@fast_kernel
def step(S_DV: Floats, w_D: Floats, k_D: Floats, e_V: Floats, next_DV: Floats) -> None:
    """Write the memory after a step that writes k e^T to `next`.

    Not to S itself, here and below: where arrays overlap, the loop is not vectorised, and three to five times slower.
    """
    for d in range(len(k_D)):
        k, S_V, next_V = k_D[d], S_DV[d], next_DV[d]
        if len(w_D) > 0:
            w = w_D[d]
            for j in range(len(e_V)):
                next_V[j] = w * S_V[j] + k * e_V[j]
        else:
            for j in range(len(e_V)):
                next_V[j] = S_V[j] + k * e_V[j]


@fast_kernel
def corrected_step(
    S_DV: Floats, w_D: Floats, k_D: Floats, v_V: Floats, b_D: Floats, u_V: Floats, next_DV: Floats
) -> None:
    """Write the memory after a step with a correction to `next`."""
    for d in range(len(k_D)):
        w, k, b, S_V, next_V = w_D[d], k_D[d], b_D[d], S_DV[d], next_DV[d]
        for j in range(len(v_V)):
            next_V[j] = w * S_V[j] + k * v_V[j] + b * u_V[j]


@fast_kernel
def read_backward(S_DV: Floats, q_D: Floats, do_V: Floats, dS_DV: Floats, dq_D: Floats) -> None:
    """Fill dq, and add what is read to the cotangent of the memory."""
    for d in range(len(q_D)):
        q, S_V, dS_V, dq = q_D[d], S_DV[d], dS_DV[d], _ZERO
        for j in range(len(do_V)):
            dq += S_V[j] * do_V[j]
        for j in range(len(do_V)):
            dS_V[j] += q * do_V[j]
        dq_D[d] = dq


@fast_kernel
def step_backward(S_DV: Floats, w_D: Floats, v_V: Floats, dS_DV: Floats, dw_D: Floats, dk_D: Floats) -> None:
    """From the cotangent dS of the memory after a step to that of the memory S before it, in place; e is v.

    What is read from dS, the cotangent of e, is the caller's to find before.
    """
    for d in range(len(dk_D)):
        S_V, dS_V, dw, dk = S_DV[d], dS_DV[d], _ZERO, _ZERO
        if len(w_D) > 0:
            w = w_D[d]
            for j in range(len(v_V)):
                dw += dS_V[j] * S_V[j]
                dk += dS_V[j] * v_V[j]
            for j in range(len(v_V)):
                dS_V[j] *= w
            dw_D[d] = dw
        else:
            for j in range(len(v_V)):
                dk += dS_V[j] * v_V[j]
        dk_D[d] = dk


@fast_kernel
def replace_backward(m_V: Floats, beta_I: Floats, e_V: Floats, dv_V: Floats, dbeta_I: Floats) -> None:
    """Turn the cotangent of e into that of m, which is that of v, too; and fill e again."""
    dbeta = _ZERO
    for j in range(len(m_V)):
        dbeta += dv_V[j] * m_V[j]
    for j in range(len(m_V)):
        e_V[j] = beta_I[0] * m_V[j]
        dv_V[j] *= beta_I[0]
    dbeta_I[0] = dbeta


@fast_kernel
def replaced_backward(
    S_DV: Floats, w_D: Floats, k_D: Floats, e_V: Floats, dv_V: Floats, dS_DV: Floats, dw_D: Floats, dk_D: Floats
) -> None:
    """The same of a step that writes k e^T."""
    for d in range(len(k_D)):
        k, S_V, dS_V, dw, dk, da = k_D[d], S_DV[d], dS_DV[d], _ZERO, _ZERO, _ZERO
        if len(w_D) > 0:
            w = w_D[d]
            for j in range(len(e_V)):
                dk += dS_V[j] * e_V[j]
                da += S_V[j] * dv_V[j]
                dw += S_V[j] * (dS_V[j] - k * dv_V[j])
            for j in range(len(e_V)):
                dS_V[j] = w * (dS_V[j] - k * dv_V[j])
            dw_D[d], dk_D[d] = dw, dk - w * da
        else:
            for j in range(len(e_V)):
                dk += dS_V[j] * e_V[j] - S_V[j] * dv_V[j]
            for j in range(len(e_V)):
                dS_V[j] -= k * dv_V[j]
            dk_D[d] = dk


@fast_kernel
def corrected_backward(
    S_DV: Floats, w_D: Floats, v_V: Floats, a_D: Floats, u_V: Floats, du_V: Floats, dS_DV: Floats,
    dw_D: Floats, dk_D: Floats, da_D: Floats, db_D: Floats,
) -> None:  # fmt: skip
    """The same of a step with a correction."""
    for d in range(len(w_D)):
        w, a, S_V, dS_V = w_D[d], a_D[d], S_DV[d], dS_DV[d]
        dw, dk, da, db = _ZERO, _ZERO, _ZERO, _ZERO
        for j in range(len(v_V)):
            dw += dS_V[j] * S_V[j]
            dk += dS_V[j] * v_V[j]
            da += S_V[j] * du_V[j]
            db += dS_V[j] * u_V[j]
        for j in range(len(v_V)):
            dS_V[j] = w * dS_V[j] + a * du_V[j]
        dw_D[d], dk_D[d], da_D[d], db_D[d] = dw, dk, da, db


@fast_kernel
def forget_negligible(dS_DV: Floats) -> None:
    """Turn the smallest cotangents to zero: they decay like the memory, and subnormal numbers are slow."""
    for d in range(len(dS_DV)):
        dS_V = dS_DV[d]
        for j in range(len(dS_V)):
            dS_V[j] = _ZERO if abs(dS_V[j]) < _NEGLIGIBLE else dS_V[j]
