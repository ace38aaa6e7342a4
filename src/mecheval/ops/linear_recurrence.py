"""The linear recurrence of matrix memories: each head of each document has a memory S, of keys by values.

    S <- diag(exp(g_t)) S                     decay, for each head or for each key channel
    S <- S + k_t (beta_t (v_t - S^T k_t))^T   with `beta`: the delta rule, which replaces what the key recalls
    S <- S + k_t v_t^T                        without it
    o_t = S^T q_t                             after the update

With `a` and `b`, the memory S' before the step also corrects the step: S <- S + b_t (a_t^T S').

| mixer | g | beta | a, b |
|---|---|---|---|
| RetNet | for each head | | |
| GLA | for each channel | | |
| DeltaNet | | given | |
| Gated DeltaNet | for each head | given | |
| KDA | for each channel | given | |
| RWKV-7 | for each channel | | given |

Mamba-2 is as RetNet, but its heads share keys and queries, for which there is an op of its own (`state_space.py`).
Normalising keys and queries, and scaling queries, belongs to the caller. There are two fast paths. With at most one
decay a head, time steps become matrix products (`recurrence_chunks.py`). Decays of channels would have to be divided
by one another there, which overflows; those memories go through compiled loops over time (`recurrence_loop.py`). So
do small memories by the delta rule, if documents are long, because chunks follow one another and each has too little to
multiply, or end to end, because products need padding.

Legend: B batch, L length, H heads, D = Dk key size, V = Dv value size, K queries, M = L + K.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

import torch
from torch import Tensor

from mecheval.ops.dispatch import in_float32, use_fast, use_gpu
from mecheval.ops.pieces import apart, current
from mecheval.ops.queries import check_at, take
from mecheval.ops.ragged import Documents, documents_now, layout
from mecheval.ops.recurrence_chunks import ONE_CHUNK, in_chunks, with_query_steps
from mecheval.ops.recurrence_loop import Parts, in_loops

FEW = 1024
"""Most key channels, of all heads and documents, up to which loops are faster for a delta rule in several chunks."""
MEMORY = 64 * 128
"""Most numbers of a memory for which they are however many documents there are, and also for documents end to end."""
SUM = 32 * 64
"""Most numbers of a memory that fades and adds for which loops are faster, if it is read everywhere, end to end."""
SMALL = 1 << 19
"""Most numbers of a memory, times tokens and heads, for which loops are faster for any delta rule and sums end to end.

All four are measured, forward and backward, with float32 in 8 lanes; see `_by_products`.
"""


@overload
def linear_recurrence(
    q: Tensor, k: Tensor, v: Tensor, *, g: Tensor | None = None, beta: Tensor | None = None, a: Tensor | None = None,
    b: Tensor | None = None, initial_state: Tensor | None = None, at: Tensor | None = None,
    final_state: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def linear_recurrence(
    q: Tensor, k: Tensor, v: Tensor, *, g: Tensor | None = None, beta: Tensor | None = None, a: Tensor | None = None,
    b: Tensor | None = None, initial_state: Tensor | None = None, at: Tensor | None = None,
    final_state: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@in_float32
def linear_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    initial_state: Tensor | None = None,
    at: Tensor | None = None,
    final_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Write values v (B, L, H, Dv) under keys k (B, L, H, Dk), and read with q; see the module.

    g, at most 0, is (B, L, H) or (B, L, H, Dk); beta (B, L, H); a and b (B, L, H, Dk). The memory starts at
    `initial_state` (B, H, Dk, Dv), or at zero. Without `at`, q is (B, L, H, Dk) and the result (B, L, H, Dv). With
    `at` (B, K), the memory is read only at those positions: q is (B, K, H, Dk) and the result (B, K, H, Dv). With
    `final_state`, the memory after the last position is returned beside the result.
    """
    if (now := current(at)) is not None:
        before = now.recall()
        with apart():
            read, after = linear_recurrence(q, k, v, g=g, beta=beta, a=a, b=b, initial_state=before, final_state=True)
        now.keep(after)
        return (read, after) if final_state else read
    parts = Parts(g, beta, a, b, initial_state)
    documents = documents_now()
    _check(q, k, v, parts, at)
    given = [x for x in (q, k, v, *parts) if x is not None]
    o: Tensor
    S: Tensor | None
    if not use_fast(*given):
        if documents is not None:
            return _in_batch(documents, q, k, v, parts, at)
        if beta is not None and len(given) == 4 and not final_state and use_gpu("fla", *given):
            return _delta_on_gpu(q, k, v, beta, at)
        o, S = linear_recurrence_reference(q, k, v, at=at, **parts._asdict())
    elif not _by_products(k, v, parts, at):
        o, S = in_loops(q, k, v, parts, at, final_state)
    elif documents is not None:
        return _in_batch(documents, q, k, v, parts, at)
    else:
        o, S = in_chunks(q, k, v, g, beta, initial_state, at, final_state)
    if not final_state:
        return o
    assert S is not None
    return o, S


