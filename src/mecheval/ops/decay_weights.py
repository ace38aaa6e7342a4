"""How much of what one position wrote is left at another, when each head has one decay.

    W_kl = exp(G_k - G_l)    for l <= at_k, where G sums the log-decays up to a position; 0 for later positions

The sums are in double precision, because a strong decay would take the last digits of the weak ones beside it.

Legend: N memories, K positions that read, L positions that were written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable
from mecheval.ops.fastmath import LOG2_E, exp2

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


def decay_weights(G_NK: Tensor, G_NL: Tensor, at_NK: Tensor) -> Tensor:
    """The weights (N, K, L) in single precision, for sums in double precision and the positions of the readers.

    Weights below 2^-100 are zero.
    """
    W_NKL: Tensor = _Weights.apply(G_NK, G_NL, at_NK)  # type: ignore[no-untyped-call]
    return W_NKL


class _Weights(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, G_NK: Tensor, G_NL: Tensor, at_NK: Tensor) -> Tensor:
        W_NKL = torch.empty(*G_NK.shape, G_NL.shape[1])
        _forward(*(x.detach().contiguous().numpy() for x in (G_NK, G_NL, at_NK, W_NKL)))
        ctx.save_for_backward(W_NKL)
        return W_NKL

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dW_NKL: Tensor) -> tuple[Tensor, Tensor, None]:
        [W_NKL] = ctx.saved_tensors
        memories, readers, length = W_NKL.shape
        dG_NK, dG_NL = (torch.empty(memories, size, dtype=torch.float64) for size in (readers, length))
        _backward(*(x.numpy() for x in (W_NKL, dW_NKL.contiguous(), dG_NK, dG_NL)))
        return dG_NK, dG_NL, None


@fast_kernel
def _forward(G_NK: Doubles, G_NL: Doubles, at_NK: Ints, W_NKL: Floats) -> None:
    for n in range(len(G_NK)):
        for k in range(G_NK.shape[1]):
            G, G_L, W_L, until = G_NK[n, k], G_NL[n], W_NKL[n, k], at_NK[n, k] + 1
            for j in range(until):
                W_L[j] = exp2(np.float32(LOG2_E * (G - G_L[j])))
            W_L[until:] = 0


@fast_kernel
def _backward(W_NKL: Floats, dW_NKL: Floats, dG_NK: Doubles, dG_NL: Doubles) -> None:
    """Row sums and column sums of W dW."""
    for n in range(len(W_NKL)):
        dG_NL[n] = 0
        for k in range(W_NKL.shape[1]):
            W_L, dW_L, dG_L, total = W_NKL[n, k], dW_NKL[n, k], dG_NL[n], 0.0
            for j in range(len(W_L)):
                total += np.float64(W_L[j] * dW_L[j])
            for j in range(len(W_L)):
                dG_L[j] -= np.float64(W_L[j] * dW_L[j])
            dG_NK[n, k] = total
