"""The linear recurrence that fades and adds, without corrections, with at most one decay a head.

Its memory is a sum of what was written, so it needs no walk from chunk to chunk: all chunks are written and read in one
product each, and only their memories are added up in turn. With S the memory before a chunk and G_t the sum of its
log-decays up to t,

    o_t = exp(G_t) S^T q_t + sum_{s<=t} exp(G_t - G_s) (q_t . k_s) v_s

A batch is taken slab by slab: some documents, or those of one head, whose intermediate results stay in the cache and in
memory that is already at hand. Left to autograd, fetching them took most of the time of long documents. So the
backward pass is by hand, and keeps only the weighed scores and the memories.

Legend: B batch, L length, H heads, D key size, V value size, T chunks of C positions; a slab has N memories, of
documents and heads, and M = N T chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable
from mecheval.ops.fastmath import LOG2_E, exp2

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

CHUNK = 32
"""Positions of a chunk, at most: shorter ones touch the memory more often, longer ones do more products."""
WORTH = 1.5
"""A document is one chunk as long as that takes at most so many times the products of short chunks and a memory."""
SLAB = 4096
"""Positions, counted for each head, that are taken at once."""
NEGLIGIBLE = -69.0
"""Logarithm of shares that count as zero: far above subnormal numbers, on which common CPUs are slow."""


def in_sums(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, initial_state: Tensor | None, final: bool
) -> tuple[Tensor, Tensor | None]:
    """The result (B, L, H, V) for q and k (B, L, H, D), v (B, L, H, V) and g (B, L, H), at least -1e4.

    Beside it the memory (B, H, D, V) after the last position, if it is wanted.
    """
    batch, length, heads = k.shape[:3]
    D, V = k.shape[3], v.shape[3]
    alone, split = length * (D + V), CHUNK * (D + V) + 2 * D * V  # products of a position
    chunks = 1 if alone <= WORTH * split else -(-length // CHUNK)
    size = length if chunks == 1 else CHUNK
    if g is None:
        G_BHTC = torch.zeros(batch, heads, chunks, size, dtype=torch.float64)
    else:
        g_BHL = F.pad(g.transpose(1, 2).double(), (0, chunks * size - length))
        G_BHTC = g_BHL.unflatten(2, (chunks, size)).cumsum(3)
    o, S = _Sums.apply(q, k, v, G_BHTC, initial_state, final)  # type: ignore[no-untyped-call]
    return o, S


def kept(G: Tensor) -> Tensor:
    """The shares exp(G) that are left, in single precision."""
    return F.threshold(G.float(), NEGLIGIBLE, -torch.inf).exp()


class _Sums(torch.autograd.Function):
    """Both passes, a slab at a time."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, G: Tensor, start: Tensor | None, final: bool
    ) -> tuple[Tensor, Tensor | None]:
        carries, saved = final or start is not None or G.shape[2] > 1, []
        o_BHLV = _empty(G, v.shape[3])
        S_BHDV = v.new_empty(*G.shape[:2], k.shape[3], v.shape[3]) if final else None
        for part in _slabs(G):
            q_MCD, k_MCD, v_MCV = (_chunks(x, part, G) for x in (q, k, v))
            scores_MCC = torch.bmm(q_MCD, k_MCD.mT)
            _weigh(G[part].flatten(0, 2).numpy(), scores_MCC.numpy())
            o_MCV = torch.bmm(scores_MCC, v_MCV, out=o_BHLV[part].view(v_MCV.shape))
            saved += [scores_MCC] if any(ctx.needs_input_grad) else []
            if carries:
                read_MC1, write_MC1 = _shares(G[part])
                wrote_MDV = torch.bmm((k_MCD * write_MC1).mT, v_MCV)
                S_MDV, end_NDV = _added(wrote_MDV, read_MC1[:, -1:], None if start is None else start[part], G.shape[2])
                o_MCV.baddbmm_(q_MCD * read_MC1, S_MDV)
                saved += [S_MDV] if any(ctx.needs_input_grad) else []
                if S_BHDV is not None:
                    S_BHDV[part] = end_NDV.view(S_BHDV[part].shape)
        ctx.save_for_backward(q, k, v, G, *saved)
        ctx.carries, ctx.starts = carries, start is not None
        return o_BHLV[:, :, : v.shape[1]].transpose(1, 2), S_BHDV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dS_BHDV: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, G, *saved = ctx.saved_tensors
        saved = iter(saved)
        do = do.contiguous()  # the gradient of a sum is one number that repeats, for which products are slow
        dq_BHLD, dk_BHLD, dv_BHLV = (_empty(G, x.shape[3]) for x in (q, k, v))
        dG, dstart = torch.empty_like(G), q.new_empty(*G.shape[:2], q.shape[3], v.shape[3]) if ctx.starts else None
        for part in _slabs(G):
            q_MCD, k_MCD, v_MCV, do_MCV = (_chunks(x, part, G) for x in (q, k, v, do))
            scores_MCC, G_MC = next(saved), G[part].flatten(0, 2)
            dscores_MCC, dG_MC = torch.bmm(do_MCV, v_MCV.mT), torch.empty_like(G_MC)
            _weigh_backward(*(x.numpy() for x in (G_MC, scores_MCC, dscores_MCC, dG_MC)))
            dq_MCD = torch.bmm(dscores_MCC, k_MCD, out=dq_BHLD[part].view(q_MCD.shape))
            dk_MCD = torch.bmm(dscores_MCC.mT, q_MCD, out=dk_BHLD[part].view(k_MCD.shape))
            dv_MCV = torch.bmm(scores_MCC.mT, do_MCV, out=dv_BHLV[part].view(v_MCV.shape))
            if ctx.carries:
                S_MDV, (read_MC1, write_MC1) = next(saved), _shares(G[part])
                q_MCD, k_MCD = q_MCD * read_MC1, k_MCD * write_MC1
                dend = None if dS_BHDV is None else dS_BHDV[part]
                back = (torch.bmm(q_MCD.mT, do_MCV), read_MC1[:, -1:], dend, G.shape[2])
                dS_MDV, dstart_NDV = _added(*back, backwards=True)
                dkept_M = torch.bmm(S_MDV.flatten(1).unsqueeze(1), dS_MDV.flatten(1).unsqueeze(2))
                dG_MC[:, -1] += (dkept_M * read_MC1[:, -1:]).flatten()
                dread_MCD, dwrite_MCD = torch.bmm(do_MCV, S_MDV.mT), torch.bmm(v_MCV, dS_MDV.mT)
                dv_MCV.baddbmm_(k_MCD, dS_MDV)
                arrays = (q_MCD, k_MCD, dread_MCD, dwrite_MCD, read_MC1, write_MC1, dq_MCD, dk_MCD, dG_MC)
                _add_shares(*(x.numpy() for x in arrays))
                if dstart is not None:
                    dstart[part] = dstart_NDV.view(dstart[part].shape)
            dG[part] = dG_MC.view(dG[part].shape)
        grads = (x[:, :, : v.shape[1]].transpose(1, 2) for x in (dq_BHLD, dk_BHLD, dv_BHLV))
        return *grads, dG, dstart, None


