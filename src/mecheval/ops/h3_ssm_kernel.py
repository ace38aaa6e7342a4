"""The loops that turn the parameters of H3's two state space models into convolution kernels.

Shapes: L length, D channels, N states, H heads, M modes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import fast_kernel

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
C128 = NDArray[np.complex128]


@fast_kernel
def shift_forward(B_DN: F32, C_DN: F32, kernel_LD: F32) -> None:
    """Write the cross-correlation of B and C at lags 0 .. L-1; lags of N and more are zero."""
    length, channels = kernel_LD.shape
    states = B_DN.shape[1]
    for d in range(channels):
        for lag in range(min(length, states)):
            total = np.float32(0.0)
            for n in range(states - lag):
                total += B_DN[d, n] * C_DN[d, lag + n]
            kernel_LD[lag, d] = total
    kernel_LD[states:] = 0


@fast_kernel
def shift_backward(B_DN: F32, C_DN: F32, dkernel_LD: F32, dB_DN: F32, dC_DN: F32) -> None:
    """Add the gradients to dB_DN and dC_DN, which start at zero."""
    length, channels = dkernel_LD.shape
    states = B_DN.shape[1]
    for d in range(channels):
        for lag in range(min(length, states)):
            g = dkernel_LD[lag, d]
            for n in range(states - lag):
                dB_DN[d, n] += g * C_DN[d, lag + n]
            for n in range(states - lag):
                dC_DN[d, lag + n] += g * B_DN[d, n]


@fast_kernel
def _discretise(
    A_real_M: F64, A_imag_M: F32, B_M2: F32, C_M2: F32, dt: float, u: C128, weight: C128, step: C128
) -> None:
    """Write u = 1/(1-z), the mode's weight C B dt u and its step (1+z) u, where z = dt A / 2."""
    for m in range(len(A_real_M)):
        x, y = 0.5 * dt * A_real_M[m], 0.5 * dt * A_imag_M[m]
        size = (1.0 - x) * (1.0 - x) + y * y
        u[m] = complex((1.0 - x) / size, y / size)
        weight[m] = complex(B_M2[m, 0], B_M2[m, 1]) * complex(C_M2[m, 0], C_M2[m, 1]) * u[m] * dt
        step[m] = complex(1.0 + x, y) * u[m]


@fast_kernel
def diagonal_forward(A_real_HM: F64, A_imag_HM: F32, B_HM2: F32, C_HM2: F32, dt_H: F64, kernel_LH: F32) -> None:
    """Write 2 Re Σ_m weight_m step_m^l, by one multiplication for each further l.

    In double precision, where a thousand multiplications lose nothing that single precision would show.
    """
    heads, modes = A_real_HM.shape
    u, weight, step = np.empty((3, modes), np.complex128)
    for h in range(heads):
        _discretise(A_real_HM[h], A_imag_HM[h], B_HM2[h], C_HM2[h], dt_H[h], u, weight, step)
        real, imag, step_real, step_imag = weight.real.copy(), weight.imag.copy(), step.real.copy(), step.imag.copy()
        for lag in range(len(kernel_LH)):
            total = 0.0
            for m in range(modes):
                total += real[m]
            for m in range(modes):
                a, b = real[m], imag[m]
                real[m] = a * step_real[m] - b * step_imag[m]
                imag[m] = a * step_imag[m] + b * step_real[m]
            kernel_LH[lag, h] = 2.0 * total


@fast_kernel
def diagonal_backward(
    A_real_HM: F64, A_imag_HM: F32, B_HM2: F32, C_HM2: F32, dt_H: F64, dkernel_LH: F32,
    dA_real_HM: F64, dA_imag_HM: F32, dB_HM2: F32, dC_HM2: F32, ddt_H: F64,
) -> None:  # fmt: skip
    """Write the gradients.

    All follow from the polynomial p(r) = Σ_l dkernel[l] r^l and its slope p'(r) at each mode's step r, by Horner's
    rule: the loss is 2 Re Σ_m weight_m p(step_m), so that its derivative by any z is 2 Re of a product with dz.
    """
    heads, modes = A_real_HM.shape
    u, weight, step = np.empty((3, modes), np.complex128)
    share = np.empty(modes)
    for h in range(heads):
        dt = dt_H[h]
        _discretise(A_real_HM[h], A_imag_HM[h], B_HM2[h], C_HM2[h], dt, u, weight, step)
        step_real, step_imag = step.real.copy(), step.imag.copy()
        p_real, p_imag, slope_real, slope_imag = np.zeros((4, modes))
        for lag in range(len(dkernel_LH) - 1, -1, -1):
            g = dkernel_LH[lag, h]
            for m in range(modes):
                a, b, x, y = step_real[m], step_imag[m], slope_real[m], slope_imag[m]
                slope_real[m] = x * a - y * b + p_real[m]
                slope_imag[m] = x * b + y * a + p_imag[m]
                x, y = p_real[m], p_imag[m]
                p_real[m] = x * a - y * b + g
                p_imag[m] = x * b + y * a
        for m in range(modes):
            B, C = complex(B_HM2[h, m, 0], B_HM2[h, m, 1]), complex(C_HM2[h, m, 0], C_HM2[h, m, 1])
            p, slope = complex(p_real[m], p_imag[m]), complex(slope_real[m], slope_imag[m])
            by_z = weight[m] * u[m] * (p + 2.0 * u[m] * slope)
            dA_real_HM[h, m], dA_imag_HM[h, m] = dt * by_z.real, -dt * by_z.imag
            by_BC = p * u[m]
            share[m] = 2.0 * (by_BC * B * C).real + (by_z * complex(A_real_HM[h, m], A_imag_HM[h, m])).real
            by_B, by_C = dt * by_BC * C, dt * by_BC * B
            dB_HM2[h, m, 0], dB_HM2[h, m, 1] = 2.0 * by_B.real, -2.0 * by_B.imag
            dC_HM2[h, m, 0], dC_HM2[h, m, 1] = 2.0 * by_C.real, -2.0 * by_C.imag
        ddt = 0.0
        for m in range(modes):
            ddt += share[m]
        ddt_H[h] = ddt
