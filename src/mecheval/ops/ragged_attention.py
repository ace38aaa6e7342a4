"""Softmax attention to the past in documents that are end to end, without padding.

    p_ts = exp(q_t·k_s / √E) / Σ_{r<=t} exp(q_t·k_r / √E)        o_t = Σ_{s<=t} p_ts v_s

A library's attention wants a padded batch, in which most pairs of tokens are padding where few documents are long. The
loops here read queries, keys and values where the projection has left them, side by side.

Legend: T tokens of all documents, B documents, L length of the longest, H heads, E width of a head, D = H E, X = 3 D.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.fastmath import LOG2_E, exp2
from mecheval.ops.ragged import Documents

SPARSE = 1 / 3
"""The largest share of the pairs of a padded batch that the loops may have. They take a third of the library's time for
a sixth of the pairs of trees, and as long for a quarter of the pairs of documents of up to 512 tokens."""
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST = np.float32(-np.inf)


def ragged_attention(qkv_1TX: Tensor, heads: int, documents: Documents) -> Tensor:
    """What all heads read, (1, T, D), given all queries, then all keys, then all values of each token."""
    pairs = int((documents.lengths**2).sum())
    if use_fast(qkv_1TX) and pairs <= SPARSE * len(documents.lengths) * documents.longest**2:
        o: Tensor = _RaggedAttention.apply(qkv_1TX, heads, documents)  # type: ignore[no-untyped-call]
        return o
    return ragged_attention_reference(qkv_1TX, heads, documents)


def ragged_attention_reference(qkv_1TX: Tensor, heads: int, documents: Documents) -> Tensor:
    """`ragged_attention` by the library's, on a padded batch."""
    qkv_BLX = documents.pad(qkv_1TX)
    q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in qkv_BLX.chunk(3, dim=2))  # (B, H, L, E)
    o_BHLE = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return documents.pack(o_BHLE.transpose(1, 2).flatten(2))


@fast_kernel
def _dot(a_E: Floats, b_E: Floats) -> np.float32:
    total = _ZERO
    for e in range(len(a_E)):
        total += a_E[e] * b_E[e]
    return total


@fast_kernel
def _add(scale: np.float32, a_E: Floats, to_E: Floats) -> None:
    for e in range(len(a_E)):
        to_E[e] += scale * a_E[e]


@fast_kernel
def _weigh(q_E: Floats, qkv_TX: Floats, start: int, end: int, k: int, rate: np.float32, p_L: Floats) -> None:
    """Fill the weights of the tokens from `start` to `end`, for a query; keys begin at column k."""
    most, total = _LOWEST, _ZERO
    for s in range(start, end):
        p = rate * _dot(q_E, qkv_TX[s, k : k + len(q_E)])
        p_L[s - start] = p
        most = max(most, p)
    for s in range(end - start):
        p_L[s] = exp2(p_L[s] - most)
        total += p_L[s]
    total = _ONE / total
    for s in range(end - start):
        p_L[s] *= total


@fast_kernel
def _forward(qkv_TX: Floats, starts_B: Ints, heads: int, rate: np.float32, p_L: Floats, o_TD: Floats) -> None:
    """Fill what is read; p_L is room for the weights of a query."""
    width = o_TD.shape[1]
    size = width // heads
    for b in range(len(starts_B) - 1):
        start = starts_B[b]
        for h in range(heads):
            q, k, v = h * size, width + h * size, 2 * width + h * size
            for t in range(start, starts_B[b + 1]):
                o_E = o_TD[t, q : q + size]
                _weigh(qkv_TX[t, q : q + size], qkv_TX, start, t + 1, k, rate, p_L)
                for e in range(size):
                    o_E[e] = _ZERO
                for s in range(start, t + 1):
                    _add(p_L[s - start], qkv_TX[s, v : v + size], o_E)


@fast_kernel
def _backward(
    qkv_TX: Floats, starts_B: Ints, heads: int, rate: np.float32, p_L: Floats, scale: np.float32, o_TD: Floats,
    do_TD: Floats, dqkv_TX: Floats,
) -> None:  # fmt: skip
    """Add the gradients; the weights are computed again."""
    width = o_TD.shape[1]
    size = width // heads
    for b in range(len(starts_B) - 1):
        start = starts_B[b]
        for h in range(heads):
            q, k, v = h * size, width + h * size, 2 * width + h * size
            for t in range(start, starts_B[b + 1]):
                q_E, do_E, dq_E = qkv_TX[t, q : q + size], do_TD[t, q : q + size], dqkv_TX[t, q : q + size]
                _weigh(q_E, qkv_TX, start, t + 1, k, rate, p_L)
                mean = _dot(do_E, o_TD[t, q : q + size])
                for s in range(start, t + 1):
                    p = p_L[s - start]
                    ds = scale * p * (_dot(do_E, qkv_TX[s, v : v + size]) - mean)
                    _add(ds, qkv_TX[s, k : k + size], dq_E)
                    _add(ds, q_E, dqkv_TX[s, k : k + size])
                    _add(p, do_E, dqkv_TX[s, v : v + size])


class _RaggedAttention(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, qkv_1TX: Tensor, heads: int, documents: Documents) -> Tensor:
        qkv_1TX = qkv_1TX.detach().contiguous()
        width = qkv_1TX.shape[2] // 3
        scale = 1 / math.sqrt(width // heads)
        starts_B, room_L = documents.starts.numpy(), np.empty(documents.longest, np.float32)
        rate = np.float32(scale * LOG2_E)
        o_1TD = qkv_1TX.new_empty(1, qkv_1TX.shape[1], width)
        _forward(qkv_1TX[0].numpy(), starts_B, heads, rate, room_L, o_1TD[0].numpy())
        ctx.save_for_backward(qkv_1TX, o_1TD)
        ctx.given = starts_B, heads, rate, room_L, np.float32(scale)
        return o_1TD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_1TD: Tensor) -> tuple[Tensor, None, None]:
        qkv_1TX, o_1TD = ctx.saved_tensors
        dqkv_1TX = torch.zeros_like(qkv_1TX)
        given: list[Any] = [*ctx.given, *(x[0].numpy() for x in (o_1TD, do_1TD.contiguous(), dqkv_1TX))]
        _backward(qkv_1TX[0].numpy(), *given)
        return dqkv_1TX, None, None
