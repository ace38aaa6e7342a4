"""H3's parts: the convolution kernels of its two state space models, and the gated convolution they serve.

Shapes: B batch, L length, A positions asked for, D channels, N states, H heads, P numbers in a head, M = N/2 modes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.ops import h3_mix_kernel, h3_ssm_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast, use_gpu
from mecheval.ops.long_conv import FOURIER_FROM, long_conv, long_conv_reference, transform_length
from mecheval.ops.long_conv_kernel import to_columns, to_rows
from mecheval.ops.pieces import current
from mecheval.ops.queries import check_at, take
from mecheval.ops.ragged import arrays, documents_now, layout

SHIFT_FOURIER_FROM = 96
"""From this length on, the shift kernel is faster by Fourier transforms (measured with 64 and 128 channels)."""


def shift_kernel(B: Tensor, C: Tensor, length: int) -> Tensor:
    """The shift model's kernel: k[l, d] = Σ_{n=0}^{N-1-l} B[d, n] C[d, n+l]. B, C (D, N); returns (L, D).

    Few lags of many states are dot products. Many lags, and all on GPUs, come out of a Fourier transform at once.
    """
    if use_gpu("torch", B, C) or (use_fast(B, C) and length >= SHIFT_FOURIER_FROM):
        size = transform_length(B.shape[1] + length - 1)
        lags_DN: Tensor = torch.fft.irfft(torch.fft.rfft(B, size).conj() * torch.fft.rfft(C, size), size)
        return lags_DN[:, :length].t()
    if use_fast(B, C):
        return _ShiftKernel.apply(B, C, length)  # type: ignore[no-any-return, no-untyped-call]
    return shift_kernel_reference(B, C, length)


def shift_kernel_reference(B: Tensor, C: Tensor, length: int) -> Tensor:
    """`shift_kernel` as dot products of B with windows of C, which is followed by zeros."""
    windows_DLN = F.pad(C, (0, length)).unfold(1, B.shape[1], 1)[:, :length]
    return torch.einsum("dn,dln->ld", B, windows_DLN)


def diagonal_kernel(inv_A_real: Tensor, A_imag: Tensor, B: Tensor, C: Tensor, log_dt: Tensor, length: int) -> Tensor:
    """The diagonal model's kernel, discretised by the bilinear rule.

    k[l, h] = 2 Re Σ_m C_m B_m dt / (1 - z_m) ((1 + z_m) / (1 - z_m))^l
    with z = dt A / 2, A = -exp(inv_A_real) + i A_imag, dt = exp(log_dt).
    inv_A_real, A_imag (H, M); B, C (H, M, 2), real and imaginary parts; log_dt (H,). Returns (L, H).
    """
    if use_fast(inv_A_real, A_imag, B, C, log_dt):
        A_real, dt = -inv_A_real.double().exp(), log_dt.double().exp()
        return _DiagonalKernel.apply(A_real, A_imag, B, C, dt, length)  # type: ignore[no-any-return, no-untyped-call]
    return diagonal_kernel_reference(inv_A_real, A_imag, B, C, log_dt, length)


def diagonal_kernel_reference(
    inv_A_real: Tensor, A_imag: Tensor, B: Tensor, C: Tensor, log_dt: Tensor, length: int
) -> Tensor:
    """`diagonal_kernel` as written there, all powers at once: exp(l log(.)).

    In double precision, rounded at the end: a mode turns by up to half a circle a step, and in single precision its
    angle after l steps would be off by l roundings.
    """
    dtype, double = log_dt.dtype, torch.float32 if log_dt.device.type == "mps" else torch.float64  # which mps lacks
    inv_A_real, A_imag, B, C, log_dt = (x.to(double) for x in (inv_A_real, A_imag, B, C, log_dt))
    dt_H1 = log_dt.exp()[:, None]
    z_HM = torch.complex(-inv_A_real.exp(), A_imag) * dt_H1 / 2
    weight_HM = torch.view_as_complex(B) * torch.view_as_complex(C) * dt_H1 / (1 - z_HM)
    lag_L = torch.arange(length, device=log_dt.device)
    power_LHM = torch.exp(lag_L[:, None, None] * torch.log((1 + z_HM) / (1 - z_HM)))
    return 2 * torch.einsum("hm,lhm->lh", weight_HM, power_LHM).real.to(dtype)


def h3_mix(q: Tensor, k: Tensor, v: Tensor, kernel: Tensor, D: Tensor, at: Tensor | None = None) -> Tensor:
    """H3's gated convolution: per head, products of keys and values are remembered, and queries read them.

    out[t, h, f] = Σ_e q[t, h, e] (Σ_{s<=t} kernel[t-s, h] k[s, h, e] v[s, h, f] + D[h] k[t, h, e] v[t, h, f])
    q, k, v (B, L, H, P); with `at` (B, A), q is (B, A, H, P), at those positions only. kernel (L, H), D (H,).
    Returns (B, L or A, H, P).
    """
    documents = documents_now()
    direct = use_fast(q, k, v, kernel, D) and (at is not None or len(kernel) < FOURIER_FROM)
    if documents is not None and not direct:
        return documents.in_batch(lambda q, k, v: h3_mix(q, k, v, kernel, D, at), (k, v), [q], at)
    if at is not None:
        check_at(at, *k.shape[:2])
    if use_gpu("torch", q, k, v, kernel, D):
        return _mix_products(q, k, v, kernel, D, at, long_conv)
    if not use_fast(q, k, v, kernel, D):
        return h3_mix_reference(q, k, v, kernel, D, at)
    # The skip term is a convolution too, with a kernel that ends after lag 0.
    kernel = kernel + F.pad(D[None], (0, 0, 0, len(kernel) - 1))
    if not direct:
        return _MixFourier.apply(q, k, v, kernel)  # type: ignore[no-any-return, no-untyped-call]
    return _Mix.apply(q, k, v, kernel, at)  # type: ignore[no-any-return, no-untyped-call]


def h3_mix_reference(q: Tensor, k: Tensor, v: Tensor, kernel: Tensor, D: Tensor, at: Tensor | None = None) -> Tensor:
    """`h3_mix` by all P x P products of keys and values, each convolved on its own."""
    return _mix_products(q, k, v, kernel, D, at, long_conv_reference)


def shift_register(k: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The convolution of k (B, L, D) with `shift_kernel`, as a recurrence that continues after earlier pieces.

    S <- S moved on by one state, plus B k_t; y_t = Σ_n C[n] S[n]. B, C (D, N); returns (B, L, D).
    """
    now = current()
    before = None if now is None else now.recall()
    S_BDN = k.new_zeros(len(k), *B.shape) if before is None else before
    read = []
    for k_BD in k.unbind(1):
        S_BDN = F.pad(S_BDN, (1, -1)) + B * k_BD.unsqueeze(2)
        read.append((S_BDN * C).sum(2))
    if now is not None:
        now.keep(S_BDN)
    return torch.stack(read, dim=1)


