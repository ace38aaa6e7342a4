"""Chooses the implementation of an operation: the readable reference, the fast CPU path, or a GPU kernel.

Our operations compute in float32 on a CPU. Inside `torch.autocast`, where products of PyTorch's own layers are rounded,
they say so by `in_float32` and, for their gradients, by `once_differentiable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib.util import find_spec
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import function

F = TypeVar("F", bound=Callable[..., Any])
Path = Literal["auto", "reference", "fast"]
_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # which torch 2.6 does not have
_path: ContextVar[Path] = ContextVar("mecheval_ops_path", default="auto")


@contextmanager
def path(name: Path) -> Iterator[None]:
    """Make every operation take the named path while the context lasts; "auto" is fast wherever that applies."""
    if name not in ("auto", "reference", "fast"):
        raise ValueError(f"unknown ops path {name!r}; choices: auto, reference, fast")
    token = _path.set(name)
    try:
        yield
    finally:
        _path.reset(token)


def transformed() -> bool:
    """Whether a transform of `torch.func` or `torch.export` is at work, which sees into PyTorch's operations only."""
    return bool(torch._C._are_functorch_transforms_active()) or _exporting()


def use_fast(*tensors: Tensor) -> bool:
    """Whether the fast CPU path applies: float32 on the CPU, unless the reference was asked for or is needed.

    Double precision goes through the reference, which is what makes gradcheck a test of the maths.
    Asking for "fast" where it does not apply is an error, so that a test of it cannot pass by accident.
    """
    chosen = _path.get()
    for t in tensors:
        if t.dtype is not torch.float32 or not t.is_cpu:
            if chosen == "fast":
                raise ValueError("the fast CPU path takes float32 tensors on the CPU")
            return False
    if chosen == "reference" or not transformed():
        return chosen != "reference"
    if chosen == "fast":
        raise ValueError("the fast CPU path does not work inside torch.func")
    return False


def is_forced() -> bool:
    """Whether the fast path was asked for, also where it is no gain."""
    return _path.get() == "fast"


def use_gpu(package: str, *tensors: Tensor) -> bool:
    """Whether a GPU package is used: it is installed, all tensors are on a GPU, and no other path was asked for."""
    return _path.get() == "auto" and all(t.is_cuda for t in tensors) and find_spec(package) is not None


def in_float32(operation: F) -> F:
    """The same operation, which computes in float32 also where autocast is on: narrow tensors are widened first."""

    @wraps(operation)
    def run(*given: Any, **named: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return operation(*given, **named)
        with torch.autocast("cpu", enabled=False):
            return operation(*map(_widened, given), **{name: _widened(value) for name, value in named.items()})

    return cast(F, run)


def once_differentiable(backward: F) -> F:
    """PyTorch's mark of gradients that cannot be differentiated again, here of gradients in float32.

    PyTorch's own costs as much as a small kernel. Unless a gradient is itself differentiated, gradients are off while
    it is computed, and there is nothing to guard.
    """
    guarded = function.once_differentiable(backward)

    @wraps(backward)
    def either(*given: Any) -> Any:
        return (guarded if torch.is_grad_enabled() else backward)(*given)

    return in_float32(cast(F, either))


def _widened(value: Any) -> Any:
    narrow = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) and value.device.type == "cpu"
    return value.float() if narrow else value
