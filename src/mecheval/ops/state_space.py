"""The state space model of Mamba-2: each head of each document has a memory S, of states by channels.

    S <- exp(dt_t A) S + B_t (dt_t u_t)^T
    y_t = S^T C_t + D u_t

It is the linear recurrence with one decay a head, where all heads share keys B and queries C. So the fast path takes
their products once, and weighs them for each head. Within a chunk that starts from the memory S, and with G_t the sum
of its log-decays up to t,

    y_t = exp(G_t) S^T C_t + sum_{s<=t} (exp(G_t - G_s) dt_s (C_t . B_s) + [s = t] D) u_s

Steps and D are part of the weights, so that u is multiplied as it is. A batch is taken slab by slab, whose weights stay
in the cache; the backward pass computes them again.

Legend: B batch, L length, K positions asked for, H heads, P channels of a head, N width of keys and queries; R rows,
which are chunks of T = S positions of all documents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops import state_space_kernel as loops
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.linear_recurrence import linear_recurrence
from mecheval.ops.pieces import current
from mecheval.ops.queries import take
from mecheval.ops.recurrence_chunks import STRONGEST

ONE_CHUNK = 128
"""Up to this length a document is one chunk: measured faster than two chunks and a memory."""
CHUNK = 64
"""Most positions of a chunk otherwise: shorter ones touch the memory more often, longer ones do more products."""
SLAB = 1 << 18
"""Weights that are computed at once."""


def state_space(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, at: Tensor | None = None) -> Tensor:
    """y (B, L, H, P) for inputs u (B, L, H, P), steps dt (B, L, H) >= 0, A (H,) <= 0, B and C (B, L, N), and D (H,).

    With `at` (B, K), y (B, K, H, P) is that of those positions, and C is (B, K, N).
    """
    if at is None and current(at) is None and use_fast(u, dt, A, B, C, D):
        return _in_rows(u, dt, A, B, C, D)
    return state_space_reference(u, dt, A, B, C, D, at)


def state_space_reference(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, at: Tensor | None = None
) -> Tensor:
    """`state_space` as a linear recurrence, to which each head gives the same keys and queries."""
    k, q = (x.unsqueeze(2).expand(-1, -1, u.shape[2], -1) for x in (B, C))
    read = linear_recurrence(q, k, u * dt.unsqueeze(3), g=dt * A, at=at)
    return read + D.unsqueeze(1) * (u if at is None else take(u, at))


def _in_rows(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """The fast path: documents are cut into chunks of one size, the last one filled up with steps of nothing."""
    batch, length, heads, width = u.shape
    chunks = 1 if length <= ONE_CHUNK else -(-length // CHUNK)
    size = -(-length // chunks)
    if missing := chunks * size - length:
        u = F.pad(u, (0, 0, 0, 0, 0, missing))
        dt, B, C = (F.pad(x, (0, 0, 0, missing)) for x in (dt, B, C))
    dt_RHT = dt.reshape(-1, size, heads).mT.contiguous()
    G_RHT = (dt_RHT * A.unsqueeze(1)).clamp(min=STRONGEST).double().cumsum(2)
    B_RTN, C_RTN = (x.reshape(-1, size, x.shape[2]) for x in (B, C))
    rows = (u.reshape(-1, size, heads, width), dt_RHT, G_RHT, B_RTN, C_RTN, D, chunks)
    y_RTHP: Tensor = _Rows.apply(*rows)  # type: ignore[no-untyped-call]
    y = y_RTHP.view(batch, chunks * size, heads, width)
    return y[:, :length] if missing else y


class _Rows(torch.autograd.Function):
    """Both passes, a slab at a time."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, dt: Tensor, G: Tensor, B: Tensor, C: Tensor, D: Tensor, chunks: int) -> Tensor:
        u, B, C, D = (x.contiguous() for x in (u, B, C, D))
        rows, size, heads, width = u.shape
        y, scores = torch.empty_like(u), u.new_empty(rows, size, size)
        S = u.new_empty(rows, B.shape[2], heads * width) if chunks > 1 else None
        slabs, room = _slabs(G, chunks)
        for part in slabs:
            u_RTHP, dt_RHT, G_RHT, B_RTN, C_RTN, y_RTHP = (x[part] for x in (u, dt, G, B, C, y))
            scores_RTS = torch.bmm(C_RTN, B_RTN.mT, out=scores[part])
            weighed_HRTS = room[: G_RHT.numel() * size].view(heads, -1, size, size)
            _call(loops.weigh, G_RHT, dt_RHT, D, scores_RTS, weighed_HRTS)
            for h in range(heads):
                torch.bmm(weighed_HRTS[h], u_RTHP[:, :, h], out=y_RTHP[:, :, h])
            if S is not None:
                v_RTHP = torch.empty_like(u_RTHP)
                _call(loops.fade, u_RTHP, G_RHT, dt_RHT, v_RTHP)
                S_RNE = torch.bmm(B_RTN.mT, v_RTHP.flatten(2), out=S[part])
                _call(loops.add_up, S_RNE, G_RHT, chunks)
                torch.bmm(C_RTN, S_RNE, out=v_RTHP.flatten(2))
                _call(loops.add_read, v_RTHP, G_RHT, y_RTHP)
        ctx.save_for_backward(u, dt, G, B, C, D, scores, S)
        ctx.chunks = chunks
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        u, dt, G, B, C, D, scores, S = ctx.saved_tensors
        dy, size, heads = dy.contiguous(), u.shape[1], u.shape[2]
        du, ddt, dG, dB, dC = (torch.empty_like(x) for x in (u, dt, G, B, C))
        dD = torch.zeros(heads, dtype=torch.float64)
        slabs, room = _slabs(G, ctx.chunks)
        droom = torch.empty_like(room)
        for part in slabs:
            u_RTHP, dt_RHT, G_RHT, B_RTN, C_RTN, dy_RTHP = given = tuple(x[part] for x in (u, dt, G, B, C, dy))
            du_RTHP, ddt_RHT, dG_RHT, dB_RTN, dC_RTN = found = tuple(x[part] for x in (du, ddt, dG, dB, dC))
            weighed, dweighed = (x[: G_RHT.numel() * size].view(heads, -1, size, size) for x in (room, droom))
            dscores_RTS = torch.empty_like(scores[part])
            for h in range(heads):
                torch.bmm(dy_RTHP[:, :, h], u_RTHP[:, :, h].mT, out=dweighed[h])
            of_weights = (dweighed, weighed, dscores_RTS, dG_RHT, ddt_RHT, dD)
            _call(loops.weigh_backward, G_RHT, dt_RHT, D, scores[part], *of_weights)
            for h in range(heads):
                torch.bmm(weighed[h].mT, dy_RTHP[:, :, h], out=du_RTHP[:, :, h])
            torch.bmm(dscores_RTS, B_RTN, out=dC_RTN)
            torch.bmm(dscores_RTS.mT, C_RTN, out=dB_RTN)
            if S is not None:
                _add_memories(S[part], ctx.chunks, given, found)
        return du, ddt, dG, dB, dC, dD.float(), None