def h3_mix_recurrent(
    q: Tensor, k: Tensor, v: Tensor, inv_A_real: Tensor, A_imag: Tensor, B: Tensor, C: Tensor, log_dt: Tensor, D: Tensor
) -> Tensor:
    """`h3_mix` with the kernel of `diagonal_kernel`, as a recurrence that continues after earlier pieces.

    Each product of a key and a value has M complex modes, S <- (1 + z) / (1 - z) S + k v; what is read of them is
    2 Re Σ_m C_m B_m dt / (1 - z_m) S_m. In double precision, for the reason given at `diagonal_kernel_reference`.
    """
    now = current()
    inv_A_real, A_imag, B, C, log_dt = (x.double() for x in (inv_A_real, A_imag, B, C, log_dt))
    z_HM = torch.complex(-inv_A_real.exp(), A_imag) * log_dt.exp()[:, None] / 2
    keep_HM = ((1 + z_HM) / (1 - z_HM))[:, None, None]
    weight_HM = torch.view_as_complex(B) * torch.view_as_complex(C) * log_dt.exp()[:, None] / (1 - z_HM)
    products_BLHPP = k[..., :, None] * v[..., None, :]
    before = None if now is None else now.recall()
    S_BHPPM = keep_HM.new_zeros(1) if before is None else before
    read = []
    for q_BHP, x_BHPP in zip(q.unbind(1), products_BLHPP.unbind(1), strict=True):
        S_BHPPM = keep_HM * S_BHPPM + x_BHPP.unsqueeze(4)
        memory_BHPP = 2 * torch.einsum("hm,bhefm->bhef", weight_HM, S_BHPPM).real.to(q.dtype)
        read.append(torch.einsum("bhe,bhef->bhf", q_BHP, memory_BHPP + D[:, None, None] * x_BHPP))
    if now is not None:
        now.keep(S_BHPPM)
    return torch.stack(read, dim=1)


