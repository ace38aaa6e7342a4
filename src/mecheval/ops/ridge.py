"""Ridge regression at every position, as in MesaNet: what a query becomes before it reads a memory.

    G <- exp(g_t) G + beta_t k_t k_t^T        the second moment G (D, D) of a head's keys starts at zero
    x_t = (G + diag(lamb))^-1 q_t             after the update

The fast path factorises G by Cholesky in double precision, because G is nearly singular next to its largest part. In
a document that is short beside the keys, G is A^T A with few rows, the keys times the roots of their weights, and the
matrix to factorise is the smaller one of

    (A^T A + diag(lamb))^-1 = R - R A^T (1 + A R A^T)^-1 A R,    R = diag(1 / lamb)

As for the gradient: with x held fixed, the residual r = q - G x - lamb x is a linear recurrence, and the
cotangent of r is that of x, solved by the same matrices.

Legend: B batch, L length, H heads, D key size, K queries of a document, N queries side by side, in C chunks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from mecheval.kernels import copy_row, copy_table, fast_kernel
from mecheval.ops.dispatch import use_fast
from mecheval.ops.linear_recurrence import linear_recurrence, linear_recurrence_states
from mecheval.ops.pieces import current
from mecheval.ops.queries import check_at, in_time_order, take

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_KEPT = 3 << 20
"""Most numbers in factors that are kept from the forward to the backward pass (24 MB); else it repeats them.

