"""The two ways in which this package compiles numba kernels, and how kernels copy.

A kernel becomes one of numba's when it is first called, so that a program that calls none does not load numba.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mecheval.errors import UserError

F = TypeVar("F", bound=Callable[..., object])

REASSOCIATED = {"reassoc", "contract", "nsz", "arcp"}
"""Allowed changes to the order of float operations; NaN and infinity keep their meaning."""

SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "ENABLE_AVX", "DISABLE_INTEL_SVML")
"""Settings of numba on which machine code depends, and which numba's own cache does not compare."""


def check_compiled() -> None:
    """Raise an error if kernels run as plain Python, which gives other last digits than those that a run's id means."""
    from numba.core import config

    if config.DISABLE_JIT:  # type: ignore[attr-defined]
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
    return cast(F, _Kernel(cast(FunctionType, function), options))


class _Kernel:
    """A kernel that has not been called yet; it has the attributes of numba's kernel."""

    def __init__(self, function: FunctionType, options: dict[str, Any]) -> None:
        self.py_func, self.options = function, options
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__

    def __call__(self, *given: Any) -> Any:
        return _loaded(self)(*given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions are about this object
            raise AttributeError(name)
        return getattr(_loaded(self), name)


@cache
def _loaded(kernel: _Kernel) -> Any:
    """Numba's kernel, which from now on also has the name of this one in its module, because that is called faster."""
    import numba

    from mecheval.kernel_cache import KernelCache

    function = kernel.py_func
    _know_kernels()
    compiled = numba.njit(error_model="numpy", **kernel.options)(function)
    if hasattr(compiled, "_cache"):  # otherwise, compiling is switched off
        with suppress(RuntimeError):  # there is no folder for a cache that can be written; every process compiles
            compiled._cache = KernelCache(function, tuple(sorted(_sources(function))))
    if function.__globals__.get(function.__name__) is kernel:
        function.__globals__[function.__name__] = compiled
    return compiled


@cache
def _know_kernels() -> None:
    """Tell numba what a `_Kernel` is that another kernel calls."""
    from numba.extending import typeof_impl

    @typeof_impl.register(_Kernel)
    def typeof(kernel: _Kernel, context: Any) -> Any:
        return typeof_impl(_loaded(kernel), context)


def _sources(function: Callable[..., object]) -> set[tuple[str, ...]]:
    """Everything that a kernel's machine code depends on: settings, files with their sizes and times, global values.

    A kernel that is defined below its caller is missing from the caller's globals, but it is then in the same file.
    """
    from numba.core import config

    found: set[tuple[str, ...]] = {(name, repr(getattr(config, name, None))) for name in SETTINGS}
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
