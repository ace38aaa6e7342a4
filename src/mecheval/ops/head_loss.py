"""The loss of a language model's head: the mean cross-entropy of the targets.

    l_vn = w_v·h_n        loss = Σ_n (log Σ_v exp(l_vn) - l_tn) / N, with t the target of n
                          dloss/dl_vn = (softmax_v(l_vn) - [v = t]) / N

With a vocabulary of thousands, the logits of a few predictions are the largest activations of a step. PyTorch makes
four arrays of their size; here is one, which becomes its own gradient but for a factor of each prediction, which the
smaller sides of the products get instead. Its rows are tokens, so that loops over blocks of rows have a prediction in
each lane.

Legend: N predictions, V tokens, D width; h (N, D) what the head reads, w (V, D) its weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.fastmath import LOG2_E, exp2

LANES, MANY = 16, 1 << 16
"""Numbers of predictions and of logits from which the loops are faster, measured."""
BLOCK = 4096
"""Number of logits that one loop passes over: as many as stay in the first cache."""
ROWS = 64
"""Largest number of tokens in such a block, whose terms are added up in single precision; sums of thousands would lose
digits."""
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_LOG2_E, _LOWEST = np.float32(LOG2_E), np.float32(-np.inf)


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
def _add(p_N: Floats, sum_N: Floats) -> None:
    for n in range(len(p_N)):
        sum_N[n] += p_N[n]


@fast_kernel
def _exponentiate(l_N: Floats, most_N: Floats) -> None:
    for n in range(len(l_N)):
        l_N[n] = exp2((l_N[n] - most_N[n]) * _LOG2_E)


@fast_kernel
def _to_gradient(l_VN: Floats, target_N: Ints, scale_N: Floats) -> float:
    """Turn the logits into their gradient but for a factor of each prediction, `scale_N`, and return the loss.

    The loops see a block of rows as one: a row is too short to be worth a loop. What they find for each place in a
    block is put together by halving it.
    """
    vocabulary, count = l_VN.shape
    rows = ROWS
    while rows > 1 and rows * count > BLOCK:
        rows //= 2
    size, end = rows * count, vocabulary * count
    logits = l_VN.reshape(end)
    most, room = np.full(size, _LOWEST, np.float32), np.empty(size, np.float32)
    right_N, total_N = np.empty(count, np.float32), np.zeros(count, np.float64)
    for n in range(count):
        right_N[n] = l_VN[target_N[n], n]
    for start in range(0, end, size):
        piece = logits[start : min(start + size, end)]
        _raise(piece, most[: len(piece)])
    half = size // 2
    while half >= count:
        _raise(most[half : 2 * half], most[:half])
        half //= 2
    for i in range(count, size):
        most[i] = most[i - count]
    for start in range(0, end, size):
        piece = logits[start : min(start + size, end)]
        _exponentiate(piece, most[: len(piece)])
        for i in range(size):
            room[i] = piece[i] if i < len(piece) else 0
        half = size // 2
        while half >= count:
            _add(room[half : 2 * half], room[:half])
            half //= 2
        for n in range(count):
            total_N[n] += room[n]
    loss = 0.0
    for n in range(count):
        loss += np.log(total_N[n]) + most[n] - right_N[n]
    for n in range(count):
        scale_N[n] = 1.0 / (total_N[n] * count)
        l_VN[target_N[n], n] -= np.float32(total_N[n])
    return float(loss / count)


class _HeadLoss(torch.autograd.Function):
    """The products and the loops under autograd."""

    @staticmethod
    def forward(ctx: Any, h_ND: Tensor, w_VD: Tensor, target_N: Tensor) -> Tensor:
        h_ND, w_VD = h_ND.detach(), w_VD.detach()
        dl_VN, targets = w_VD @ h_ND.mT, target_N.numpy()
        if targets.min() < 0 or targets.max() >= len(w_VD):  # the kernel would write outside of the array
            raise IndexError(f"head_loss: targets from {targets.min()} to {targets.max()}, of {len(w_VD)} tokens")
        scale_N1 = h_ND.new_empty(len(h_ND), 1)
        loss = _to_gradient(dl_VN.numpy(), targets, scale_N1[:, 0].numpy())
        ctx.save_for_backward(h_ND, w_VD, dl_VN, scale_N1)
        return h_ND.new_tensor(loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, Tensor, None]:
        h_ND, w_VD, dl_VN, scale_N1 = ctx.saved_tensors
        scale_N1 = scale_N1 * dloss
        return dl_VN.mT @ w_VD * scale_N1, dl_VN @ (h_ND * scale_N1), None
