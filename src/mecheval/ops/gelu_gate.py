"""A gate by GELU, as in the recurrent block of Griffin: y = h ⊙ gelu(g), with GELU's tanh in its sigmoid form.

    gelu(g) = g σ(2 √(2/π) (g + 0.044715 g³))

Legend: N rows (batch and time), C channels; h, g and y (..., C).
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
from mecheval.ops.fastmath import sigmoid
from mecheval.ops.rows import Floats, as_rows

CUBIC = 0.044715
_ONE, _CUBIC, _THRICE = np.float32(1), np.float32(CUBIC), np.float32(3 * CUBIC)
_RATE = np.float32(2 * math.sqrt(2 / math.pi))


def gelu_gate(h: Tensor, g: Tensor) -> Tensor:
    """h ⊙ gelu(g)."""
    if use_fast(h, g):
        y: Tensor = _GeluGate.apply(h, g)  # type: ignore[no-untyped-call]
        return y
    return gelu_gate_reference(h, g)


def gelu_gate_reference(h: Tensor, g: Tensor) -> Tensor:
    """`gelu_gate` in PyTorch."""
    return h * F.gelu(g, approximate="tanh")


@fast_kernel
def _sigmoid(g: np.float32) -> np.float32:
    """σ(2 √(2/π) (g + 0.044715 g³))."""
    return sigmoid(_RATE * g * (_ONE + _CUBIC * g * g))


@fast_kernel
def _forward(h_NC: Floats, g_NC: Floats, y_NC: Floats) -> None:
    rows, channels = h_NC.shape
    for n in range(rows):
        for c in range(channels):
            y_NC[n, c] = h_NC[n, c] * g_NC[n, c] * _sigmoid(g_NC[n, c])


@fast_kernel
def _backward(h_NC: Floats, g_NC: Floats, dy_NC: Floats, dh_NC: Floats, dg_NC: Floats) -> None:
    """Fill the gradients. GELU is computed again, which is cheaper than to keep it.

    Each inner loop touches few arrays: LLVM vectorises a loop only if it has few pairs of them to tell apart.
    """
    rows, channels = h_NC.shape
    gelu_C, slope_C = np.empty(channels, np.float32), np.empty(channels, np.float32)
    for n in range(rows):
        for c in range(channels):
            g = g_NC[n, c]
            s = _sigmoid(g)
            gelu_C[c] = g * s
            slope_C[c] = s + g * s * (_ONE - s) * _RATE * (_ONE + _THRICE * g * g)
        for c in range(channels):
            dh_NC[n, c] = dy_NC[n, c] * gelu_C[c]
        for c in range(channels):
            dg_NC[n, c] = dy_NC[n, c] * h_NC[n, c] * slope_C[c]


class _GeluGate(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, g: Tensor) -> Tensor:
        h, g = h.detach().contiguous(), g.detach().contiguous()
        y = torch.empty_like(h)
        _forward(*as_rows(h, g, y))
        ctx.save_for_backward(h, g)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        h, g = ctx.saved_tensors
        dh, dg = torch.empty_like(h), torch.empty_like(g)
        _backward(*as_rows(h, g, dy.contiguous(), dh, dg))
        return dh, dg