def _add_memories(S_RNE: Tensor, chunks: int, given: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> None:
    """Add what the memories S before rows give to the gradients."""
    u_RTHP, dt_RHT, G_RHT, B_RTN, C_RTN, dy_RTHP = given
    du_RTHP, ddt_RHT, dG_RHT, dB_RTN, dC_RTN = found
    heads, room_RTHP = u_RTHP.shape[2], torch.empty_like(u_RTHP)
    dC_HRTN = torch.empty(heads, *C_RTN.shape)
    _call(loops.scale_read, dy_RTHP, G_RHT, room_RTHP)
    for h, S_RNP in enumerate(S_RNE.chunk(heads, dim=2)):
        torch.bmm(room_RTHP[:, :, h], S_RNP.mT, out=dC_HRTN[h])
    _call(loops.add_queries, C_RTN, dC_HRTN, dC_RTN, dG_RHT)
    dS_RNE = torch.bmm(C_RTN.mT, room_RTHP.flatten(2))
    _call(loops.add_up_backward, dS_RNE, S_RNE, G_RHT, chunks, dG_RHT)
    _call(loops.fade, u_RTHP, G_RHT, dt_RHT, room_RTHP)
    dB_RTN.baddbmm_(room_RTHP.flatten(2), dS_RNE.mT)
    torch.bmm(B_RTN, dS_RNE, out=room_RTHP.flatten(2))
    _call(loops.fade_backward, u_RTHP, G_RHT, dt_RHT, room_RTHP, du_RTHP, dG_RHT, ddt_RHT)


def _slabs(G_RHT: Tensor, chunks: int) -> tuple[list[slice], Tensor]:
    """The rows of each slab, which has whole documents of so many chunks; and room for the weights of one slab."""
    rows, heads, size = G_RHT.shape
    step = min(rows, chunks * max(1, SLAB // (chunks * heads * size * size)))
    return [slice(first, first + step) for first in range(0, rows, step)], torch.empty(step * heads * size * size)


def _call(loop: Callable[..., None], *inputs: Tensor | int) -> None:
    """Call a loop, for which tensors are arrays."""
    loop(*(x.numpy() if isinstance(x, Tensor) else x for x in inputs))
