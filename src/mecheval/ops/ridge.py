"""Ridge regression at every position, as in MesaNet: what a query becomes before it reads a memory.

    G <- exp(g_t) G + beta_t k_t k_t^T        the second moment G (D, D) of a head's keys starts at zero
    x_t = (G + diag(lamb))^-1 q_t             after the update

The fast path factorises by Cholesky in double precision, because G is nearly singular next to its largest part. In a
document that is short beside the keys, G = k^T diag(weight) k has few terms, and the smaller matrix is factorised: with
keys and q divided by the roots of lamb, and W = diag(1 / weight),

    (k^T W^-1 k + 1)^-1 q = q - k^T (W + k k^T)^-1 k q

As for the gradient: with x held fixed, the residual r = q - G x - lamb x is a linear recurrence, and the
cotangent of r is that of x, solved by the same matrices.

Legend: B batch, L length, H heads, D key size, K queries of a document, N lanes; I four queries. Flat, in all lanes:
R a quad, V a vector, as quads, E a tile, T tiles, all of them as in `ridge_kernel.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast
from mecheval.ops.linear_recurrence import linear_recurrence, linear_recurrence_states
from mecheval.ops.pieces import current
from mecheval.ops.queries import check_at, in_time_order, take
from mecheval.ops.ridge_kernel import (
    FORGOTTEN,
    LANES,
    QUAD,
    TILE,
    Doubles,
    Floats,
    Ints,
    Seats,
    ask,
    empty_seats,
    fade,
    fill,
    gather,
    gather_by_head,
    lanes_sharing,
    lay,
    multiply,
    read_on,
    row,
    scatter,
    sit,
    solve,
    subtract,
    subtract_transposed,
    tiles,
    unread,
    write,
)

SHORT = 1.4
"""Below so many times the key size, tokens are few enough for the smaller matrices.

Where every token asks a query, both kinds took the same time at 1.3 times keys of 16 and 1.5 times longer ones; for a
single document at 1, and for a single query at 1.7 or more.
"""


def ridge(q: Tensor, k: Tensor, g: Tensor, beta: Tensor, lamb: Tensor, at: Tensor | None = None) -> Tensor:
    """x for queries q and keys k (B, L, H, D), log-decays g <= 0 and strengths beta (B, L, H), and lamb > 0 (H, D).

    With `at` (B, K), q and the result are (B, K, H, D), at those positions only.
    """
    batch, length = k.shape[:2]
    if (now := current(at)) is not None:
        G_BLHDD = linear_recurrence_states(beta.unsqueeze(3) * k, k, g=g, initial_state=now.recall())
        now.keep(G_BLHDD[:, -1])
        whole = (G_BLHDD + torch.diag_embed(lamb)).double()
        solved: Tensor = torch.linalg.solve(whole, q.double())
        return solved.to(q.dtype)
    if at is not None:
        check_at(at, batch, length)
    if not use_fast(q, k, g, beta, lamb):
        return ridge_reference(q, k, g, beta, lamb, at)
    matrices = [x.detach().contiguous() for x in (k, g.exp(), beta, lamb, *in_time_order(at, batch, length))]
    x = _solve(q.detach(), *matrices)
    if not torch.is_grad_enabled():
        return x
    seen = linear_recurrence(x, beta.unsqueeze(3) * k, k, g=g, at=at)
    return _Implicit.apply(q - seen - lamb * x, x, *matrices)  # type: ignore[no-any-return, no-untyped-call]


def ridge_reference(q: Tensor, k: Tensor, g: Tensor, beta: Tensor, lamb: Tensor, at: Tensor | None = None) -> Tensor:
    """`ridge` by PyTorch's own solver."""
    G_BLHDD = linear_recurrence_states(beta.unsqueeze(3) * k, k, g=g)
    G_BKHDD = G_BLHDD if at is None else take(G_BLHDD, at)
    x: Tensor = torch.linalg.solve(G_BKHDD + torch.diag_embed(lamb), q)
    return x


class _Implicit(torch.autograd.Function):
    """x itself, as a function of the residual that it leaves."""

    @staticmethod
    def forward(ctx: Any, r: Tensor, x: Tensor, *matrices: Tensor) -> Tensor:
        ctx.save_for_backward(*matrices)
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        return _solve(dx, *ctx.saved_tensors), *[None] * 7


def _solve(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, lamb: Tensor, at_BK: Tensor, which_BK: Tensor) -> Tensor:
    """x by the smaller matrices; those of tokens are of weights that are not negative."""
    x_BKHD = torch.empty(q.shape)
    if not x_BKHD.numel():
        return x_BKHD
    short = int(at_BK[:, -1].max()) < SHORT * k.shape[3] and bool((beta >= 0).all())
    kernel = _solve_by_tokens if short else _solve_by_channels
    kernel(*(x.numpy() for x in (x_BKHD, q.contiguous(), k, w, beta, lamb, at_BK, which_BK)))
    return x_BKHD


