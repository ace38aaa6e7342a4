"""The one way this project compiles a numba kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile to machine code, cached on disk; no fast-math, so that results are the same everywhere."""
    compiled: F = numba.njit(cache=True, error_model="numpy")(function)
    return compiled


def fast_kernel(function: F) -> F:
    """As `kernel`, with additions reassociated and products fused, so that sums over an array vectorise."""
    compiled: F = numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})(
        function
    )
    return compiled