def _together(G_BHTC: Tensor) -> bool:
    """Whether the heads of a document share a slab; where one head fills it, its chunks need no copy."""
    batch, _, chunks, size = G_BHTC.shape
    return batch * chunks * size < SLAB


def _slabs(G_BHTC: Tensor) -> Iterator[tuple[slice, slice]]:
    """Documents and heads of each slab."""
    batch, heads, chunks, size = G_BHTC.shape
    number = heads if _together(G_BHTC) else 1
    documents = max(1, SLAB // (chunks * size * number))
    for head in range(0, heads, number):
        for first in range(0, batch, documents):
            yield slice(first, first + documents), slice(head, head + number)


def _empty(G_BHTC: Tensor, width: int) -> Tensor:
    """Room for results (B, H, T C, width), in which every slab is contiguous."""
    batch, heads, chunks, size = G_BHTC.shape
    if _together(G_BHTC):
        return torch.empty(batch, heads, chunks * size, width)
    return torch.empty(heads, batch, chunks * size, width).transpose(0, 1)


def _chunks(x_BLHX: Tensor, part: tuple[slice, slice], G_BHTC: Tensor) -> Tensor:
    """The chunks (M, C, X) of a slab; behind the last position stand zeros."""
    documents, heads = part
    x_BHLX, (chunks, size) = x_BLHX[documents, :, heads].transpose(1, 2), G_BHTC.shape[2:]
    if missing := chunks * size - x_BHLX.shape[2]:
        x_BHLX = F.pad(x_BHLX, (0, 0, 0, missing))
    return x_BHLX.reshape(-1, size, x_BHLX.shape[3])


def _shares(G_BHTC: Tensor) -> tuple[Tensor, Tensor]:
    """What is left (M, C, 1) at each position of the memory before its chunk, and after the chunk of each position."""
    read, write = (kept(x).view(-1, x.shape[3], 1) for x in (G_BHTC, G_BHTC[..., -1:] - G_BHTC))
    return read, write


def _added(
    x_MDV: Tensor, share_M11: Tensor, start: Tensor | None, chunks: int, backwards: bool = False
) -> tuple[Tensor, Tensor]:
    """The sum before each chunk (M, D, V) and after the last (N, D, V), where a chunk keeps a share of it and adds x.

    The sum starts at `start`, or at zero. Backwards, chunks are taken from the last to the first.
    """
    x_NTDV, share_NT11 = (x.unflatten(0, (-1, chunks)) for x in (x_MDV, share_M11))
    before_NTDV = torch.empty_like(x_NTDV)
    order = range(chunks - 1, -1, -1) if backwards else range(chunks)
    before_NTDV[:, order[0]] = 0 if start is None else start.flatten(0, 1)
    for now, after in pairwise(order):
        torch.addcmul(x_NTDV[:, now], before_NTDV[:, now], share_NT11[:, now], out=before_NTDV[:, after])
    end_NDV = torch.addcmul(x_NTDV[:, order[-1]], before_NTDV[:, order[-1]], share_NT11[:, order[-1]])
    return before_NTDV.flatten(0, 1), end_NDV


@fast_kernel
def _weigh(G_MC: Doubles, scores_MCC: Floats) -> None:
    """Multiply by what is left of each position at each later one; earlier ones see nothing of it."""
    for m in range(len(G_MC)):
        G_C = G_MC[m]
        for t in range(len(G_C)):
            G, scores_C = G_C[t], scores_MCC[m, t]
            for s in range(t + 1):
                scores_C[s] *= exp2(np.float32(LOG2_E * (G - G_C[s])))
            scores_C[t + 1 :] = 0


@fast_kernel
def _weigh_backward(G_MC: Doubles, scores_MCC: Floats, dscores_MCC: Floats, dG_MC: Doubles) -> None:
    """Turn gradients of weighed scores into those of plain ones; the gradients of G are sums over rows and columns.

    The sums are in double precision, because a weak decay's gradient is a small difference of them.
    """
    for m in range(len(G_MC)):
        G_C, dG_C = G_MC[m], dG_MC[m]
        dG_C[:] = 0
        for t in range(len(G_C)):
            G, scores_C, dscores_C, total = G_C[t], scores_MCC[m, t], dscores_MCC[m, t], 0.0
            for s in range(t + 1):
                total += np.float64(scores_C[s] * dscores_C[s])
            for s in range(t + 1):
                dG_C[s] -= np.float64(scores_C[s] * dscores_C[s])
                dscores_C[s] *= exp2(np.float32(LOG2_E * (G - G_C[s])))
            dscores_C[t + 1 :] = 0
            dG_C[t] += total


@fast_kernel
def _add_shares(
    q_MCD: Floats,
    k_MCD: Floats,
    dread_MCD: Floats,
    dwrite_MCD: Floats,
    read_MC1: Floats,
    write_MC1: Floats,
    dq_MCD: Floats,
    dk_MCD: Floats,
    dG_MC: Doubles,
) -> None:
    """Add what memories give to the gradients of queries, keys and G; q and k have their shares in them."""
    for m in range(len(dG_MC)):
        for t in range(dG_MC.shape[1]):
            read = _added_to(dq_MCD[m, t], read_MC1[m, t, 0], dread_MCD[m, t], q_MCD[m, t])
            write = _added_to(dk_MCD[m, t], write_MC1[m, t, 0], dwrite_MCD[m, t], k_MCD[m, t])
            dG_MC[m, t] += read - write
            dG_MC[m, -1] += write


@fast_kernel
def _added_to(sum_D: Floats, share: np.float32, more_D: Floats, by_D: Floats) -> np.float64:
    """Add a share of something to a sum, and return its product with something else."""
    product = np.float32(0)
    for d in range(len(sum_D)):
        sum_D[d] += share * more_D[d]
    for d in range(len(sum_D)):
        product += by_D[d] * more_D[d]
    return np.float64(product)
