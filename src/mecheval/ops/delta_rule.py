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

Legend: B batch, L length, H heads, D = Dk key size, V = Dv value size, K queries, M = L + K;
G chunks of C positions, G C >= L, and N = B H, in the order that makes a chunk of all documents contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops.dispatch import use_fast, use_gpu
from mecheval.ops.queries import as_extra_steps, check_at, take

ONE_CHUNK = 64  # up to this length a document is one chunk: measured faster than two chunks and a memory
CHUNK = 32  # otherwise: shorter chunks touch the memory more often, longer ones do more products


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
    chunk = length if length <= ONE_CHUNK else CHUNK
    k_GNCD, v_GNCV, beta_GNC1 = (_to_chunks(x, chunk) for x in (k, v, beta.unsqueeze(3)))
    u_GNCV, S_GNDV = _writes(k_GNCD, v_GNCV, beta_GNC1)
    if at is None:
        q_GNCD = _to_chunks(q, chunk)
        o_GNCV = (q_GNCD @ k_GNCD.mT).tril() @ u_GNCV
        if S_GNDV is not None:
            o_GNCV = o_GNCV + q_GNCD @ S_GNDV
        return _from_chunks(o_GNCV, batch, length)
    # A few queries: each looks back at everything that was written.
    u_BLHV = _from_chunks(u_GNCV, batch, length)
    qk_BHKL = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)
    seen_B1KL = torch.arange(length) <= at[:, None, :, None]
    return ((qk_BHKL * seen_B1KL) @ u_BLHV.transpose(1, 2)).transpose(1, 2)


def _writes(k_GNCD: Tensor, v_GNCV: Tensor, beta_GNC1: Tensor) -> tuple[Tensor, Tensor | None]:
    """What every position writes (G, N, C, V), and the memory before every chunk (None if there is one chunk)."""
    kk_GNCC = beta_GNC1 * (k_GNCD @ k_GNCD.mT)
    if len(k_GNCD) == 1:
        return _solve(kk_GNCC, beta_GNC1 * v_GNCV), None
    S_NDV = k_GNCD.new_zeros(k_GNCD.shape[1], k_GNCD.shape[3], v_GNCV.shape[3])
    writes, memories = [], []
    for k_NCD, v_NCV, beta_NC1, kk_NCC in zip(k_GNCD, v_GNCV, beta_GNC1, kk_GNCC, strict=True):
        u_NCV = _solve(kk_NCC, beta_NC1 * torch.baddbmm(v_NCV, k_NCD, S_NDV, alpha=-1))
        writes.append(u_NCV)
        memories.append(S_NDV)
        S_NDV = torch.baddbmm(S_NDV, k_NCD.mT, u_NCV)
    return torch.stack(writes), torch.stack(memories)


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve with the matrix below its diagonal, ones on it, and zeros above, whatever stands there."""
    x: Tensor = torch.linalg.solve_triangular(matrix, right, upper=False, unitriangular=True)
    return x


def _to_chunks(x_BLHX: Tensor, chunk: int) -> Tensor:
    """(B, L, H, X) as (G, N, C, X); zeros fill up the last chunk: they write nothing."""
    batch, length, _, size = x_BLHX.shape
    if length % chunk:
        x_BLHX = F.pad(x_BLHX, (0, 0, 0, 0, 0, -length % chunk))
    x_BGCHX = x_BLHX.reshape(batch, -1, chunk, *x_BLHX.shape[2:])
    return x_BGCHX.permute(1, 0, 3, 2, 4).reshape(x_BGCHX.shape[1], -1, chunk, size)


def _from_chunks(x_GNCX: Tensor, batch: int, length: int) -> Tensor:
    """The inverse of `_to_chunks`."""
    chunks, documents, chunk, size = x_GNCX.shape
    x_GBHCX = x_GNCX.reshape(chunks, batch, documents // batch, chunk, size)
    return x_GBHCX.permute(1, 0, 3, 2, 4).reshape(batch, chunks * chunk, -1, size)[:, :length]


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
