"""Systems of equations whose matrix has ones on its diagonal, what is given below it, and nothing above it.

The writes of the delta rule in a chunk of positions solve one: each depends on those before it. The library's solver
takes up to three times as long for many small systems as the loops below.

Legend: N systems, C unknowns of each, V right-hand sides of each, K of the unknowns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import fast_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast

Floats = NDArray[np.float32]


def solve_unit_lower(A: Tensor, y: Tensor) -> Tensor:
    """The x (N, C, V) with x_t + Σ_{s<t} A_ts x_s = y_t; A (N, C, C) is read below its diagonal only, y (N, C, V)."""
    if use_fast(A, y):
        x: Tensor = _Solve.apply(A, y)  # type: ignore[no-untyped-call]
        return x
    return solve_unit_lower_reference(A, y)


def solve_unit_lower_reference(A: Tensor, y: Tensor) -> Tensor:
    """`solve_unit_lower` by the library."""
    x: Tensor = torch.linalg.solve_triangular(A, y, upper=False, unitriangular=True)
    return x


@fast_kernel
def _subtract(weights_K: Floats, rows_KV: Floats, from_V: Floats) -> None:
    """Subtract the weighted sum of rows, four at a time, so that the result is loaded and stored a fourth as often."""
    whole = len(weights_K) - len(weights_K) % 4
    for i in range(0, whole, 4):
        a, b, c, d = weights_K[i], weights_K[i + 1], weights_K[i + 2], weights_K[i + 3]
        p, q, r, s = rows_KV[i], rows_KV[i + 1], rows_KV[i + 2], rows_KV[i + 3]
        for j in range(len(from_V)):
            from_V[j] -= a * p[j] + b * q[j] + c * r[j] + d * s[j]
    for i in range(whole, len(weights_K)):
        a, p = weights_K[i], rows_KV[i]
        for j in range(len(from_V)):
            from_V[j] -= a * p[j]


@fast_kernel
def _forward(A_NCC: Floats, x_NCV: Floats) -> None:
    """Turn right-hand sides into solutions, from the first unknown to the last."""
    for n in range(len(A_NCC)):
        for t in range(A_NCC.shape[1]):
            _subtract(A_NCC[n, t, :t], x_NCV[n, :t], x_NCV[n, t])


@fast_kernel
def _backward(A_NCC: Floats, dy_NCV: Floats) -> None:
    """Turn gradients of solutions into those of right-hand sides: the transposed systems, from the last unknown."""
    column_C = np.empty(A_NCC.shape[1], np.float32)
    for n in range(len(A_NCC)):
        for s in range(A_NCC.shape[1] - 1, -1, -1):
            for t in range(s + 1, A_NCC.shape[1]):
                column_C[t] = A_NCC[n, t, s]
            _subtract(column_C[s + 1 :], dy_NCV[n, s + 1 :], dy_NCV[n, s])


class _Solve(torch.autograd.Function):
    """The loops under autograd."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, y: Tensor) -> Tensor:
        A_NCC, x_NCV = A.detach().contiguous(), y.detach().clone(memory_format=torch.contiguous_format)
        _forward(A_NCC.numpy(), x_NCV.numpy())
        ctx.save_for_backward(A_NCC, x_NCV)
        return x_NCV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, Tensor]:
        A_NCC, x_NCV = ctx.saved_tensors
        dy_NCV = dx.clone(memory_format=torch.contiguous_format)
        _backward(A_NCC.numpy(), dy_NCV.numpy())
        return torch.bmm(dy_NCV, x_NCV.mT).tril_(-1).neg_(), dy_NCV
