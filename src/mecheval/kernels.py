"""The two ways in which this package compiles numba kernels, where compiled kernels are kept, and how kernels copy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numpy.typing import NDArray

from mecheval.errors import UserError

F = TypeVar("F", bound=Callable[..., object])

REASSOCIATED = {"reassoc", "contract", "nsz", "arcp"}
"""Allowed changes to the order of float operations; NaN and infinity keep their meaning."""

SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "ENABLE_AVX", "DISABLE_INTEL_SVML")
"""Settings of numba on which machine code depends, and which numba's own cache does not compare."""
DIGEST_BYTES = hashlib.sha256().digest_size


def check_compiled() -> None:
    """Raise an error if kernels run as plain Python, which gives other last digits than those that a run's id means."""
    if vars(numba.config)["DISABLE_JIT"]:
        raise UserError("NUMBA_DISABLE_JIT is set: runs would be very slow and have other bytes; unset it to train.")


def kernel(function: F) -> F:
    """Compile to machine code, cached on disk; no fast-math, so that results are the same everywhere."""
    return _compile(function)


def fast_kernel(function: F) -> F:
    """Like `kernel`, but additions may be reordered and products fused, so that sums over arrays vectorise.

    A loop that adds up into a number must not write to one array and read another. LLVM compiles such a loop twice,
    and where the two arrays lie within a few vectors of each other, the plain version runs, whose sum has another
    order: what is computed would depend on where they happen to lie. So a sum has a loop of its own.
    """
    return _compile(function, fastmath=REASSOCIATED)


def _compile(function: F, **options: Any) -> F:
    compiled = numba.njit(error_model="numpy", **options)(function)
    if hasattr(compiled, "_cache"):  # otherwise, compiling is switched off
        with suppress(RuntimeError):  # there is no folder for a cache that can be written; every process compiles
            compiled._cache = _Cache(function)
    return cast(F, compiled)


class _Cache(FunctionCache):
    """Numba's cache on disk, without what can go wrong with it: a kernel is rather compiled again.

    Numba only notices changes of the kernel's own file, not of the kernels and constants that were compiled into it
    from other files. So this cache has a stamp of all of these to compare.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, tuple(sorted(_sources(function))))

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # the disk may be full, or the folder no longer writable
            super().save_overload(sig, data)


class _Files(IndexDataCacheFile):
    """A cache's index and data files. A damaged or emptied file counts as missing, and is written again.

    Machine code has a checksum, because one wrong bit would give wrong numbers, and names what it was compiled from,
    because numba writes the index first, which after a kill leads to the code of an earlier version.
    """

    def load(self, key: Any) -> Any:
        try:
            found = super().load(key)
        except Exception:  # whatever numba makes of a damaged file
            return None
        return found[1] if found is not None and found[0] == (self._source_stamp, key) else None

    def save(self, key: Any, data: Any) -> None:
        super().save(key, ((self._source_stamp, key), data))

    def _load_index(self) -> dict[Any, str]:
        try:
            found = super()._load_index()
        except Exception:
            return {}
        return found if isinstance(found, dict) else {}

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        whole = hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]
        return super()._load_data(name) if whole else None  # which does not look at what stands behind the data

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(content + hashlib.sha256(content).digest())


def _sources(function: Callable[..., object]) -> set[tuple[str, ...]]:
    """Everything that a kernel's machine code depends on: settings, files with their sizes and times, global values.

    A kernel that is defined below its caller is missing from the caller's globals, but it is then in the same file.
    """
    found: set[tuple[str, ...]] = {(name, repr(getattr(numba.config, name, None))) for name in SETTINGS}
    functions = [function]
    for caller in functions:  # the list grows by the functions that are called
        file = Path(caller.__code__.co_filename).stat()
        found.add((caller.__module__, str(file.st_size), str(file.st_mtime_ns)))
        for name in _names(caller.__code__):
            value = caller.__globals__.get(name)
            if isinstance(value, int | float | str | tuple | np.generic):
                found.add((name, repr(value)))
            elif (called := getattr(value, "py_func", None)) is not None and called not in functions:
                functions.append(called)
    return found


def _names(code: CodeType) -> set[str]:
    """Global names in a function's code and in that of the functions inside it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


@kernel
def copy_row(row: NDArray[Any], to: NDArray[Any]) -> None:
    """Copy a row of numbers.

    In kernels, `to[:] = row` means the same, but numba then compiles the texts of its possible errors, which takes
    seconds in every process that compiles.
    """
    for i in range(len(row)):
        to[i] = row[i]


@kernel
def copy_table(table: NDArray[Any], to: NDArray[Any]) -> None:
    """Copy a table of numbers, row by row."""
    for i in range(len(table)):
        copy_row(table[i], to[i])
