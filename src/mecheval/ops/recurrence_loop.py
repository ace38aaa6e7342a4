"""The linear recurrence in full, as compiled loops over time under autograd.

The forward pass saves few memories, and the backward pass recomputes the others. Documents stand end to end, the first
token of each in `starts_B` and their queries from `asked_B` on, both with the total at their end; a padded batch is the
case in which all have one length. The queries of a document come in order of time: `at_Q`, their positions in it,
ascends; `which_Q` are their places in q, o, dq, do. What a recurrence does not have, of g, beta, a and b, has a last
axis of size zero.

Legend: B documents, T tokens of all of them, H heads, N = B H memories, D = Dk key size, V = Dv value size, Q queries;
I one number for each head, or none; M segments of all documents and heads, S steps of one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import copy_table, fast_kernel
from mecheval.ops.dispatch import once_differentiable
from mecheval.ops.ragged import Documents, arrays, layout
from mecheval.ops.recurrence_kernel import (
    corrected_backward,
    corrected_step,
    forget_negligible,
    multiply,
    read,
    read_backward,
    replace,
    replace_backward,
    replaced_backward,
    scale,
    step,
    step_backward,
)

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SEGMENT = 16
"""Steps between saved memories: saved ones take a sixteenth of all, and the recomputed ones fit the second cache."""


class Parts(NamedTuple):
    """What a recurrence may have beside queries, keys and values; see `linear_recurrence`."""

    g: Tensor | None = None
    beta: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None
    initial_state: Tensor | None = None


def in_loops(
    q: Tensor, k: Tensor, v: Tensor, parts: Parts, at: Tensor | None, final: bool
) -> tuple[Tensor, Tensor | None]:
    """The result, and the memory after the last position if it is wanted."""
    g, beta, a, b, initial_state = parts
    none = k.new_empty(*k.shape[:3], 0)
    if g is not None:
        w = g.exp() if g.ndim == 4 else g.exp().unsqueeze(3).expand(k.shape)
    else:
        w = none if a is None else torch.ones_like(k)
    beta = none if beta is None else beta.unsqueeze(3)
    a, b = (none, none) if a is None or b is None else (a, b)
    S = k.new_empty(0, *k.shape[2:], v.shape[3]) if initial_state is None else initial_state
    inputs = (q, k, v, w, beta, a, b, S)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    return _Loop.apply(*inputs, at, keep, final)  # type: ignore[no-any-return, no-untyped-call]


def _in_time_order(at: Tensor | None, documents: Documents) -> tuple[Tensor, Tensor, Tensor]:
    """Where the queries of each document begin (B + 1,), their positions (Q,), and which query each one is (Q,)."""
    if at is None:
        return documents.starts, documents.positions, torch.arange(len(documents.positions))
    asked_B = torch.arange(len(at) + 1) * at.shape[1]
    at_BK, which_BK = at.sort(dim=1, stable=True)
    return asked_B, at_BK.flatten(), (which_BK + asked_B[:-1, None]).flatten()


@fast_kernel
def _first_segment(b: int, start: int) -> int:
    """Where the segments of document b begin, whose first token is given; for B and T, how much room they take.

    Each document has room for one segment more than it fills, so that those before it do not have to be counted.
    """
    return start // SEGMENT + b


@fast_kernel
def _forward(
    q_QHD: Floats,
    k_THD: Floats,
    v_THV: Floats,
    w_THD: Floats,
    beta_THI: Floats,
    a_THD: Floats,
    b_THD: Floats,
    start_NDV: Floats,
    starts_B: Ints,
    asked_B: Ints,
    at_Q: Ints,
    which_Q: Ints,
    o_QHV: Floats,
    S_NDV: Floats,
    found_THV: Floats,
    saved_MDV: Floats,
) -> None:
    """Fill o, and in `found` m or u for the backward pass.

    Also the memory after the last position and that before each segment, unless there is no room for them. Without a
    start, the memory starts at zero.
    """
    heads, value_size = v_THV.shape[1:]
    fades, replaces, corrects = w_THD.shape[2] > 0, beta_THI.shape[2] > 0, b_THD.shape[2] > 0
    a_D = np.empty(k_THD.shape[2], np.float32)
    two, e_V = np.empty((2, k_THD.shape[2], value_size), np.float32), np.empty(value_size, np.float32)
    for n in range((len(starts_B) - 1) * heads):
        b, h = n // heads, n % heads
        first, group, asked = starts_B[b], _first_segment(b, starts_B[b]), asked_B[b]
        S, after = two[0], two[1]
        if len(start_NDV) > 0:
            copy_table(start_NDV[n], S)
        else:
            S[:] = 0
        for t in range(starts_B[b + 1] - first):
            if t % SEGMENT == 0 and len(saved_MDV) > 0:
                copy_table(S, saved_MDV[(group + t // SEGMENT) * heads + h])
            w, k, v = w_THD[first + t, h], k_THD[first + t, h], v_THV[first + t, h]
            if corrects:
                u = found_THV[first + t, h]
                read(a_THD[first + t, h], S, u)
                corrected_step(S, w, k, v, b_THD[first + t, h], u, after)
            elif replaces:
                m = found_THV[first + t, h]
                if fades:
                    multiply(w, k, a_D)
                    read(a_D, S, m)
                else:
                    read(k, S, m)
                replace(v, beta_THI[first + t, h], m, e_V)
                step(S, w, k, e_V, after)
            else:
                step(S, w, k, v, after)
            S, after = after, S
            while asked < asked_B[b + 1] and at_Q[asked] == t:
                read(q_QHD[which_Q[asked], h], S, o_QHV[which_Q[asked], h])
                asked += 1
        if len(S_NDV) > 0:
            copy_table(S, S_NDV[n])


@fast_kernel
def _backward(
    q_QHD: Floats,
    k_THD: Floats,
    v_THV: Floats,
    w_THD: Floats,
    beta_THI: Floats,
    a_THD: Floats,
    b_THD: Floats,
    starts_B: Ints,
    asked_B: Ints,
    at_Q: Ints,
    which_Q: Ints,
    found_THV: Floats,
    saved_MDV: Floats,
    do_QHV: Floats,
    dS_NDV: Floats,
    dq_QHD: Floats,
    dk_THD: Floats,
    dv_THV: Floats,
    dw_THD: Floats,
    dbeta_THI: Floats,
    da_THD: Floats,
    db_THD: Floats,
    dstart_NDV: Floats,
) -> None:
    """Fill the gradients, that of the start if there is room for it. Without dS, nothing depends on the last memory.

    From the last segment to the first: recompute its memories, then walk it back.
    """
    heads, value_size, key_size = *v_THV.shape[1:], k_THD.shape[2]
    replaces, corrects = beta_THI.shape[2] > 0, b_THD.shape[2] > 0
    S_SDV = np.empty((SEGMENT + 1, key_size, value_size), np.float32)  # S_SDV[i]: the memory before step i
    dS, room_V = np.empty((key_size, value_size), np.float32), np.empty(value_size, np.float32)
    for n in range((len(starts_B) - 1) * heads):
        b, h = n // heads, n % heads
        first, group, asked = starts_B[b], _first_segment(b, starts_B[b]), asked_B[b + 1]
        length = starts_B[b + 1] - first
        if len(dS_NDV) > 0:
            copy_table(dS_NDV[n], dS)
        else:
            dS[:] = 0
        for segment in range((length - 1) // SEGMENT, -1, -1):
            start, stop = segment * SEGMENT, min((segment + 1) * SEGMENT, length)
            copy_table(saved_MDV[(group + segment) * heads + h], S_SDV[0])
            for t in range(first + start, first + stop):
                i, w, k = t - first - start, w_THD[t, h], k_THD[t, h]
                if corrects:
                    corrected_step(S_SDV[i], w, k, v_THV[t, h], b_THD[t, h], found_THV[t, h], S_SDV[i + 1])
                elif replaces:
                    scale(found_THV[t, h], beta_THI[t, h], room_V)
                    step(S_SDV[i], w, k, room_V, S_SDV[i + 1])
                else:
                    step(S_SDV[i], w, k, v_THV[t, h], S_SDV[i + 1])
            for t in range(first + stop - 1, first + start - 1, -1):
                i, w, k, v = t - first - start, w_THD[t, h], k_THD[t, h], v_THV[t, h]
                while asked > asked_B[b] and at_Q[asked - 1] == t - first:
                    asked -= 1
                    which = which_Q[asked]
                    read_backward(S_SDV[i + 1], q_QHD[which, h], do_QHV[which, h], dS, dq_QHD[which, h])
                dw, dk, dv = dw_THD[t, h], dk_THD[t, h], dv_THV[t, h]
                read(k, dS, dv)
                if corrects:
                    a, u = a_THD[t, h], found_THV[t, h]
                    read(b_THD[t, h], dS, room_V)
                    corrected_backward(S_SDV[i], w, v, a, u, room_V, dS, dw, dk, da_THD[t, h], db_THD[t, h])
                elif replaces:
                    replace_backward(found_THV[t, h], beta_THI[t, h], room_V, dv, dbeta_THI[t, h])
                    replaced_backward(S_SDV[i], w, k, room_V, dv, dS, dw, dk)
                else:
                    step_backward(S_SDV[i], w, v, dS, dw, dk)
                if i % 4 == 0:  # every time would take as long as reading; four steps hardly get to subnormal numbers
                    forget_negligible(dS)
        if len(dstart_NDV) > 0:
            copy_table(dS, dstart_NDV[n])


class _Loop(torch.autograd.Function):
    """The numba kernels under autograd."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor | None]:
        *tensors, at, keep, final = given
        q, k, v, *_, start = inputs = [x.detach().contiguous() for x in tensors]
        documents = layout(k)
        order = (documents.starts, *_in_time_order(at, documents))
        number, memory = len(documents.lengths), (*k.shape[2:], v.shape[3])
        o, found = q.new_empty(*q.shape[:3], v.shape[3]), torch.empty_like(v)
        S = q.new_empty(number if final else 0, *memory)
        saved = q.new_empty(_first_segment(number, len(documents.positions)) if keep else 0, *memory)
        _forward(*arrays(*inputs, *order, o, S, found, saved))
        ctx.save_for_backward(*inputs[:7], *order, found, saved)
        ctx.starts = len(start) > 0
        ctx.set_materialize_grads(False)
        return o, S if final else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, dS: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, *_ = inputs = ctx.saved_tensors
        memories = (len(inputs[7]) - 1, *k.shape[2:], v.shape[3])
        grads = [torch.empty_like(x) for x in inputs[:7]]
        dstart = k.new_empty(memories if ctx.starts else (0, *memories[1:]))
        do = v.new_zeros(*q.shape[:3], v.shape[3]) if do is None else do.contiguous()
        dS = k.new_empty(0, *memories[1:]) if dS is None else dS.contiguous()
        _backward(*arrays(*inputs, do, dS, *grads, dstart))
        return *grads, dstart if ctx.starts else None, None, None, None
