"""Chooses the implementation of an operation: the readable reference, the fast CPU path, or a GPU kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import function

Path = Literal["auto", "reference", "fast"]
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


def use_fast(*tensors: Tensor) -> bool:
    """Whether the fast CPU path applies: float32 on the CPU, unless the reference was asked for.

    Double precision goes through the reference, which is what makes gradcheck a test of the maths.
    Asking for "fast" where it does not apply is an error, so that a test of it cannot pass by accident.
    """
    chosen = _path.get()
    for t in tensors:
        if t.dtype is not torch.float32 or not t.is_cpu:
            if chosen == "fast":
                raise ValueError("the fast CPU path takes float32 tensors on the CPU")
            return False
    return chosen != "reference"


def use_gpu(package: str, *tensors: Tensor) -> bool:
    """Whether a GPU package is used: it is installed, all tensors are on a GPU, and no other path was asked for."""
    return _path.get() == "auto" and all(t.is_cuda for t in tensors) and find_spec(package) is not None


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's decorator of this name, which costs as much as a small kernel, only where it makes a difference.

    Unless a gradient is itself differentiated, gradients are off while it is computed, and there is nothing to guard.
    """
    guarded = function.once_differentiable(backward)

    @wraps(backward)
    def either(ctx: Any, *gradients: Tensor) -> Any:
        return (guarded if torch.is_grad_enabled() else backward)(ctx, *gradients)

    return either