def _mix_products(
    q: Tensor, k: Tensor, v: Tensor, kernel: Tensor, D: Tensor, at: Tensor | None, conv: Callable[..., Tensor]
) -> Tensor:
    products_BLHPP = k[..., :, None] * v[..., None, :]
    heads, width = k.shape[2:]
    kernel_LC = kernel.repeat_interleave(width * width, dim=1)
    memory_BAC = conv(products_BLHPP.flatten(2), kernel_LC, at)
    memory_BAHPP = memory_BAC.reshape(*memory_BAC.shape[:2], heads, width, width)
    now_BAHPP = products_BLHPP if at is None else take(products_BLHPP, at)
    return torch.einsum("bahe,bahef->bahf", q, memory_BAHPP + D[:, None, None] * now_BAHPP)


class _ShiftKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, B: Tensor, C: Tensor, length: int) -> Tensor:
        B_DN, C_DN = B.contiguous(), C.contiguous()
        kernel_LD = B.new_empty(length, len(B))
        h3_ssm_kernel.shift_forward(B_DN.numpy(), C_DN.numpy(), kernel_LD.numpy())
        ctx.save_for_backward(B_DN, C_DN)
        return kernel_LD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dkernel_LD: Tensor) -> tuple[Tensor, Tensor, None]:
        B_DN, C_DN = ctx.saved_tensors
        dB_DN, dC_DN = torch.zeros_like(B_DN), torch.zeros_like(C_DN)
        h3_ssm_kernel.shift_backward(*(x.numpy() for x in (B_DN, C_DN, dkernel_LD.contiguous(), dB_DN, dC_DN)))
        return dB_DN, dC_DN, None


class _DiagonalKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, A_real: Tensor, A_imag: Tensor, B: Tensor, C: Tensor, dt: Tensor, length: int) -> Tensor:
        inputs = [x.contiguous() for x in (A_real, A_imag, B, C, dt)]
        kernel_LH = B.new_empty(length, len(B))
        h3_ssm_kernel.diagonal_forward(*(x.numpy() for x in (*inputs, kernel_LH)))
        ctx.save_for_backward(*inputs)
        return kernel_LH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dkernel_LH: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        gradients = [torch.empty_like(x) for x in inputs]
        h3_ssm_kernel.diagonal_backward(*(x.numpy() for x in (*inputs, dkernel_LH.contiguous(), *gradients)))
        return *gradients, None


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, kernel: Tensor, at: Tensor | None) -> Tensor:
        inputs = [*(x.contiguous() for x in (q, k, v, kernel)), layout(k).starts]
        out = torch.empty_like(inputs[0]) if at is None else torch.zeros_like(inputs[0])
        if at is None:
            h3_mix_kernel.forward(*arrays(*inputs, out))
        else:
            inputs.append(at.contiguous())
            h3_mix_kernel.forward_at(*arrays(*inputs, out))
        ctx.save_for_backward(*inputs)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        if len(inputs) == 5:
            gradients = [torch.empty_like(x) for x in inputs[:4]]
            h3_mix_kernel.backward(*arrays(*inputs, dout.contiguous(), *gradients))
        else:
            gradients = [torch.zeros_like(x) for x in inputs[:4]]
            h3_mix_kernel.backward_at(*arrays(*inputs, dout.contiguous(), *gradients))
        return *gradients, None


