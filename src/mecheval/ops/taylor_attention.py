"""Attention whose weight is the second-order Taylor series of exp, so that it also has a state of fixed size.

With s = q.k / sqrt(F), a pair weighs 1 + s + s²/2 = ((1 + s)² + 1) / 2 >= 1/2, which is φ(q).φ(k) for the features
φ(x) = [1, x / F^¼, vec(x xᵀ) / sqrt(2F)].

Shapes: B batch, L length, K queries, H heads, F features of q and k, V of v, W = V + 1, P = 1 + F + F²,
E distinct features, N = B H.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops.dispatch import once_differentiable, use_fast, use_gpu
from mecheval.ops.pieces import current
from mecheval.ops.queries import check_at
from mecheval.ops.ragged import documents_now

EPS = 1e-12

LINEAR_FROM = 256
"""From this length on, going through the state is faster than weighing all pairs (measured with F 8, V 64 and 128)."""

CHUNK = 64
"""Tokens that are weighed in pairs between two updates of the state."""


def taylor_attention(q: Tensor, k: Tensor, v: Tensor, at: Tensor | None = None) -> Tensor:
    """out_t = Σ_{j<=t} A_tj v_j / (Σ_{j<=t} A_tj + 1e-12), with A_tj = 1 + s + s²/2 and s = q_t.k_j / sqrt(F).

    q, k (B, L, H, F), v (B, L, H, V); with `at` (B, K), q is (B, K, H, F), at those positions only.
    Returns (B, L or K, H, V). The fast path is plain PyTorch and serves GPUs too, because flash-linear-attention's
    kernel adds 1e-6 to the divisor, not 1e-12.
    """
    length, heads = k.shape[1:3]
    if (now := current(at)) is not None:
        before, S_BLHPW = now.recall(), taylor_states(k, v)
        S_BLHPW = S_BLHPW if before is None else S_BLHPW + before
        now.keep(S_BLHPW[:, -1:])
        read = torch.einsum("blhp,blhpw->blhw", taylor_features(q), S_BLHPW)
        return read[..., :-1] / (read[..., -1:] + EPS)
    if (documents := documents_now()) is not None:
        return documents.in_batch(lambda q, k, v: taylor_attention(q, k, v, at), (k, v), [q], at)
    if at is not None:
        check_at(at, len(k), length)
    if not (use_fast(q, k, v) or use_gpu("torch", q, k, v)):
        return taylor_attention_reference(q, k, v, at)
    inputs = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    out: Tensor
    if at is not None:
        mask_NKL = _visible(at, length).to(q.dtype).repeat_interleave(heads, dim=0)
        out = _Pairwise.apply(*inputs, mask_NKL)  # type: ignore[no-untyped-call]
    elif length < LINEAR_FROM:
        out = _Pairwise.apply(*inputs, _causal(length, q))  # type: ignore[no-untyped-call]
    else:
        q_NLE, k_NLE = _distinct_features(inputs[0]), _distinct_features(inputs[1])
        out = _Chunked.apply(*inputs, q_NLE, k_NLE)  # type: ignore[no-untyped-call]
    return out.view(len(k), heads, *out.shape[1:]).transpose(1, 2)


def taylor_attention_reference(q: Tensor, k: Tensor, v: Tensor, at: Tensor | None = None) -> Tensor:
    """`taylor_attention` over all pairs, with an explicit mask."""
    batch, length = k.shape[:2]
    at_BK = torch.arange(length, device=q.device).expand(batch, length) if at is None else at
    s_BHKL = torch.einsum("bkhf,blhf->bhkl", q, k) / math.sqrt(q.shape[3])
    A_BHKL = (1 + s_BHKL + s_BHKL * s_BHKL / 2) * _visible(at_BK, length)[:, None]
    total_BKH1 = A_BHKL.sum(3).transpose(1, 2)[..., None]
    sum_BKHV = torch.einsum("bhkl,blhv->bkhv", A_BHKL, v)
    return sum_BKHV / (total_BKH1 + EPS)


def taylor_states(k: Tensor, v: Tensor) -> Tensor:
    """The state after each position: Σ_{j<=t} φ(k_j) [v_j, 1]ᵀ, as (B, L, H, P, V + 1).

    A query reads φ(q)ᵀ S: V numerators, and in the last column their divisor.
    """
    v_BLHW = F.pad(v, (0, 1), value=1.0)
    return (taylor_features(k)[..., :, None] * v_BLHW[..., None, :]).cumsum(1)


def taylor_features(x: Tensor) -> Tensor:
    """φ(x), from (..., F) to (..., 1 + F + F²)."""
    width = x.shape[-1]
    squares = (x[..., :, None] * x[..., None, :]).flatten(-2)
    return torch.cat([torch.ones_like(x[..., :1]), x / width**0.25, squares / (2 * width) ** 0.5], dim=-1)


def _distinct_features(x: Tensor) -> Tensor:
    """Features whose product is twice the weight, (..., F) to (..., E) with E = (F + 1)(F + 2) / 2.

    (1 + s)² is a square of [1, q] . [1, k], so that its features are the products of two entries of [1, x], of which
    each pair a < b need be there only once, with weight 2. The remaining 1 goes to the constant. Two matrices pick
    the entries, because a matrix product is faster than indexing, forward and backward.
    """
    width = x.shape[-1]
    a_E, b_E = torch.triu_indices(1 + width, 1 + width, device=x.device)
    weight_E = torch.where((a_E == b_E) & (a_E > 0), 1.0, 2.0).to(x)
    entries_GG = torch.diag(torch.tensor([1.0] + [width**-0.25] * width).to(x))
    left_GE, right_GE = entries_GG[:, a_E] * weight_E.sqrt(), entries_GG[:, b_E]
    rows = x.flatten(0, -2)
    picked = torch.addmm(left_GE[0], rows, left_GE[1:]) * torch.addmm(right_GE[0], rows, right_GE[1:])
    return picked.view(*x.shape[:-1], -1)


def _visible(at_BK: Tensor, length: int) -> Tensor:
    """Which positions a query sees, (B, K, L): those up to its own."""
    return torch.arange(length, device=at_BK.device) <= at_BK[:, :, None]


def _causal(length: int, like: Tensor) -> Tensor:
    return like.new_ones(1, length, length).tril_()


def _weigh(q_NKF: Tensor, k_NLF: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """1 + s, and twice the weight, (1 + s)² + 1, where the mask is 1; zero where it is 0."""
    root_NKL = torch.baddbmm(mask, q_NKF, k_NLF.mT, alpha=q_NKF.shape[2] ** -0.5).mul_(mask)
    return root_NKL, torch.addcmul(mask, root_NKL, root_NKL)


class _Pairwise(torch.autograd.Function):
    """All pairs, in few operations and mostly in place; the mask is 1 where a query sees a key, else 0.

    That weights are doubled cancels in the division. They are at least 1, so that the reference's 1e-12 in the
    divisor would change nothing.
    """

    @staticmethod
    def forward(ctx: Any, q_NKF: Tensor, k_NLF: Tensor, v_NLV: Tensor, mask: Tensor) -> Tensor:
        root_NKL, A_NKL = _weigh(q_NKF, k_NLF, mask)
        total_NK1 = A_NKL.sum(2, keepdim=True)
        out_NKV = torch.bmm(A_NKL, v_NLV).div_(total_NK1)
        ctx.save_for_backward(q_NKF, k_NLF, v_NLV, root_NKL, A_NKL, total_NK1, out_NKV)
        return out_NKV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_NKV: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_NKF, k_NLF, v_NLV, root_NKL, A_NKL, total_NK1, out_NKV = ctx.saved_tensors
        dsum_NKV = dout_NKV / total_NK1
        dtotal_NK1 = (dsum_NKV * out_NKV).sum(2, keepdim=True)
        dA_NKL = torch.bmm(dsum_NKV, v_NLV.mT).sub_(dtotal_NK1)
        ds_NKL = dA_NKL.mul_(root_NKL).mul_(2 * q_NKF.shape[2] ** -0.5)
        return torch.bmm(ds_NKL, k_NLF), torch.bmm(ds_NKL.mT, q_NKF), torch.bmm(A_NKL.mT, dsum_NKV), None


class _Chunked(torch.autograd.Function):
    """Pairs within a chunk, and the state for all that came before it, so that the cost is linear in the length.

    Pairs are weighed as in `_Pairwise`: products of features would cancel badly where q and k are long and s is
    small. A column of ones beside v makes the divisor one more numerator.
    """

    @staticmethod
    def forward(ctx: Any, q_NLF: Tensor, k_NLF: Tensor, v_NLV: Tensor, phi_q_NLE: Tensor, phi_k_NLE: Tensor) -> Tensor:
        v_NLW = F.pad(v_NLV, (0, 1), value=1.0)
        sums_NLW = torch.empty_like(v_NLW)
        S_NEW = v_NLW.new_zeros(len(v_NLW), phi_k_NLE.shape[2], v_NLW.shape[2])
        states = []
        chunks = _chunks(q_NLF, k_NLF, v_NLW, phi_q_NLE, phi_k_NLE, sums_NLW)
        for q, k, v, phi_q, phi_k, sums in zip(*chunks, strict=True):
            states.append(S_NEW)
            _, A = _weigh(q, k, _causal(q.shape[1], q))
            sums.copy_(torch.bmm(A, v).baddbmm_(phi_q, S_NEW))
            S_NEW = torch.baddbmm(S_NEW, phi_k.mT, v)
        total_NL1 = sums_NLW[:, :, -1:]
        out_NLV = sums_NLW[:, :, :-1] / total_NL1
        ctx.save_for_backward(q_NLF, k_NLF, v_NLW, phi_q_NLE, phi_k_NLE, total_NL1, out_NLV, *states)
        return out_NLV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_NLV: Tensor) -> tuple[Tensor, ...]:
        *inputs, total_NL1, out_NLV = ctx.saved_tensors[:7]
        states = ctx.saved_tensors[7:]
        dsums_NLV = dout_NLV / total_NL1
        dsums_NLW = torch.cat([dsums_NLV, -(dsums_NLV * out_NLV).sum(2, keepdim=True)], dim=2)
        gradients = [torch.empty_like(x) for x in inputs]
        dS_NEW = torch.zeros_like(states[0])
        chunks = list(zip(*_chunks(*inputs, dsums_NLW, *gradients), states, strict=True))
        for q, k, v, phi_q, phi_k, dsums, dq, dk, dv, dphi_q, dphi_k, S_NEW in reversed(chunks):
            root, A = _weigh(q, k, _causal(q.shape[1], q))
            ds = torch.bmm(dsums, v.mT).mul_(root).mul_(2 * q.shape[2] ** -0.5)
            dq.copy_(torch.bmm(ds, k))
            dk.copy_(torch.bmm(ds.mT, q))
            dv.copy_(torch.bmm(A.mT, dsums).baddbmm_(phi_k, dS_NEW))
            dphi_q.copy_(torch.bmm(dsums, S_NEW.mT))
            dphi_k.copy_(torch.bmm(v, dS_NEW.mT))
            dS_NEW.baddbmm_(phi_q.mT, dsums)
        dq_NLF, dk_NLF, dv_NLW, *dphi = gradients
        return dq_NLF, dk_NLF, dv_NLW[:, :, :-1], *dphi


def _chunks(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return [torch.split(x, CHUNK, dim=1) for x in tensors]
