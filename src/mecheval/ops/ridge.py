"""Ridge regression at every position, as in MesaNet: what a query becomes before it reads a memory.

    G <- exp(g_t) G + beta_t k_t k_t^T        the second moment G (D, D) of a head's keys starts at zero
    x_t = (G + diag(lamb))^-1 q_t             after the update

The fast path factorises G by Cholesky in double precision, because G is nearly singular next to its largest part. Its
gradient needs no factors: with x held fixed, the residual r = q - G x - lamb x is a linear recurrence, and the
cotangent of r is that of x, solved by the same matrices.

Legend: B batch, L length, H heads, D key size, K queries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import use_fast
from mecheval.ops.linear_recurrence import linear_recurrence, linear_recurrence_states
from mecheval.ops.queries import check_at, in_time_order, take

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


def ridge(q: Tensor, k: Tensor, g: Tensor, beta: Tensor, lamb: Tensor, at: Tensor | None = None) -> Tensor:
    """x for queries q and keys k (B, L, H, D), log-decays g <= 0 and strengths beta (B, L, H), and lamb > 0 (H, D).

    With `at` (B, K), q and the result are (B, K, H, D), at those positions only.
    """
    batch, length = k.shape[:2]
    if at is not None:
        check_at(at, batch, length)
    if not use_fast(q, k, g, beta, lamb):
        return ridge_reference(q, k, g, beta, lamb, at)
    at_BK, which_BK = in_time_order(at, batch, length)
    matrices = [x.detach().contiguous() for x in (k, g.exp(), beta, lamb, at_BK, which_BK)]
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


def _solve(q: Tensor, *matrices: Tensor) -> Tensor:
    x_BKHD = torch.empty(q.shape)
    _solve_all(*(x.numpy() for x in (q.contiguous(), *matrices, x_BKHD)))
    return x_BKHD


@fast_kernel
def _solve_all(
    q_BKHD: Floats,
    k_BLHD: Floats,
    w_BLH: Floats,
    beta_BLH: Floats,
    lamb_HD: Floats,
    at_BK: Ints,
    which_BK: Ints,
    x_BKHD: Floats,
) -> None:
    """Fill x. Of symmetric matrices only the upper triangle is computed."""
    batch, queries = at_BK.shape
    heads, size = lamb_HD.shape
    G_DD, U_DD = np.zeros((size, size)), np.zeros((size, size))
    k_D, y_D = np.zeros(size), np.zeros(size)
    for b in range(batch):
        for h in range(heads):
            G_DD[:] = 0
            asked = 0
            steps = at_BK[b, queries - 1] + 1 if queries > 0 else 0
            for t in range(steps):
                w, beta = np.float64(w_BLH[b, t, h]), np.float64(beta_BLH[b, t, h])
                k_D[:] = k_BLHD[b, t, h]
                for i in range(size):
                    G_D, written = G_DD[i], beta * k_D[i]
                    for j in range(i, size):
                        G_D[j] = w * G_D[j] + written * k_D[j]
                if asked < queries and at_BK[b, asked] == t:
                    _factorise(G_DD, lamb_HD[h], U_DD)
                while asked < queries and at_BK[b, asked] == t:
                    which = which_BK[b, asked]
                    y_D[:] = q_BKHD[b, which, h]
                    _back_and_forth(U_DD, y_D)
                    x_BKHD[b, which, h] = y_D
                    asked += 1


@fast_kernel
def _factorise(G_DD: Doubles, lamb_D: Floats, U_DD: Doubles) -> None:
    """Write to U the upper triangle with U^T U = G + diag(lamb)."""
    size = len(lamb_D)
    for i in range(size):
        for j in range(i, size):
            U_DD[i, j] = G_DD[i, j]
        U_DD[i, i] += lamb_D[i]
    for start in range(
        0, size, 4
    ):  # four rows at a time, so that the rows below are loaded and stored a fourth as often
        stop = min(start + 4, size)
        for i in range(start, stop):
            row = U_DD[i]
            scale = 1 / np.sqrt(row[i])
            for j in range(i, size):
                row[j] *= scale
            for j in range(i + 1, stop):
                other, factor = U_DD[j], row[j]
                for m in range(j, size):
                    other[m] -= factor * row[m]
        if stop == size:
            return
        row_0, row_1, row_2, row_3 = U_DD[start], U_DD[start + 1], U_DD[start + 2], U_DD[start + 3]
        for j in range(stop, size):
            other, a, b, c, d = U_DD[j], row_0[j], row_1[j], row_2[j], row_3[j]
            for m in range(j, size):
                other[m] -= a * row_0[m] + b * row_1[m] + c * row_2[m] + d * row_3[m]


@fast_kernel
def _back_and_forth(U_DD: Doubles, y_D: Doubles) -> None:
    """Solve U^T U x = y in place."""
    size = len(y_D)
    for i in range(size):
        row = U_DD[i]
        y_D[i] /= row[i]
        done = y_D[i]
        for j in range(i + 1, size):
            y_D[j] -= row[j] * done
    for i in range(size - 1, -1, -1):
        row, total = U_DD[i], 0.0
        for j in range(i + 1, size):
            total += row[j] * y_D[j]
        y_D[i] = (y_D[i] - total) / row[i]