class _MixFourier(torch.autograd.Function):
    """Convolutions by Fourier transforms, one document at a time, so that all of it stays in the cache."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, kernel: Tensor) -> Tensor:
        inputs = q_BLHP, k_BLHP, v_BLHP, kernel_LH = [x.contiguous() for x in (q, k, v, kernel)]
        out_BLHP = torch.empty_like(q_BLHP)
        size = transform_length(2 * len(kernel) - 1)
        kernel_H11M = torch.fft.rfft(kernel_LH.t(), size)[:, None, None]
        for q_LHP, k_LHP, v_LHP, out_LHP in zip(q_BLHP, k_BLHP, v_BLHP, out_BLHP, strict=True):
            q_HPL, k_HPL, v_HPL = _time_last(q_LHP), _time_last(k_LHP), _time_last(v_LHP)
            products_HPPM = torch.fft.rfft(k_HPL[:, :, None] * v_HPL[:, None], size)
            mixed_HPPL = torch.fft.irfft(products_HPPM.mul_(kernel_H11M), size)[..., : len(kernel)]
            _time_first((q_HPL[:, :, None] * mixed_HPPL).sum(1), out_LHP)
        ctx.save_for_backward(*inputs)
        return out_BLHP

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
        q_BLHP, k_BLHP, v_BLHP, kernel_LH = ctx.saved_tensors
        dq_BLHP, dk_BLHP, dv_BLHP = (torch.empty_like(x) for x in (q_BLHP, k_BLHP, v_BLHP))
        length = len(kernel_LH)
        size = transform_length(2 * length - 1)
        kernel_H11M = torch.fft.rfft(kernel_LH.t(), size)[:, None, None]
        conjugate_H11M = kernel_H11M.conj().resolve_conj()
        dkernel_HM = torch.zeros_like(kernel_H11M[:, 0, 0])
        documents = zip(q_BLHP, k_BLHP, v_BLHP, dout.contiguous(), dq_BLHP, dk_BLHP, dv_BLHP, strict=True)
        for q_LHP, k_LHP, v_LHP, dout_LHP, dq_LHP, dk_LHP, dv_LHP in documents:
            q_HPL, k_HPL, v_HPL, dout_HPL = (_time_last(x) for x in (q_LHP, k_LHP, v_LHP, dout_LHP))
            products_HPPM = torch.fft.rfft(k_HPL[:, :, None] * v_HPL[:, None], size)
            dmixed_HPPM = torch.fft.rfft(q_HPL[:, :, None] * dout_HPL[:, None], size)
            dkernel_HM += (products_HPPM.conj() * dmixed_HPPM).sum((1, 2))
            mixed_HPPL = torch.fft.irfft(products_HPPM.mul_(kernel_H11M), size)[..., :length]
            _time_first((dout_HPL[:, None] * mixed_HPPL).sum(2), dq_LHP)
            dproducts_HPPL = torch.fft.irfft(dmixed_HPPM.mul_(conjugate_H11M), size)[..., :length]
            _time_first((dproducts_HPPL * v_HPL[:, None]).sum(2), dk_LHP)
            _time_first((dproducts_HPPL * k_HPL[:, :, None]).sum(1), dv_LHP)
        dkernel_LH = torch.fft.irfft(dkernel_HM, size)[:, :length].t()
        return dq_BLHP, dk_BLHP, dv_BLHP, dkernel_LH


def _time_last(x_LHP: Tensor) -> Tensor:
    length, heads, width = x_LHP.shape
    x_HPL = x_LHP.new_empty(heads, width, length)
    to_columns(x_LHP.flatten(1).numpy(), False, x_HPL.flatten(0, 1).numpy())
    return x_HPL


def _time_first(x_HPL: Tensor, out_LHP: Tensor) -> None:
    to_rows(x_HPL.flatten(0, 1).numpy(), False, out_LHP.flatten(1).numpy())
