"""The loss of a language model's head: the mean cross-entropy of the targets.

    l_vn = w_v·h_n        loss = Σ_n (log Σ_v exp(l_vn) - l_tn) / N, with t the target of n
                          dloss/dl_vn = (softmax_v(l_vn) - [v = t]) / N

With a vocabulary of thousands, the logits of a few predictions are the largest activations of a step. PyTorch makes
four arrays of their size; here is one, which becomes its own gradient. Its rows are tokens, so that inner loops have a
prediction in each lane.

Legend: N predictions, V tokens, D width; h (N, D) what the head reads, w (V, D) its weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import use_fast
from mecheval.ops.fastmath import LOG2_E, exp2

LANES, MANY = 16, 1 << 16
"""Numbers of predictions and of logits from which the loops are faster, measured."""
TERMS = 64
"""Number of terms that are added up in single precision; sums of thousands would lose digits."""
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_LOG2_E, _ZERO, _ONE, _LOWEST = np.float32(LOG2_E), np.float32(0), np.float32(1), np.float32(-np.inf)


def head_loss(h: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The mean loss (), given what the head reads (B, K, D), its weights (V, D) and the targets (B, K) below V."""
    predictions = targets.numel()
    if use_fast(h, weight) and predictions >= LANES and predictions * len(weight) >= MANY:
        loss: Tensor = _HeadLoss.apply(h.flatten(0, 1), weight, targets.flatten())  # type: ignore[no-untyped-call]
        return loss
    return head_loss_reference(h, weight, targets)


def head_loss_reference(h: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """`head_loss` in PyTorch."""
    return F.cross_entropy(F.linear(h, weight).flatten(0, 1), targets.flatten())


@fast_kernel
def _raise(l_N: Floats, most_N: Floats) -> None:
    for n in range(len(l_N)):
        most_N[n] = max(most_N[n], l_N[n])


@fast_kernel
def _exponentiate(l_N: Floats, most_N: Floats, sum_N: Floats) -> None:
    for n in range(len(l_N)):
        p = exp2((l_N[n] - most_N[n]) * _LOG2_E)
        l_N[n] = p
        sum_N[n] += p


@fast_kernel
def _multiply(l_N: Floats, by_N: Floats) -> None:
    for n in range(len(l_N)):
        l_N[n] *= by_N[n]


@fast_kernel
def _to_gradient(l_VN: Floats, target_N: Ints) -> float:
    """Turn the logits into their gradient, and return the loss."""
    vocabulary, count = l_VN.shape
    right_N, most_N = np.empty(count, np.float32), np.full(count, _LOWEST, np.float32)
    sum_N, total_N = np.empty(count, np.float32), np.zeros(count, np.float64)
    for n in range(count):
        right_N[n] = l_VN[target_N[n], n]
    for v in range(vocabulary):
        _raise(l_VN[v], most_N)
    for start in range(0, vocabulary, TERMS):
        for n in range(count):
            sum_N[n] = _ZERO
        for v in range(start, min(vocabulary, start + TERMS)):
            _exponentiate(l_VN[v], most_N, sum_N)
        for n in range(count):
            total_N[n] += sum_N[n]
    loss = 0.0
    for n in range(count):
        loss += np.log(total_N[n]) + most_N[n] - right_N[n]
        sum_N[n] = 1.0 / (total_N[n] * count)
    for v in range(vocabulary):
        _multiply(l_VN[v], sum_N)
    for n in range(count):
        l_VN[target_N[n], n] -= _ONE / np.float32(count)
    return float(loss / count)


class _HeadLoss(torch.autograd.Function):
    """The products and the loops under autograd."""

    @staticmethod
    def forward(ctx: Any, h_ND: Tensor, w_VD: Tensor, target_N: Tensor) -> Tensor:
        h_ND, w_VD = h_ND.detach(), w_VD.detach()
        dl_VN, targets = w_VD @ h_ND.mT, target_N.numpy()
        if targets.min() < 0 or targets.max() >= len(w_VD):  # the kernel would write outside of the array
            raise IndexError(f"head_loss: targets from {targets.min()} to {targets.max()}, of {len(w_VD)} tokens")
        loss = _to_gradient(dl_VN.numpy(), targets)
        ctx.save_for_backward(h_ND, w_VD, dl_VN)
        return h_ND.new_tensor(loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, Tensor, None]:
        h_ND, w_VD, dl_VN = ctx.saved_tensors
        return dl_VN.mT @ w_VD * dloss, dl_VN @ (h_ND * dloss), None
