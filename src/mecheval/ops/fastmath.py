"""Elementary functions for numba loops, free of branches and calls so that LLVM vectorises the loop around them."""

from __future__ import annotations

import numpy as np

from mecheval.kernels import fast_kernel

LOG2_E = float(np.log2(np.e))
LN_2 = float(np.log(2.0))

# Below this exp2 is zero: well before subnormal numbers (2^-126), on which common CPUs take a hundred times longer.
_LOWEST = np.float32(-100.0)
_MANTISSA_BITS = np.int32(23)

# Minimax polynomial of 2^f on [-1/2, 1/2] for the relative error (9e-8), its constant term fixed at 1: a decay
# near one is multiplied up over thousands of steps, so its error has to vanish with the exponent.
_C1 = np.float32(0.6931469775997534)
_C2 = np.float32(0.2402224208535773)
_C3 = np.float32(0.055507337423067335)
_C4 = np.float32(0.009671512641767048)
_C5 = np.float32(0.0013264727490639064)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_LOG2_E = np.float32(LOG2_E)
_MOST = np.float32(100.0)  # a sigmoid below 2^-100 makes no difference


@fast_kernel
def exp2(z: np.float32) -> np.float32:
    """2^z to a relative error below 2e-7, for z < 127; zero for z < -100, NaN for NaN.

    z = whole + f with |f| <= 1/2; 2^f is a polynomial, and 2^whole is added to the bits of its exponent.
    """
    low = z < _LOWEST
    z = _LOWEST if low else z
    whole = np.rint(z)
    f = z - whole
    power = np.float32(((((_C5 * f + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _ONE)
    exponent = np.int32(np.int32(whole) << _MANTISSA_BITS)
    return _ZERO if low else np.int32(power.view(np.int32) + exponent).view(np.float32)


@fast_kernel
def sigmoid(z: np.float32) -> np.float32:
    """1 / (1 + exp(-z)), but not below 2^-100."""
    power = -_LOG2_E * z
    return _ONE / (_ONE + exp2(_MOST if power > _MOST else power))
