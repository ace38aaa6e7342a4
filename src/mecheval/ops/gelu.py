"""The exact GELU: y = x Φ(x), where Φ is the normal distribution's, with its slope Φ(x) + x φ(x) from the same pass.

PyTorch computes Φ and φ again for the gradient, which takes twice as long as the values. For a >= 0 the fast path
takes 1 - Φ(a) = exp(-a²/2) P(t) with t = 1 / (1 + 0.3 a), where P is a polynomial.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.fastmath import LOG2_E, exp2
from mecheval.ops.rows import Floats

MANY = 1 << 14
"""Number of values from which the loops are faster, measured."""
_ZERO, _HALVED, _ONE = np.float32(0), np.float32(-LOG2_E / 2), np.float32(1)
_HEIGHT = np.float32(1 / math.sqrt(2 * math.pi))  # φ(0)
_RATE = np.float32(0.3)
# Minimax polynomial P of t, without constant term, for the relative error of the tail (2e-7) up to a = 14.5.
_P1 = np.float32(0.11963200736948869)
_P2 = np.float32(0.1207121337727376)
_P3 = np.float32(0.1001759648883945)
_P4 = np.float32(0.1276917079188353)
_P5 = np.float32(-0.052033881123635536)
_P6 = np.float32(0.2045566213449853)
_P7 = np.float32(-0.15615834421991187)
_P8 = np.float32(0.03542370834988977)


def gelu(x: Tensor) -> Tensor:
    """x Φ(x), element by element."""
    if use_fast(x) and x.numel() >= MANY and x.requires_grad and torch.is_grad_enabled():
        y: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
        return y
    return gelu_reference(x)


def gelu_reference(x: Tensor) -> Tensor:
    """`gelu` in PyTorch."""
    return F.gelu(x)


@fast_kernel
def _forward(x_N: Floats, y_N: Floats, slope_N: Floats) -> None:
    for n in range(len(x_N)):
        x = x_N[n]
        t = _ONE / (_ONE + _RATE * abs(x))
        high = ((_P8 * t + _P7) * t + _P6) * t + _P5
        polynomial = ((((high * t + _P4) * t + _P3) * t + _P2) * t + _P1) * t
        bell = exp2(_HALVED * x * x)
        tail = bell * polynomial
        below = _ONE - tail if x > _ZERO else tail
        y_N[n] = x * below
        slope_N[n] = below + x * bell * _HEIGHT


class _Gelu(torch.autograd.Function):
    """The loop under autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.detach().contiguous()
        y, slope = torch.empty_like(x), torch.empty_like(x)
        _forward(x.view(-1).numpy(), y.view(-1).numpy(), slope.view(-1).numpy())
        ctx.save_for_backward(slope)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        slope: Tensor = ctx.saved_tensors[0]
        return dy * slope
