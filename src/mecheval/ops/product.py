"""Products of float32 matrices: the one place that decides which library computes them.

PyTorch's float32 products go through a library that leaves up to half of an AMD processor with AVX-512 unused: 119
GFLOP/s of 270 on a core of Zen 5, where oneDNN, which comes with PyTorch, reaches 262; 100 of 112 and 110 on Zen 4.
Elsewhere (Intel, AVX2) there is nothing to gain.

Which library it is depends on the kind of processor, the instruction set and the shapes alone, never on a
measurement, so machines of one kind compute the same bytes. `chosen()` says it in words, for a run's environment.

The call of oneDNN is private to PyTorch. Where it is missing, or errs on small whole numbers, the plain product serves.
Where the fast path is asked for (`ops/dispatch.py`), oneDNN computes all products on any processor, so that tests of
the fast path test it, too.

Legend: M rows of the result, K terms of each sum, N columns of the result; (..., K) is a stack of such rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.machine import processor
from mecheval.ops.dispatch import is_forced, once_differentiable, use_fast


class Gain(NamedTuple):
    """The products that oneDNN computes faster on a processor."""

    least: int  # multiply-adds of the smallest one
    turned: bool  # also those with a transposed first factor, as the gradient of weights has


GAINS = {25: Gain(16_000_000, turned=False), 26: Gain(2_000_000, turned=True)}
"""By family of AMD processors with AVX-512: 25 is Zen 4, 26 is Zen 5. Measured by whole training steps."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X Wᵀ + b, as `F.linear`: (..., K), (N, K), (N,) -> (..., N)."""
    if _is_worth_it(x.numel() * len(weight)) and use_fast(x, weight) and not torch.is_autocast_enabled("cpu"):
        if not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)):
            return _by_onednn(x, weight, bias)
        y: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y
    return F.linear(x, weight, bias)


def product(a: Tensor, b: Tensor) -> Tensor:
    """A B, (M, K), (K, N) -> (M, N), for code that has its own gradients."""
    worth = _is_worth_it(a.numel() * b.shape[1], turned=a.stride(1) != 1)
    return _by_onednn(a, b.mT) if worth and use_fast(a, b) else a @ b


class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        return linear(x, self.weight, self.bias)


def chosen() -> str:
    """Which library computes products here, in words."""
    gain = _gain()
    return "plain" if gain is None else f"oneDNN from {gain.least:,} multiply-adds{' (all)' if gain.turned else ''}"


class _Linear(torch.autograd.Function):
    """The map under autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _by_onednn(x.detach(), weight.detach(), None if bias is None else bias.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        dy_MN, (want_x, want_weight, want_bias) = dy.reshape(-1, dy.shape[-1]), ctx.needs_input_grad
        return (
            product(dy_MN, weight).view(x.shape) if want_x else None,
            product(dy_MN.mT, x.reshape(-1, x.shape[-1])) if want_weight else None,
            dy_MN.sum(0) if want_bias else None,
        )


def _is_worth_it(multiply_adds: int, turned: bool = False) -> bool:
    if is_forced():
        return multiply_adds > 0 and _works()
    gain = _gain()
    return gain is not None and multiply_adds >= gain.least and (gain.turned or not turned)


@cache
def _gain() -> Gain | None:
    """What oneDNN gains here; None if that is nothing, or if it cannot be had."""
    vendor, family = processor()
    if vendor != "AuthenticAMD" or torch.backends.cpu.get_cpu_capability() != "AVX512" or not _works():
        return None
    return GAINS[min(family, max(GAINS))] if family >= min(GAINS) else None


@cache
def _works() -> bool:
    """Whether the private call is there and multiplies small whole numbers without error, in every layout used."""
    a = torch.arange(64 * 48.0).reshape(64, 48) % 7
    b = torch.arange(48 * 32.0).reshape(48, 32) % 5
    try:
        found = (_by_onednn(x, y, z) for x in (a, a.mT.contiguous().mT) for y in (b.mT, b.mT.contiguous())
                 for z in (None, b[0]))  # fmt: skip
        return all(torch.equal(y, a @ b + z) for y, z in zip(found, [torch.zeros(32), b[0]] * 4, strict=True))
    except (AttributeError, RuntimeError, TypeError):
        return False


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` by oneDNN: (..., K), (N, K), (N,) -> (..., N)."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(_dense(x), _dense(weight), bias, "none", [], "")
    return y


def _dense(x: Tensor) -> Tensor:
    """X without gaps between its rows or columns: with them, oneDNN would take a thousand times as long."""
    if x.is_contiguous() or (x.ndim == 2 and x.mT.is_contiguous()):
        return x
    return x.contiguous()
