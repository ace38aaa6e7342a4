"""The linear recurrence with at most one decay a head, as matrix products over chunks of positions (arXiv 2406.06484).

What only fades and adds is `recurrence_sums.py`; here is the delta rule, and reading at a few positions. Call u_t what
position t writes: v_t, or beta_t e_t by the delta rule. Within a chunk of positions that starts from the
memory S, and with G_t the sum of its log-decays up to t, reading is linear attention with decaying weights, and the
writes of the delta rule solve a triangular system:

    o_t = exp(G_t) S^T q_t + sum_{s<=t} exp(G_t - G_s) (q_t . k_s) u_s
    u_t + beta_t sum_{s<t} exp(G_t - G_s) (k_t . k_s) u_s = beta_t (v_t - exp(G_t) S^T k_t)

No exponent is positive. The weights of decays and the systems are kernels of their own (`decay_weights.py`,
`unit_lower.py`); measured beside the first, compiled loops of the products were no faster at length 36.

Legend: B batch, L length, H heads, D = Dk key size, V = Dv value size, K queries, M = L + K,
N = B H memories, C positions of a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mecheval.ops.decay_weights import decay_weights
from mecheval.ops.queries import as_extra_steps, take
from mecheval.ops.recurrence_sums import in_sums, kept
from mecheval.ops.unit_lower import solve_unit_lower

ONE_CHUNK = 64
"""Up to this length a document is one chunk: measured faster than two chunks and a memory."""
CHUNK = 32
"""Otherwise: shorter chunks touch the memory more often, longer ones do more products."""
STRONGEST = -1e4
"""Log-decays below it count as this, which is as good as minus infinity and can be added up."""


def in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    at: Tensor | None,
    final_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """The result, and the memory after the last position if it is wanted.

    Time and memory grow linearly with the length and with the number of queries.
    """
    batch, length, heads = k.shape[:3]
    g = None if g is None else g.clamp(min=STRONGEST)
    if beta is None and at is None:
        return in_sums(q, k, v, g, initial_state, final_state)
    if at is not None and min(length, at.shape[1]) > ONE_CHUNK:
        q, k, v, g, beta, place_BK = with_query_steps(q, k, v, g, beta, at)
        o_BMHV, S_BHDV = in_chunks(q, k, v, g, beta, initial_state, None, final_state)
        return take(o_BMHV, place_BK), S_BHDV
    q_NKD, k_NLD, v_NLV = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    beta_NL1 = None if beta is None else beta.transpose(1, 2).flatten(0, 1).unsqueeze(2)
    g_NL = None if g is None else g.transpose(1, 2).flatten(0, 1).double()
    S_NDV = None if initial_state is None else initial_state.flatten(0, 1)
    if at is None:
        assert beta_NL1 is not None
        o_NKV, _, S_NDV = _walk(q_NKD, k_NLD, v_NLV, g_NL, beta_NL1, S_NDV, final_state)
    else:  # a few queries: each looks back at everything that was written
        before_NDV, u_NLV = S_NDV, v_NLV
        if beta_NL1 is not None:
            _, u_NLV, S_NDV = _walk(None, k_NLD, v_NLV, g_NL, beta_NL1, S_NDV, final_state)
        elif final_state:
            S_BHDV = in_sums(k, k, v, g, initial_state, True)[1]
            assert S_BHDV is not None
            S_NDV = S_BHDV.flatten(0, 1)
        at_NK = at.repeat_interleave(heads, dim=0)
        scores_NKL = q_NKD @ k_NLD.mT
        if g_NL is None:
            o_NKV = scores_NKL.masked_fill(torch.arange(length) > at_NK.unsqueeze(2), 0) @ u_NLV
        else:
            G_NL = g_NL.cumsum(1)
            G_NK = G_NL.gather(1, at_NK)
            o_NKV = (scores_NKL * decay_weights(G_NK, G_NL, at_NK)) @ u_NLV
        if before_NDV is not None:
            old_NKV = q_NKD @ before_NDV
            o_NKV = o_NKV + (old_NKV if g_NL is None else old_NKV * kept(G_NK).unsqueeze(2))
    o = o_NKV.view(batch, heads, *o_NKV.shape[1:]).transpose(1, 2)
    return o, None if S_NDV is None else S_NDV.unflatten(0, (batch, heads))


def _walk(
    q: Tensor | None, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, S_NDV: Tensor | None, final: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """From chunk to chunk: what the queries of all positions read (if there are any), what is written, the memory."""
    read, wrote = [], []
    parts = [_chunks(x) for x in (k, v, beta)]
    q_chunks, g_chunks = (None if x is None else _chunks(x) for x in (q, g))
    for c, (k_NCD, v_NCV, beta_NC1) in enumerate(zip(*parts, strict=True)):
        weights_NCC = kept_NC1 = None
        if g_chunks is not None:
            G_NC = g_chunks[c].cumsum(1)
            every_NC = torch.arange(G_NC.shape[1]).expand(G_NC.shape)
            weights_NCC, kept_NC1 = decay_weights(G_NC, G_NC, every_NC), kept(G_NC).unsqueeze(2)
        u_NCV = _written(k_NCD, v_NCV, beta_NC1, S_NDV, weights_NCC, kept_NC1)
        wrote.append(u_NCV)
        if q_chunks is not None:
            scores_NCC = q_chunks[c] @ k_NCD.mT
            o_NCV = (scores_NCC.tril() if weights_NCC is None else scores_NCC * weights_NCC) @ u_NCV
            if S_NDV is not None:
                q_NCD = q_chunks[c] if kept_NC1 is None else q_chunks[c] * kept_NC1
                o_NCV = torch.baddbmm(o_NCV, q_NCD, S_NDV)
            read.append(o_NCV)
        if final or c + 1 < len(parts[0]):
            if weights_NCC is not None and kept_NC1 is not None:
                k_NCD = k_NCD * weights_NCC[:, -1].unsqueeze(2)
                S_NDV = None if S_NDV is None else S_NDV * kept_NC1[:, -1:]
            S_NDV = k_NCD.mT @ u_NCV if S_NDV is None else torch.baddbmm(S_NDV, k_NCD.mT, u_NCV)
    return _join(read or wrote), _join(wrote), S_NDV


def _written(
    k_NCD: Tensor, v_NCV: Tensor, beta_NC1: Tensor, S_NDV: Tensor | None, weights: Tensor | None, kept: Tensor | None
) -> Tensor:
    """What the delta rule writes in a chunk that starts from the memory S."""
    missing_NCV = v_NCV
    if S_NDV is not None:
        missing_NCV = torch.baddbmm(v_NCV, k_NCD if kept is None else k_NCD * kept, S_NDV, alpha=-1)
    alike_NCC = k_NCD @ k_NCD.mT
    alike_NCC = alike_NCC if weights is None else alike_NCC * weights
    return solve_unit_lower(beta_NC1 * alike_NCC, beta_NC1 * missing_NCV)


def _chunks(x_NLX: Tensor) -> Sequence[Tensor]:
    # one chunk is not split, because the gradient of a split is a copy
    return (x_NLX,) if x_NLX.shape[1] <= ONE_CHUNK else x_NLX.split(CHUNK, dim=1)


def _join(x_NCX: list[Tensor]) -> Tensor:
    return x_NCX[0] if len(x_NCX) == 1 else torch.cat(x_NCX, dim=1)


def with_query_steps(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, at: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor]:
    """q, k, v, g, beta of length M, with a step for each query that changes nothing; and the places of those steps."""
    order_BM, place_BK = as_extra_steps(at, k.shape[1])

    def longer(x: Tensor) -> Tensor:
        return take(torch.cat([x, x.new_zeros(*at.shape, *x.shape[2:])], dim=1), order_BM)

    q = take(torch.cat([torch.zeros_like(k), q], dim=1), order_BM)
    g, beta = (None if x is None else longer(x) for x in (g, beta))
    return q, longer(k), longer(v), g, beta, place_BK
