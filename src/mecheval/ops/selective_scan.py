"""The selective scan of Mamba: a linear recurrence whose decay and input depend on the token.

    S <- exp(dt_e A_en) S + dt_e u_e B_n        the state S (E, N) starts at zero
    y_e = sum_n S_en C_n                        after the update

Legend: B batch, L length, E channels, N states per channel, K queries, M = L + K; T tokens and Q queries of all
documents.
The skip term D u and the gate belong to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops.dispatch import once_differentiable, use_fast, use_gpu
from mecheval.ops.fastmath import LOG2_E
from mecheval.ops.pieces import current
from mecheval.ops.queries import as_extra_steps, check_at, take
from mecheval.ops.ragged import arrays, documents_now, layout
from mecheval.ops.selective_scan_kernel import scan_backward, scan_forward, segments


def selective_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, at: Tensor | None = None) -> Tensor:
    """Scan u (B, L, E) with steps dt (B, L, E) > 0 and rates A (E, N) < 0, written by B (B, L, N), read by C.

    Without `at`, C is (B, L, N) and the result (B, L, E). With `at` (B, K), the state is read only at those
    positions: C is (B, K, N) and the result (B, K, E).
    """
    _check(u, dt, A, B, C, at)
    if (now := current(at)) is not None:
        states = list(_states(u, dt, A, B, now.recall()))
        now.keep(states[-1])
        return _read(states, C)
    if use_gpu("mamba_ssm", u, dt, A, B, C):
        return _scan_on_gpu(u, dt, A, B, C, at)
    if use_fast(u, dt, A, B, C):
        keep = torch.is_grad_enabled() and any(t.requires_grad for t in (u, dt, A, B, C))
        return _Scan.apply(u, dt, A, B, C, at, keep)  # type: ignore[no-any-return, no-untyped-call]
    if (documents := documents_now()) is not None:
        return documents.in_batch(lambda C, u, dt, B: selective_scan(u, dt, A, B, C, at), (u, dt, B), [C], at)
    return selective_scan_reference(u, dt, A, B, C, at)


def selective_scan_reference(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, at: Tensor | None = None
) -> Tensor:
    """`selective_scan` as a loop over time, differentiable by autograd as often as you like."""
    if at is None:
        return _read(_states(u, dt, A, B), C)
    S_BKEN = take(selective_scan_states(u, dt, A, B), at)
    return (S_BKEN @ C.unsqueeze(3)).squeeze(3)


def selective_scan_states(u: Tensor, dt: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """The state (B, L, E, N) after each position."""
    return torch.stack(list(_states(u, dt, A, B)), dim=1)


def _read(states: Iterable[Tensor], C: Tensor) -> Tensor:
    read = zip(states, C.unbind(1), strict=True)
    return torch.stack([(S_BEN @ C_BN.unsqueeze(2)).squeeze(2) for S_BEN, C_BN in read], dim=1)


def _states(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, initial: Tensor | None = None) -> Iterator[Tensor]:
    # unbind, because the gradient of indexing one step at a time costs a whole sequence per step
    S_BEN = u.new_zeros(u.shape[0], *A.shape) if initial is None else initial
    for dt_BE, x_BE, B_BN in zip(dt.unbind(1), (dt * u).unbind(1), B.unbind(1), strict=True):
        S_BEN = torch.exp(dt_BE.unsqueeze(2) * A) * S_BEN + x_BE.unsqueeze(2) * B_BN.unsqueeze(1)
        yield S_BEN


def _scan_on_gpu(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, at: Tensor | None) -> Tensor:
    """Hand over to mamba_ssm, which wants time last; queries become steps with dt = 0, which keep the state."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    if at is not None:
        order_BM, place_BK = as_extra_steps(at, u.shape[1])
        u, dt, B = (take(F.pad(x, (0, 0, 0, at.shape[1])), order_BM) for x in (u, dt, B))
        C = take(F.pad(C, (0, 0, order_BM.shape[1] - at.shape[1], 0)), order_BM)
    u_BEM, dt_BEM, B_BNM, C_BNM = (x.mT.contiguous() for x in (u, dt, B, C))
    y_BME: Tensor = selective_scan_fn(u_BEM, dt_BEM, A, B_BNM, C_BNM).mT
    return y_BME if at is None else take(y_BME, place_BK)


def _check(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, at: Tensor | None) -> None:
    batch, length, channels = u.shape
    states = A.shape[1]
    if at is not None:
        check_at(at, batch, length)
    wanted = {
        "dt": (dt, (batch, length, channels)),
        "A": (A, (channels, states)),
        "B": (B, (batch, length, states)),
        "C": (C, (*((batch, length) if at is None else at.shape), states)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape:
            raise ValueError(f"selective_scan: {name} has shape {tuple(tensor.shape)}, u asks for {shape}")


class _Scan(torch.autograd.Function):
    """The numba kernels under autograd."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, at: Tensor | None, keep: bool
    ) -> Tensor:
        documents = layout(u)
        starts_B = documents.starts
        if at is None:
            asked_B, at_Q, which_Q = starts_B, documents.positions, torch.arange(len(documents.positions))
        else:
            asked_B = torch.arange(len(at) + 1) * at.shape[1]
            at_BK, which_BK = at.sort(dim=1, stable=True)
            at_Q, which_Q = at_BK.flatten(), (which_BK + asked_B[:-1, None]).flatten()
        inputs = [x.detach().contiguous() for x in (u, dt, (A * LOG2_E).mT, B, C)]
        inputs += [starts_B, asked_B, at_Q, which_Q]
        y = u.new_empty(*C.shape[:2], u.shape[2])
        groups = segments(documents.longest) if keep else 0
        saved_BGNE = u.new_empty(len(documents.lengths), groups, A.shape[1], u.shape[2])
        scan_forward(*arrays(*inputs, y, saved_BGNE))
        ctx.save_for_backward(*inputs, saved_BGNE)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        u, dt, A2_NE, B, C = inputs[:5]
        du, ddt, dA_NE, dB, dC = grads = [torch.empty_like(x) for x in (u, dt, A2_NE, B, C)]
        scan_backward(*arrays(*inputs, dy.contiguous(), *grads))
        return du, ddt, dA_NE.mT, dB, dC, None, None
