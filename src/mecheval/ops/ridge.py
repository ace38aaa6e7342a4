"""Ridge regression at every position, as in MesaNet: what a query becomes before it reads a memory.

    G <- exp(g_t) G + beta_t k_t k_t^T        the second moment G (D, D) of a head's keys starts at zero
    x_t = (G + diag(lamb))^-1 q_t             after the update

The fast path factorises G by Cholesky in double precision, because G is nearly singular next to its largest part. As
for the gradient: with x held fixed, the residual r = q - G x - lamb x is a linear recurrence, and the
cotangent of r is that of x, solved by the same matrices.

Legend: B batch, L length, H heads, D key size, K queries, N documents side by side, in
G groups.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import use_fast
from mecheval.ops.linear_recurrence import linear_recurrence, linear_recurrence_states
from mecheval.ops.pieces import current
from mecheval.ops.queries import check_at, in_time_order, take

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_KEPT = 1 << 23
"""Numbers in factors that are kept from the forward to the backward pass (64 MB); else it repeats them."""
LANES = 32
"""Most documents that are solved side by side, so that every inner loop is a few vectors long, whatever the width.

A kernel learns how many there are only when it runs: loops of a fixed length are unrolled, and then not vectorised.
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
    at_BK, which_BK = in_time_order(at, batch, length)
    matrices = [x.detach().contiguous() for x in (k, g.exp(), beta, lamb, at_BK, which_BK)]
    lanes = min(LANES, batch)
    shape = (-(-batch // LANES), k.shape[2], length, k.shape[3], k.shape[3], lanes)
    keep = torch.is_grad_enabled() and at is None and math.prod(shape) <= MOST_KEPT
    factors = torch.empty(shape if keep else (0,) * 6, dtype=torch.float64)
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


def _solve(q: Tensor, *matrices: Any) -> Tensor:
    *tensors, known = matrices
    x_BKHD = torch.empty(q.shape)
    arrays: list[Any] = [x.numpy() for x in (x_BKHD, q.contiguous(), *tensors)]
    _solve_all(known and tensors[-1].numel() > 0, *arrays)
    return x_BKHD


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
    """Fill x, and the factors of all positions (G, H, L, D, D, N) unless they have no room, or are known already.

    Of symmetric matrices only the upper triangle is computed.
    """
    batch, queries = at_BK.shape
    heads, size = lamb_HD.shape
    most = min(LANES, batch)
    G_DDN, U_DDN = np.zeros((size, size, most)), np.zeros((size, size, most))
    k_DN, y_DN, w_N, beta_N = np.zeros((size, most)), np.zeros((size, most)), np.zeros(most), np.zeros(most)
    asked_N = np.zeros(most, np.int64)
    for first in range(0, batch, LANES):
        lanes, steps = min(LANES, batch - first), 0
        for n in range(lanes if queries > 0 else 0):
            steps = max(steps, at_BK[first + n, queries - 1] + 1)
        for h in range(heads):
            G_DDN[:] = 0
            asked_N[:] = 0
            for t in range(steps):
                if len(factors):
                    U_DDN = factors[first // LANES, h, t]
                for n in range(0 if known else lanes):
                    w_N[n], beta_N[n] = w_BLH[first + n, t, h], beta_BLH[first + n, t, h]
                    k_DN[:, n] = k_BLHD[first + n, t, h]
                if not known:
                    _write(G_DDN, w_N, beta_N, k_DN)
                factorised = known
                while True:
                    asking = False
                    for n in range(lanes):
                        if asked_N[n] < queries and at_BK[first + n, asked_N[n]] == t:
                            y_DN[:, n] = q_BKHD[first + n, which_BK[first + n, asked_N[n]], h]
                            asking = True
                    if not asking:
                        break
                    if not factorised:
                        _factorise(G_DDN, lamb_HD[h], U_DDN)
                        factorised = True
                    _back_and_forth(U_DDN, y_DN)
                    for n in range(lanes):
                        if asked_N[n] < queries and at_BK[first + n, asked_N[n]] == t:
                            x_BKHD[first + n, which_BK[first + n, asked_N[n]], h] = y_DN[:, n]
                            asked_N[n] += 1


@fast_kernel
def _write(G_DDN: Doubles, w_N: Doubles, beta_N: Doubles, k_DN: Doubles) -> None:
    """One step of G."""
    for i in range(len(k_DN)):
        for j in range(i, len(k_DN)):
            for n in range(len(w_N)):
                G_DDN[i, j, n] = w_N[n] * G_DDN[i, j, n] + beta_N[n] * k_DN[i, n] * k_DN[j, n]


@fast_kernel
def _factorise(G_DDN: Doubles, lamb_D: Floats, U_DDN: Doubles) -> None:
    """Write to U the upper triangle with U^T U = G + diag(lamb), and to its diagonal the reciprocals."""
    size, lanes = len(lamb_D), G_DDN.shape[2]
    for i in range(size):
        U_DDN[i, i:] = G_DDN[i, i:]
        for n in range(lanes):
            U_DDN[i, i, n] += lamb_D[i]
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
def _back_and_forth(U_DDN: Doubles, y_DN: Doubles) -> None:
    """Solve U^T U x = y in place."""
    size, lanes = y_DN.shape
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
