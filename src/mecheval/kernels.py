"""How this package compiles a numba kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])

REASSOCIATED = {"reassoc", "contract", "nsz", "arcp"}
"""Allowed changes to the order of float operations; NaN and infinity keep their meaning."""


def kernel(function: F) -> F:
    """Compile to machine code, cached on disk; no fast-math, so that results are the same everywhere."""
    return _compile(function)


def fast_kernel(function: F) -> F:
    """As `kernel`, with additions reassociated and products fused, so that sums over an array vectorise."""
    return _compile(function, fastmath=REASSOCIATED)


def _compile(function: F, **options: Any) -> F:
    compiled = numba.njit(cache=True, error_model="numpy", **options)(function)
    # Numba's cache only notices changes of the kernel's own file, not of the kernels that it calls and that were
    # compiled into it. So it gets a stamp of the whole package to compare.
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None and hasattr(cache_file, "_source_stamp"):
        file, depth = Path(function.__code__.co_filename), function.__module__.count(".")
        cache_file._source_stamp = _stamp(file.parents[depth - 1] if depth else file)
    return cast(F, compiled)


@lru_cache
def _stamp(root: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the source files of a package (its folder), or of the one file."""
    files = sorted(root.rglob("*.py")) if root.is_dir() else [root]
    return tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files)
