"""The one way this project compiles a numba kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])

REASSOCIATED = {"reassoc", "contract", "nsz", "arcp"}
"""Liberties with the order of float operations; NaN and infinity keep their meaning."""


def kernel(function: F) -> F:
    """Compile to machine code, cached on disk; no fast-math, so that results are the same everywhere."""
    return cast(F, numba.njit(cache=True, error_model="numpy")(function))


def fast_kernel(function: F) -> F:
    """As `kernel`, with additions reassociated and products fused, so that sums over an array vectorise."""
    return cast(F, numba.njit(cache=True, error_model="numpy", fastmath=REASSOCIATED)(function))