def _in_batch(documents: Documents, q: Tensor, k: Tensor, v: Tensor, parts: Parts, at: Tensor | None) -> Tensor:
    """The result for documents that are end to end, by way of a padded batch."""
    given = [part is not None for part in parts]

    def padded(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        there = iter(more)
        g, beta, a, b, _ = (next(there) if part else None for part in given)
        return linear_recurrence(q, k, v, g=g, beta=beta, a=a, b=b, at=at)

    return documents.in_batch(padded, [k, v, *(part for part in parts if part is not None)], [q], at)


def _by_products(k: Tensor, v: Tensor, parts: Parts, at: Tensor | None) -> bool:
    """Whether matrix products are possible, and faster than loops.

    Loops take time in proportion to the numbers of the memories of all tokens. Products take less for each, the less
    the larger a memory, but more for a call, for each chunk in turn, and for padding, which documents end to end do
    without in loops. All products of a sum without corrections are taken at once, so that only padding speaks for loops
    there, and with few queries little does.
    """
    if parts.a is not None or (parts.g is not None and parts.g.ndim == 4):
        return False
    documents, heads, memory = layout(k), k.shape[2], k.shape[3] * v.shape[3]
    is_small = len(documents.positions) * heads * memory <= SMALL
    is_ragged, follow = documents_now() is not None, documents.longest > ONE_CHUNK
    if parts.beta is None:
        return not is_ragged or not (is_small if at is not None else memory <= SUM)
    is_few = follow and len(documents.lengths) * heads * k.shape[3] <= FEW
    return not (is_small or is_few or ((follow or is_ragged) and memory <= MEMORY))


def linear_recurrence_reference(
    q: Tensor, k: Tensor, v: Tensor, *, at: Tensor | None = None, **parts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`linear_recurrence` as a loop over time, with the memory after the last position; `parts` are its others."""
    states = list(_states(k, v, Parts(**parts)))
    if at is None:
        read = zip(states, q.unbind(1), strict=True)
        return torch.stack([(q_BHD.unsqueeze(2) @ S_BHDV).squeeze(2) for S_BHDV, q_BHD in read], dim=1), states[-1]
    S_BKHDV = take(torch.stack(states, dim=1), at)
    return (q.unsqueeze(3) @ S_BKHDV).squeeze(3), states[-1]


@in_float32
def linear_recurrence_states(k: Tensor, v: Tensor, **parts: Tensor | None) -> Tensor:
    """The memory (B, L, H, Dk, Dv) after each position; `parts` are those of `linear_recurrence`."""
    return torch.stack(list(_states(k, v, Parts(**parts))), dim=1)


def _states(k: Tensor, v: Tensor, parts: Parts) -> Iterator[Tensor]:
    g, beta, a, b, initial_state = parts
    S_BHDV = k.new_zeros(k.shape[0], *k.shape[2:], v.shape[3]) if initial_state is None else initial_state
    decay = None if g is None else g.exp().reshape(*g.shape, *[1] * (5 - g.ndim)).unbind(1)
    # unbind, because the gradient of indexing one step at a time costs a whole sequence per step
    steps = [None if x is None else x.unbind(1) for x in (beta, a, b)]
    for t, (k_BHD, v_BHV) in enumerate(zip(k.unbind(1), v.unbind(1), strict=True)):
        beta_BH, a_BHD, b_BHD = (None if x is None else x[t] for x in steps)
        before_BHDV = S_BHDV
        if decay is not None:
            S_BHDV = decay[t] * S_BHDV
        if beta_BH is not None:
            v_BHV = beta_BH.unsqueeze(2) * (v_BHV - (k_BHD.unsqueeze(2) @ S_BHDV).squeeze(2))
        if a_BHD is not None and b_BHD is not None:
            S_BHDV = S_BHDV + b_BHD.unsqueeze(3) * (a_BHD.unsqueeze(2) @ before_BHDV)
        S_BHDV = S_BHDV + k_BHD.unsqueeze(3) * v_BHV.unsqueeze(2)
        yield S_BHDV


def _delta_on_gpu(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, at: Tensor | None) -> Tensor:
    """Hand the plain delta rule over to flash-linear-attention, whose layout is ours; its chunks refuse float32."""
    from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule

    if at is not None:
        q, k, v, _, strength, place_BK = with_query_steps(q, k, v, None, beta, at)
        assert strength is not None
        beta = strength
    rule = fused_recurrent_delta_rule if v.dtype == torch.float32 else chunk_delta_rule
    o_BMHV: Tensor = rule(*(x.contiguous() for x in (q, k, v, beta)), scale=1.0)[0]
    return o_BMHV if at is None else take(o_BMHV, place_BK)


def _check(q: Tensor, k: Tensor, v: Tensor, parts: Parts, at: Tensor | None) -> None:
    g, beta, a, b, initial_state = parts
    if (a is None) != (b is None) or (a is not None and beta is not None):
        raise ValueError("linear_recurrence: a and b go together, and without beta")
    batch, length, heads, key_size = k.shape
    if at is not None:
        check_at(at, batch, length)
    per_head, per_channel = (batch, length, heads), (batch, length, heads, key_size)
    wanted = {
        "q": (q, (*((batch, length) if at is None else at.shape), heads, key_size)),
        "v": (v, (*per_head, v.shape[-1])),
        "g": (g, per_head if g is not None and g.ndim == 3 else per_channel),
        "beta": (beta, per_head),
        "a": (a, per_channel),
        "b": (b, per_channel),
        "initial_state": (initial_state, (batch, heads, key_size, v.shape[-1])),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"linear_recurrence: {name} has shape {tuple(tensor.shape)}, k asks for {shape}")
