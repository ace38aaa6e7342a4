"""The linear recurrence in full, as compiled loops over time under autograd.

The delta rule is a correction of rank one: with w = exp(g) and S' the memory before the step,

    S + k (beta (v - S^T k))^T  where S = diag(w) S'   is   diag(w) S' + (beta k) (v - S'^T a)^T

with a = w k. So one kernel serves all; that the correction has the key of the write saves it a part of the work.

Legend: B batch, L length, H heads, D = Dk key size, V = Dv value size, K queries, G segments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mecheval.ops.queries import in_time_order
from mecheval.ops.recurrence_kernel import loop_backward, loop_forward, segments


class Parts(NamedTuple):
    """What a recurrence may have beside queries, keys and values; see `linear_recurrence`."""

    g: Tensor | None = None
    beta: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None
    initial_state: Tensor | None = None


def in_loops(q: Tensor, k: Tensor, v: Tensor, parts: Parts, at: Tensor | None) -> tuple[Tensor, Tensor]:
    """The result, and the memory after the last position."""
    batch, length, heads, key_size = k.shape
    g, beta, a, b, initial_state = parts
    w = torch.ones_like(k) if g is None else g.exp().reshape(*g.shape, *[1] * (4 - g.ndim)).expand(k.shape)
    none = k.new_empty(0, 0, 0, 0)
    if beta is not None:
        k, a, b = beta.unsqueeze(3) * k, w * k, none
    elif a is None or b is None:
        a = b = none
    S = k.new_zeros(batch, heads, key_size, v.shape[3]) if initial_state is None else initial_state
    at_BK, which_BK = in_time_order(at, batch, length)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, w, a, b, S))
    return _Loop.apply(q, k, v, w, a, b, S, at_BK, which_BK, keep)  # type: ignore[no-any-return, no-untyped-call]


class _Loop(torch.autograd.Function):
    """The numba kernels under autograd."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        *tensors, keep = given
        inputs = [x.detach().contiguous() for x in tensors]
        q, k, v = inputs[:3]
        (batch, length, heads, key_size), value_size = k.shape, v.shape[3]
        o_BKHV = q.new_empty(*q.shape[:3], value_size)
        S_BHDV = q.new_empty(batch, heads, key_size, value_size)
        saved_BGHDV = q.new_empty(batch, segments(length) if keep else 0, heads, key_size, value_size)
        loop_forward(*(x.numpy() for x in (*inputs, o_BKHV, S_BHDV, saved_BGHDV)))
        ctx.save_for_backward(*inputs, saved_BGHDV)
        return o_BKHV, S_BHDV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_BKHV: Tensor, dS_BHDV: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in inputs[:6]]
        dS_BHDV = dS_BHDV.contiguous().clone()  # becomes the gradient of the initial state
        arrays = (*inputs[:6], *inputs[7:], do_BKHV.contiguous(), *grads, dS_BHDV)
        loop_backward(*(x.numpy() for x in arrays))
        return *grads, dS_BHDV, None, None, None
