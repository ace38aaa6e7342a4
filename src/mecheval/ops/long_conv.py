"""Long causal depthwise convolution: the kernel is as long as the document, and all documents share it.

Shapes: B batch, L length, P positions asked for, C channels, N transform length, M = N/2 + 1 frequencies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mecheval.ops import long_conv_kernel
from mecheval.ops.dispatch import once_differentiable, use_fast, use_gpu
from mecheval.ops.pieces import apart, current, extended
from mecheval.ops.queries import check_at, take
from mecheval.ops.ragged import arrays, documents_now, layout, longest

FOURIER_FROM = 320
"""From this length on, Fourier transforms beat the direct sum (measured, forward and backward, 64 to 192 channels)."""


def long_conv(x: Tensor, k: Tensor, at: Tensor | None = None) -> Tensor:
    """y[t, c] = Σ_{s<=t} k[s, c] x[t-s, c].

    x (B, L, C); k (L, C), and for a later piece of a document as many more as tokens were read before. Returns
    (B, L, C), or (B, P, C) at the positions `at` (B, P).
    From FOURIER_FROM on, and on GPUs, the sum is a product of Fourier transforms: each output then carries a rounding
    error relative to the largest, and so does its independence of later tokens.
    """
    if current(at) is not None:
        seen = extended(x)
        here = torch.arange(seen.shape[1] - x.shape[1], seen.shape[1], device=x.device).expand(len(x), -1)
        with apart():
            return long_conv(seen, k, None if seen is x else here)
    documents = documents_now()
    direct = use_fast(x, k) and (at is not None or longest(x) < FOURIER_FROM)
    if documents is not None and not direct:
        return documents.in_batch(lambda x: long_conv(x, k, at), [x], at=at)
    if at is not None:
        check_at(at, *x.shape[:2])
    if use_gpu("torch", x, k):
        size = transform_length(2 * x.shape[1] - 1)
        y = torch.fft.irfft(torch.fft.rfft(x, size, dim=1) * torch.fft.rfft(k, size, dim=0), size, dim=1)
        return y[:, : x.shape[1]] if at is None else take(y, at)
    if use_fast(x, k):
        if at is not None:
            return _LongConvAt.apply(x, k, at)  # type: ignore[no-any-return, no-untyped-call]
        function = _LongConvDirect if direct else _LongConvFourier
        return function.apply(x, k)  # type: ignore[no-any-return, no-untyped-call]
    return long_conv_reference(x, k, at)


def long_conv_reference(x: Tensor, k: Tensor, at: Tensor | None = None) -> Tensor:
    """`long_conv` as a product with the Toeplitz matrix T[t, u] = k[t-u] of each channel, of which `at` names rows."""
    u = torch.arange(x.shape[1], device=x.device)
    lag_BPL = (u[None] if at is None else at)[:, :, None] - u
    toeplitz_BPLC = torch.where(lag_BPL[..., None] >= 0, k[lag_BPL.clamp(min=0)], 0)
    return torch.einsum("bpuc,buc->bpc", toeplitz_BPLC, x)


class _LongConvDirect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor) -> Tensor:
        inputs = (x.contiguous(), k.contiguous(), layout(x).starts)
        y = torch.empty_like(inputs[0])
        long_conv_kernel.forward(*arrays(*inputs, y))
        ctx.save_for_backward(*inputs)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        inputs = ctx.saved_tensors
        dx, dk_LC = grads = [torch.empty_like(x) for x in inputs[:2]]
        long_conv_kernel.backward(*arrays(*inputs, dy.contiguous(), *grads))
        return dx, dk_LC


class _LongConvAt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor, at: Tensor) -> Tensor:
        inputs = (x.contiguous(), k.contiguous(), layout(x).starts, at.contiguous())
        y_BPC = x.new_zeros(*at.shape, x.shape[2])
        long_conv_kernel.forward_at(*arrays(*inputs, y_BPC))
        ctx.save_for_backward(*inputs)
        return y_BPC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs = ctx.saved_tensors
        dx, dk_LC = grads = [torch.zeros_like(x) for x in inputs[:2]]
        long_conv_kernel.backward_at(*arrays(*inputs, dy.contiguous(), *grads))
        return dx, dk_LC, None


class _LongConvFourier(torch.autograd.Function):
    """One document at a time, so that all stays in the cache: large temporaries cost more than the transforms."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Tensor) -> Tensor:
        x_BLC, k_LC = x.contiguous(), k.contiguous()
        y_BLC = torch.empty_like(x_BLC)
        pipe = _Pipe(*k.shape)
        k_CM = pipe.spectrum(k_LC)
        for x_LC, y_LC in zip(x_BLC, y_BLC, strict=True):
            pipe.inverse(pipe.spectrum(x_LC).mul_(k_CM), y_LC)
        ctx.save_for_backward(x_BLC, k_LC)
        return y_BLC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x_BLC, k_LC = ctx.saved_tensors
        dx_BLC, dk_LC = torch.empty_like(x_BLC), torch.empty_like(k_LC)
        pipe = _Pipe(*k_LC.shape)
        k_CM = pipe.spectrum(k_LC)
        dk_CM = torch.zeros_like(k_CM)
        # In reversed time both gradients are causal convolutions: dx of dy and k, dk of dy and x.
        for x_LC, dy_LC, dx_LC in zip(x_BLC, dy.contiguous(), dx_BLC, strict=True):
            dy_CM = pipe.spectrum(dy_LC, reverse=True)
            dk_CM.addcmul_(dy_CM, pipe.spectrum(x_LC))
            pipe.inverse(dy_CM.mul_(k_CM), dx_LC, reverse=True)
        pipe.inverse(dk_CM, dk_LC, reverse=True)
        return dx_BLC, dk_LC


class _Pipe:
    """Rows of channels (L, C) to their spectra (C, M) and back, through one padded buffer (C, N)."""

    def __init__(self, length: int, channels: int) -> None:
        self.size = transform_length(2 * length - 1)
        self.padded_CN = torch.zeros(channels, self.size)

    def spectrum(self, x_LC: Tensor, reverse: bool = False) -> Tensor:
        long_conv_kernel.to_columns(x_LC.numpy(), reverse, self.padded_CN.numpy())
        spectrum_CM: Tensor = torch.fft.rfft(self.padded_CN)
        return spectrum_CM

    def inverse(self, y_CM: Tensor, y_LC: Tensor, reverse: bool = False) -> None:
        y_CN = torch.fft.irfft(y_CM, n=self.size)
        long_conv_kernel.to_rows(y_CN.numpy(), reverse, y_LC.numpy())


def transform_length(at_least: int) -> int:
    """The next multiple of 8 that has no prime factor above 5: transforms of such lengths are the quick ones."""
    n = -(-at_least // 8) * 8
    while not _is_smooth(n):
        n += 8
    return n


def _is_smooth(n: int) -> bool:
    for prime in (2, 3, 5):
        while n % prime == 0:
            n //= prime
    return n == 1