Allocations above 32 MB get fresh pages from the system each time, which takes longer than factorising again.
"""
SHORT = 1.0
"""Largest length, as a multiple of the key size, at which the smaller matrices are factorised."""
LANES = 32
"""Most queries that are solved side by side, so that every inner loop is a few vectors long, whatever the width, even
for one document. A kernel learns how many there are only when it runs: loops of a fixed length are unrolled, and then
not vectorised."""
LAID = 8
"""Number of matrices that are laid side by side at once: a cache line of doubles."""


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
    at_BK, which_BK = in_time_order(at, batch, length)
    matrices = [x.detach().contiguous() for x in (k, g.exp(), beta, lamb, at_BK, which_BK)]
    shape = (k.shape[2], -(-at_BK.numel() // LANES), k.shape[3], k.shape[3], LANES)
    keep = torch.is_grad_enabled() and not _is_short(k, beta) and math.prod(shape) <= MOST_KEPT
    factors = torch.empty(shape if keep else (0,) * 5, dtype=torch.float64)
    x = _solve(q.detach(), *matrices, factors, False)
    if not torch.is_grad_enabled():
        return x
    seen = linear_recurrence(x, beta.unsqueeze(3) * k, k, g=g, at=at)
    return _Implicit.apply(q - seen - lamb * x, x, *matrices, factors)  # type: ignore[no-any-return, no-untyped-call]


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
        return _solve(dx, *ctx.saved_tensors, True), *[None] * 8


def _is_short(k: Tensor, beta: Tensor) -> bool:
    """Whether the smaller matrices are factorised; only of strengths that are not negative are there roots."""
    return k.shape[1] <= SHORT * k.shape[3] and bool((beta >= 0).all())


def _solve(q: Tensor, *matrices: Any) -> Tensor:
    *tensors, known = matrices
    x_BKHD = torch.empty(q.shape)
    arrays: list[Any] = [x.numpy() for x in (x_BKHD, q.contiguous(), *tensors)]
    if _is_short(tensors[0], tensors[2]):
        _solve_short(*arrays[:-1])
    else:
        _solve_all(known and tensors[-1].numel() > 0, *arrays)
    return x_BKHD


@fast_kernel
def _solve_short(
    x_BKHD: Floats,
    q_BKHD: Floats,
    k_BLHD: Floats,
    w_BLH: Floats,
    beta_BLH: Floats,
    lamb_HD: Floats,
    at_BK: Ints,
    which_BK: Ints,
) -> None:
    """Fill x by the smaller matrices: for a query after n tokens, one of n rows."""
    batch, length, heads, size = k_BLHD.shape
    scaled_LD, P_LL, M_LL = np.empty((length, size)), np.empty((length, length)), np.empty((length, length))
    weight_L, root_L, y_L, x_D = np.empty(length), np.empty(length), np.empty(length), np.empty(size)
    for b in range(batch):
        for h in range(heads):
            for s in range(length):  # R k, and k R k of all pairs of keys
                for d in range(size):
                    scaled_LD[s, d] = k_BLHD[b, s, h, d] / lamb_HD[h, d]
                for r in range(s + 1):
                    P_LL[s, r] = _dot(scaled_LD[s], k_BLHD[b, r, h])
            start = 0
            for i in range(at_BK.shape[1]):
                n, which = at_BK[b, i] + 1, which_BK[b, i]
                for s in range(start, n):  # a key fades with every later token
                    for r in range(s):
                        weight_L[r] *= w_BLH[b, s, h]
                    weight_L[s] = beta_BLH[b, s, h]
                start = n
                for s in range(n):
                    root_L[s] = np.sqrt(weight_L[s])
                    y_L[s] = root_L[s] * _dot(scaled_LD[s], q_BKHD[b, which, h])
                    for r in range(s + 1):
                        M_LL[s, r] = root_L[s] * root_L[r] * P_LL[s, r]
                    M_LL[s, s] += 1
                _solve_rows(M_LL, y_L, n)
                for d in range(size):
                    x_D[d] = q_BKHD[b, which, h, d] / lamb_HD[h, d]
                for s in range(n):
                    for d in range(size):
                        x_D[d] -= root_L[s] * y_L[s] * scaled_LD[s, d]
                copy_row(x_D, x_BKHD[b, which, h])


@fast_kernel
def _dot(a_D: Doubles, b_D: Floats) -> float:
    total = 0.0
    for d in range(len(a_D)):
        total += a_D[d] * b_D[d]
    return total


@fast_kernel
def _solve_rows(M_LL: Doubles, y_L: Doubles, n: int) -> None:
    """Solve M x = y in place by the first n rows and columns; M, whose lower triangle is given, becomes its factor."""
    for s in range(n):
        for r in range(s):
            total = M_LL[s, r]
            for j in range(r):
                total -= M_LL[s, j] * M_LL[r, j]
            M_LL[s, r] = total * M_LL[r, r]
        total, y = M_LL[s, s], y_L[s]
        for j in range(s):
            total -= M_LL[s, j] * M_LL[s, j]
            y -= M_LL[s, j] * y_L[j]
        M_LL[s, s] = 1 / np.sqrt(total)  # the reciprocal of the diagonal
        y_L[s] = y * M_LL[s, s]
    for s in range(n - 1, -1, -1):
        y_L[s] *= M_LL[s, s]
        for r in range(s):
            y_L[r] -= M_LL[s, r] * y_L[s]


@fast_kernel
def _solve_all(
    known: bool,
    x_BKHD: Floats,
    q_BKHD: Floats,
    k_BLHD: Floats,
    w_BLH: Floats,
    beta_BLH: Floats,
    lamb_HD: Floats,
    at_BK: Ints,
    which_BK: Ints,
    factors: Doubles,
) -> None:
    """Fill x, and the factors of all queries (H, C, D, D, N) unless they have no room, or are known already.

    Of symmetric matrices only the upper triangle is computed.
    """
    batch, queries = at_BK.shape
    heads, size = lamb_HD.shape
    G_EDD, U_DDN, y_DN = np.zeros((LAID, size, size)), np.zeros((size, size, LANES)), np.zeros((size, LANES))
    for h in range(heads):
        for first in range(0, batch * queries, LANES):
            lanes = min(LANES, batch * queries - first)
            if len(factors):
                U_DDN = factors[h, first // LANES]
            for n in range(lanes):
                b, i = divmod(first + n, queries)
                copy_row(q_BKHD[b, which_BK[b, i], h], y_DN[:, n])
                if not known:
                    G_DD, start = G_EDD[n % LAID], 0
                    if i > 0:
                        copy_table(G_EDD[(n - 1) % LAID], G_DD)
                        start = at_BK[b, i - 1] + 1
                    else:
                        G_DD[:] = 0
                    for t in range(start, at_BK[b, i] + 1):
                        _write(G_DD, np.float64(w_BLH[b, t, h]), np.float64(beta_BLH[b, t, h]), k_BLHD[b, t, h])
                    if n % LAID == LAID - 1 or n == lanes - 1:
                        _lay(G_EDD, lamb_HD[h], U_DDN, n - n % LAID)
            if not known:
                _factorise(U_DDN, lanes)
            _back_and_forth(U_DDN, y_DN, lanes)
            for n in range(lanes):
                b, i = divmod(first + n, queries)
                copy_row(y_DN[:, n], x_BKHD[b, which_BK[b, i], h])


@fast_kernel
def _write(G_DD: Doubles, w: float, beta: float, k_D: Floats) -> None:
    """One step of G."""
    for i in range(len(k_D)):
        strength = beta * k_D[i]
        for j in range(i, len(k_D)):
            G_DD[i, j] = w * G_DD[i, j] + strength * k_D[j]


@fast_kernel
def _lay(G_EDD: Doubles, lamb_D: Floats, U_DDN: Doubles, first: int) -> None:
    """Copy G + diag(lamb) of a few queries to their lanes."""
    for i in range(len(lamb_D)):
        for j in range(i, len(lamb_D)):
            ridge = lamb_D[i] if i == j else 0.0
            for e in range(LAID):
                U_DDN[i, j, first + e] = G_EDD[e, i, j] + ridge


@fast_kernel
def _factorise(U_DDN: Doubles, lanes: int) -> None:
    """Replace each upper triangle of a matrix A by that with U^T U = A, and its diagonal by the reciprocals."""
    size = len(U_DDN)
    for i in range(size):
        for n in range(lanes):
            U_DDN[i, i, n] = 1 / np.sqrt(U_DDN[i, i, n])
        for j in range(i + 1, size):
            for n in range(lanes):
                U_DDN[i, j, n] *= U_DDN[i, i, n]
        for j in range(i + 1, size):
            for m in range(j, size):
                for n in range(lanes):
                    U_DDN[j, m, n] -= U_DDN[i, j, n] * U_DDN[i, m, n]


@fast_kernel
def _back_and_forth(U_DDN: Doubles, y_DN: Doubles, lanes: int) -> None:
    """Solve U^T U x = y in place."""
    size = len(y_DN)
    for i in range(size):
        for n in range(lanes):
            y_DN[i, n] *= U_DDN[i, i, n]
        for j in range(i + 1, size):
            for n in range(lanes):
                y_DN[j, n] -= U_DDN[i, j, n] * y_DN[i, n]
    for i in range(size - 1, -1, -1):
        for j in range(i + 1, size):
            for n in range(lanes):
                y_DN[i, n] -= U_DDN[i, j, n] * y_DN[j, n]
        for n in range(lanes):
            y_DN[i, n] *= U_DDN[i, i, n]