@fast_kernel
def _solve_by_channels(
    x_BKHD: Floats,
    q_BKHD: Floats,
    k_BLHD: Floats,
    w_BLH: Floats,
    beta_BLH: Floats,
    lamb_HD: Floats,
    at_BK: Ints,
    which_BK: Ints,
) -> None:
    """Fill x by the matrices G + diag(lamb), with a row for each channel.

    Where documents are few and most tokens ask queries, several lanes share a document, each with queries that follow
    one another. These lanes read their tokens twice: at first from an empty memory, for what that adds to the memory
    with which the next lane starts.
    """
    heads, size = lamb_HD.shape
    sequences, queries, quads = len(at_BK) * heads, at_BK.shape[1], -(-size // 4)
    sharing = lanes_sharing(sequences, queries) if 2 * queries >= k_BLHD.shape[1] else 1
    share = -(-queries // sharing)
    G_T, A_T, kept_N = np.zeros(tiles(quads) * TILE), np.zeros(tiles(quads) * TILE), np.ones(LANES)
    lamb_V, k_V, y_V = np.ones(quads * QUAD), np.zeros(quads * QUAD), np.zeros(quads * QUAD)
    seats = empty_seats(at_BK, which_BK)
    for first in range(0, sequences, LANES // sharing):
        lanes = sit(seats, heads, first, sharing, share)
        gather_by_head(lamb_HD, seats, lamb_V, lanes)
        fill(G_T, 0.0)
        if sharing > 1:
            fill(kept_N, 1.0)
            read_on(seats, lanes)
            ask(seats, share - 1, lanes)
            _remember(G_T, kept_N, k_V, k_BLHD, w_BLH, beta_BLH, seats, lanes)
            _hand_over(G_T, kept_N, seats, lanes)
            read_on(seats, lanes)
        for turn in range(share):
            ask(seats, turn, lanes)
            _remember(G_T, kept_N, k_V, k_BLHD, w_BLH, beta_BLH, seats, lanes)
            lay(G_T, lamb_V, A_T, quads, lanes)
            gather(q_BKHD, seats.query, seats, y_V, lanes)
            solve(A_T, y_V, quads, lanes)
            scatter(y_V, seats, x_BKHD, lanes)


@fast_kernel
def _remember(
    G_T: Doubles,
    kept_N: Doubles,
    k_V: Doubles,
    k_BLHD: Floats,
    w_BLH: Floats,
    beta_BLH: Floats,
    seats: Seats,
    lanes: int,
) -> None:
    """Read tokens up to the query of each lane: into G, and into `kept`, which is what remains of G as it was before.

    A lane that is there already reads its last token again, with no strength.
    """
    token_N, w_N, beta_N = np.zeros(LANES, np.int64), np.zeros(LANES), np.zeros(LANES)
    for _ in range(unread(seats, lanes)):
        for n in range(lanes):
            b, t, h = seats.document[n], seats.next[n], seats.head[n]
            token_N[n], w_N[n], beta_N[n] = seats.last[n], 1.0, 0.0
            if t <= seats.last[n]:
                token_N[n], w_N[n], beta_N[n] = t, w_BLH[b, t, h], beta_BLH[b, t, h]
                seats.next[n] += 1
            kept_N[n] *= w_N[n]
        gather(k_BLHD, token_N, seats, k_V, lanes)
        for p in range(len(k_V) // QUAD):
            for q in range(p + 1):
                write(row(G_T, p)[q * TILE :], w_N, beta_N, k_V[p * QUAD :], k_V[q * QUAD :], lanes)


@fast_kernel
def _hand_over(G_T: Doubles, kept_N: Doubles, seats: Seats, lanes: int) -> None:
    """Turn what each lane adds into what it starts with, which the lanes before it on the same head have added."""
    for first in range(0, len(G_T), LANES):
        before = 0.0
        for n in range(lanes):
            before = before if seats.turn[n] > 0 else 0.0
            before, G_T[first + n] = kept_N[n] * before + G_T[first + n], before


@fast_kernel
def _solve_by_tokens(
    x_BKHD: Floats,
    q_BKHD: Floats,
    k_BLHD: Floats,
    w_BLH: Floats,
    beta_BLH: Floats,
    lamb_HD: Floats,
    at_BK: Ints,
    which_BK: Ints,
) -> None:
    """Fill x by the smaller matrices W + k k^T, with a row for each token up to the query.

    Where documents are few, several lanes share one and take turns, so that their matrices are of about one size. Four
    queries at a time are multiplied by keys, which else would have to come from a farther cache for every one.
    """
    heads, size = lamb_HD.shape
    sequences, queries, quads = len(at_BK) * heads, at_BK.shape[1], 1 + at_BK.max() // 4
    sharing, run = min(lanes_sharing(sequences, queries), LANES // 2), -(-size // 4) * QUAD
    k_T, P_T, A_T = np.zeros(quads * 4 * run), np.zeros(tiles(quads) * TILE), np.zeros(tiles(quads) * TILE)
    root_V, q_IV, c_IV, W_V = np.ones(run), np.zeros((4, run)), np.zeros((4, quads * QUAD)), np.zeros(quads * QUAD)
    seats = empty_seats(at_BK, which_BK)
    for first in range(0, sequences, LANES // sharing):
        lanes = sit(seats, heads, first, sharing, 1)
        gather_by_head(lamb_HD, seats, root_V, lanes)
        for e in range(run):
            root_V[e] = 1 / np.sqrt(root_V[e])
        length = 1 + ask(seats, queries, lanes)
        _gather_keys(k_BLHD, root_V, k_T, seats, length, lanes)
        if 4 * sequences <= LANES:
            _products_of_few_keys(k_BLHD, lamb_HD, P_T, seats, length, lanes)
        else:
            _products_of_keys(k_T, P_T, run, -(-length // 4), lanes)
        fill(W_V, FORGOTTEN)
        for start in range(0, queries, 4 * sharing):
            turns = range(start, min(start + 4 * sharing, queries), sharing)
            for i, turn in enumerate(turns):
                quads = 1 + ask(seats, turn, lanes) // 4
                gather(q_BKHD, seats.query, seats, q_IV[i], lanes)
                multiply(q_IV[i], root_V, q_IV[i])
            _products_with_keys(k_T, q_IV, c_IV, len(turns), quads, lanes)
            for i, turn in enumerate(turns):
                quads = 1 + ask(seats, turn, lanes) // 4
                fade(W_V, w_BLH, beta_BLH, seats, lanes)
                lay(P_T, W_V, A_T, quads, lanes)
                solve(A_T, c_IV[i], quads, lanes)
                for p in range(quads):
                    subtract_transposed(q_IV[i], c_IV[i, p * QUAD : p * QUAD + QUAD], k_T[4 * p * run :], lanes)
                multiply(q_IV[i], root_V, q_IV[i])
                scatter(q_IV[i], seats, x_BKHD, lanes)


@fast_kernel
def _gather_keys(k_BLHD: Floats, root_V: Doubles, k_T: Doubles, seats: Seats, length: int, lanes: int) -> None:
    """Copy the keys of so many tokens, divided by the roots of lamb, to their lanes: four tokens are a row of tiles.

    The last one fills up the last row, where nothing of other documents may remain.
    """
    token_N, run = np.zeros(LANES, np.int64), len(root_V)
    k_V = np.zeros(run)
    for t in range(-(-length // 4) * 4):
        for n in range(lanes):
            token_N[n] = min(t, length - 1)
        gather(k_BLHD, token_N, seats, k_V, lanes)
        for c in range(0, run, QUAD):
            start = t // 4 * 4 * run + 4 * c + t % 4 * QUAD
            multiply(k_V[c : c + QUAD], root_V[c:], k_T[start:])


@fast_kernel
def _products_of_keys(k_T: Doubles, P_T: Doubles, run: int, quads: int, lanes: int) -> None:
    """P = k k^T."""
    fill(P_T, 0.0)
    for p in range(quads):
        for q in range(p + 1):
            P_E = row(P_T, p)[q * TILE : q * TILE + TILE]
            subtract(P_E, k_T[4 * p * run :], k_T[4 * q * run : 4 * (q + 1) * run], lanes)
    for e in range(tiles(quads) * TILE):
        P_T[e] = -P_T[e]


@fast_kernel
def _products_of_few_keys(k_BLHD: Floats, lamb_HD: Floats, P_T: Doubles, seats: Seats, length: int, lanes: int) -> None:
    """P = k k^T, once for all lanes with the same head, which are neighbours."""
    k_LD, end = np.zeros((-(-length // 4) * 4, k_BLHD.shape[3])), 0
    while end < lanes:
        first, b, h = end, seats.document[end], seats.head[end]
        while end < lanes and seats.document[end] == b and seats.head[end] == h:
            end += 1
        for i in range(len(k_LD)):
            for d in range(k_LD.shape[1]):
                k_LD[i, d] = k_BLHD[b, min(i, length - 1), h, d] / np.sqrt(np.float64(lamb_HD[h, d]))
            for j in range(i + 1):
                product, start = 0.0, (tiles(i // 4) + j // 4) * TILE + i % 4 * QUAD + j % 4 * LANES
                for d in range(k_LD.shape[1]):
                    product += k_LD[i, d] * k_LD[j, d]
                for n in range(first, end):
                    P_T[start + n] = product


@fast_kernel
def _products_with_keys(k_T: Doubles, q_IV: Doubles, c_IV: Doubles, several: int, quads: int, lanes: int) -> None:
    """c = k q, for several queries."""
    run = q_IV.shape[1]
    for p in range(quads):
        for i in range(several):
            c_R = c_IV[i, p * QUAD : p * QUAD + QUAD]
            fill(c_R, 0.0)
            subtract(c_R, q_IV[i], k_T[4 * p * run : 4 * (p + 1) * run], lanes)
            for e in range(QUAD):
                c_R[e] = -c_R[e]
