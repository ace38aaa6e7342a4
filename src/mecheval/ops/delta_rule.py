"""The delta rule of DeltaNet: an associative memory that replaces what a key recalls by the key's new value.

    e = v_t - S^T k_t                the memory S (Dk, Dv) of a head starts at zero
    S <- S + k_t (beta_t e)^T
    o_t = S^T q_t                    after the update

Normalising keys and queries, and scaling queries, belongs to the caller.

The fast path turns time steps into matrix products (arXiv 2406.06484). Call u_t = beta_t e_t what position t writes.
Within a chunk of positions that starts from the memory S, the writes solve a triangular system, and reading is
linear attention with a causal mask:

    u_t + beta_t sum_{s<t} (k_t . k_s) u_s = beta_t (v_t - S^T k_t)          o_t = S^T q_t + sum_{s<=t} (q_t . k_s) u_s

Measured beside it, compiled loops of the same algebra were no faster at length 36, and four times as long to read.

Legend: B batch, L length, H heads, D = Dk key size, V = Dv value size, K queries, M = L + K,
N = B H memories, C positions of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mecheval.ops.dispatch import use_fast, use_gpu
from mecheval.ops.queries import as_extra_steps, check_at, take

ONE_CHUNK = 64  # up to this length a document is one chunk: measured faster than two chunks and a memory
CHUNK = 32  # otherwise: shorter chunks touch the memory more often, longer ones do more products

Memory = tuple[Tensor, Tensor, Tensor | None]  # of a chunk: k_NCD, u_NCV, S_NDV


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, at: Tensor | None = None) -> Tensor:
    """Write values v (B, L, H, Dv) under keys k (B, L, H, Dk) with strengths beta (B, L, H); read with q.

    Without `at`, q is (B, L, H, Dk) and the result (B, L, H, Dv). With `at` (B, K), the memory is read only at
    those positions: q is (B, K, H, Dk) and the result (B, K, H, Dv).
    """
    _check(q, k, v, beta, at)
    if use_gpu("fla", q, k, v, beta):
        return _delta_on_gpu(q, k, v, beta, at)
    if use_fast(q, k, v, beta):
        return _delta_in_chunks(q, k, v, beta, at)
    return delta_rule_reference(q, k, v, beta, at)


def delta_rule_reference(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, at: Tensor | None = None) -> Tensor:
    """`delta_rule` as a loop over time."""
    if at is None:
        read = zip(_states(k, v, beta), q.unbind(1), strict=True)
        return torch.stack([(q_BHD.unsqueeze(2) @ S_BHDV).squeeze(2) for S_BHDV, q_BHD in read], dim=1)
    S_BKHDV = take(delta_rule_states(k, v, beta), at)
    return (q.unsqueeze(3) @ S_BKHDV).squeeze(3)


def delta_rule_states(k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """The memory (B, L, H, Dk, Dv) after each position."""
    return torch.stack(list(_states(k, v, beta)), dim=1)


def _states(k: Tensor, v: Tensor, beta: Tensor) -> Iterator[Tensor]:
    # unbind, because the gradient of indexing one step at a time costs a whole sequence per step
    S_BHDV = k.new_zeros(k.shape[0], *k.shape[2:], v.shape[3])
    for k_BHD, v_BHV, beta_BH in zip(k.unbind(1), v.unbind(1), beta.unbind(1), strict=True):
        e_BHV = v_BHV - (k_BHD.unsqueeze(2) @ S_BHDV).squeeze(2)
        S_BHDV = S_BHDV + k_BHD.unsqueeze(3) * (beta_BH.unsqueeze(2) * e_BHV).unsqueeze(2)
        yield S_BHDV


def _delta_in_chunks(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, at: Tensor | None) -> Tensor:
    """Time and memory grow linearly with the length and with the number of queries."""
    batch, length = k.shape[:2]
    if at is not None and min(length, at.shape[1]) > ONE_CHUNK:
        q, k, v, beta, place_BK = _with_query_steps(q, k, v, beta, at)
        return take(_delta_in_chunks(q, k, v, beta, at=None), place_BK)
    q_NKD, k_NLD, v_NLV, beta_NL1 = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v, beta.unsqueeze(3)))
    written = _write(_chunks(k_NLD), _chunks(v_NLV), _chunks(beta_NL1))
    if at is None:
        o_NKV = _join([_read(q_NCD, *memory) for q_NCD, memory in zip(_chunks(q_NKD), written, strict=True)])
    else:  # a few queries: each looks back at everything that was written
        u_NLV = _join([u_NCV for _, u_NCV, _ in written])
        later_BKL = torch.arange(length) > at.unsqueeze(2)
        later_NKL = later_BKL.repeat_interleave(k.shape[2], dim=0)
        o_NKV = (q_NKD @ k_NLD.mT).masked_fill(later_NKL, 0) @ u_NLV
    return o_NKV.view(batch, k.shape[2], *o_NKV.shape[1:]).transpose(1, 2)


def _write(k: Sequence[Tensor], v: Sequence[Tensor], beta: Sequence[Tensor]) -> Iterator[Memory]:
    """For each chunk: its keys, what its positions write, and the memory before it."""
    S_NDV: Tensor | None = None
    for c, (k_NCD, v_NCV, beta_NC1) in enumerate(zip(k, v, beta, strict=True)):
        missing_NCV = v_NCV if S_NDV is None else torch.baddbmm(v_NCV, k_NCD, S_NDV, alpha=-1)
        # The solver reads the matrix below its diagonal only, and takes ones on the diagonal.
        u_NCV: Tensor = torch.linalg.solve_triangular(
            beta_NC1 * (k_NCD @ k_NCD.mT), beta_NC1 * missing_NCV, upper=False, unitriangular=True
        )
        yield k_NCD, u_NCV, S_NDV
        if c + 1 < len(k):
            S_NDV = k_NCD.mT @ u_NCV if S_NDV is None else torch.baddbmm(S_NDV, k_NCD.mT, u_NCV)


def _chunks(x_NLX: Tensor) -> Sequence[Tensor]:
    # one chunk is not split, because the gradient of a split is a copy
    return (x_NLX,) if x_NLX.shape[1] <= ONE_CHUNK else x_NLX.split(CHUNK, dim=1)


def _join(x_NCX: list[Tensor]) -> Tensor:
    return x_NCX[0] if len(x_NCX) == 1 else torch.cat(x_NCX, dim=1)


def _read(q_NCD: Tensor, k_NCD: Tensor, u_NCV: Tensor, S_NDV: Tensor | None) -> Tensor:
    o_NCV = (q_NCD @ k_NCD.mT).tril() @ u_NCV
    return o_NCV if S_NDV is None else torch.baddbmm(o_NCV, q_NCD, S_NDV)


def _with_query_steps(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, at: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k, v, beta of length M, with a step for each query that writes nothing; and the places of those steps."""
    order_BM, place_BK = as_extra_steps(at, k.shape[1])
    q = take(torch.cat([torch.zeros_like(k), q], dim=1), order_BM)
    k, v, beta = (take(torch.cat([x, x.new_zeros(*at.shape, *x.shape[2:])], dim=1), order_BM) for x in (k, v, beta))
    return q, k, v, beta, place_BK


def _delta_on_gpu(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, at: Tensor | None) -> Tensor:
    """Hand over to flash-linear-attention, whose layout is ours; its chunked kernel refuses float32."""
    from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule

    if at is not None:
        q, k, v, beta, place_BK = _with_query_steps(q, k, v, beta, at)
    rule = fused_recurrent_delta_rule if v.dtype == torch.float32 else chunk_delta_rule
    o_BMHV: Tensor = rule(*(x.contiguous() for x in (q, k, v, beta)), scale=1.0)[0]
    return o_BMHV if at is None else take(o_BMHV, place_BK)


def _check(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, at: Tensor | None) -> None:
    batch, length, heads, key_size = k.shape
    if at is not None:
        check_at(at, batch, length)
    wanted = {
        "q": (q, (batch, length if at is None else at.shape[1], heads, key_size)),
        "v": (v, (batch, length, heads, v.shape[-1])),
        "beta": (beta, (batch, length, heads)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape:
            raise ValueError(f"delta_rule: {name} has shape {tuple(tensor.shape)}, k asks for {shape}")
