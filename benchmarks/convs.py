"""Convolutions, H3's parts and Taylor attention, forward and backward, against what published code does in PyTorch.

Batch 32, as in the paper's training; 36 is the length of its associative recall.
Shapes: B batch, L length, C channels, H heads, P numbers in a head, M frequencies, D channels, N lags.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.harness import Row, interleaved, show
from mecheval.ops.h3_kernels import diagonal_kernel, diagonal_kernel_reference, h3_mix, shift_kernel
from mecheval.ops.long_conv import long_conv
from mecheval.ops.short_conv import short_conv, short_conv_reference
from mecheval.ops.taylor_attention import taylor_attention, taylor_attention_reference

BATCH = 32
RECALL = ((36, 64), (36, 128), (36, 192))
LONGER = ((128, 128), (512, 128), (1024, 128))
"""(length, channels)"""

Op = Callable[..., Tensor]


def fourier_conv(x_BLC: Tensor, k_LC: Tensor) -> Tensor:
    """The long convolution as the published mixers have it: transforms of length 2 L over the whole batch."""
    length = x_BLC.shape[1]
    x_BMC, k_MC = torch.fft.rfft(x_BLC, 2 * length, dim=1), torch.fft.rfft(k_LC, 2 * length, dim=0)
    y_BLC: Tensor = torch.fft.irfft(x_BMC * k_MC, 2 * length, dim=1)[:, :length]
    return y_BLC


def fourier_mix(q: Tensor, k: Tensor, v: Tensor, kernel: Tensor, D: Tensor) -> Tensor:
    products_BLHPP = k[..., :, None] * v[..., None, :]
    width = k.shape[3]
    memory = fourier_conv(products_BLHPP.flatten(2), kernel.repeat_interleave(width * width, dim=1))
    return torch.einsum("blhe,blhef->blhf", q, memory.view_as(products_BLHPP) + D[:, None, None] * products_BLHPP)


def fourier_shift(B: Tensor, C: Tensor, length: int) -> Tensor:
    size = 2 * B.shape[1]
    lags: Tensor = torch.fft.irfft(torch.fft.rfft(B, size).conj() * torch.fft.rfft(C, size), size)
    return lags[:, :length].t()


def cases() -> Iterator[tuple[str, Op, Op, list[Tensor]]]:
    """Name, our op, the peer's, and their inputs."""
    for length, channels in (*RECALL, *LONGER):
        size, heads = f"L {length} C {channels}", channels // 2
        x, k = torch.randn(BATCH, length, channels), torch.randn(length, channels)
        taps = [x, torch.randn(channels, 1, 4), torch.randn(channels)]
        yield f"short_conv {size}", short_conv, short_conv_reference, taps
        yield f"long_conv {size}", long_conv, fourier_conv, [x, k]
        qk = [torch.randn(BATCH, length, 1, 8) for _ in range(2)]
        yield f"taylor_attention {size}", taylor_attention, taylor_attention_reference, [*qk, x[:, :, None]]
        qkv = [torch.randn(BATCH, length, heads, 2) for _ in range(3)]
        yield f"h3_mix {size}", h3_mix, fourier_mix, [*qkv, torch.randn(length, heads), torch.randn(heads)]
    # At longer lengths shift_kernel does as the peer does, and the peer's diagonal_kernel takes seconds.
    for length, channels in RECALL:
        size, states = f"L {length} C {channels}", [torch.randn(channels, 1024) for _ in range(2)]
        ours, peer = partial(shift_kernel, length=length), partial(fourier_shift, length=length)
        yield f"shift_kernel {size}", ours, peer, states
        ours, peer = (partial(f, length=length) for f in (diagonal_kernel, diagonal_kernel_reference))
        yield f"diagonal_kernel {size}", ours, peer, modes(channels // 2)


def modes(heads: int) -> list[Tensor]:
    """A diagonal model as H3 initialises it."""
    decay, turn = torch.full((heads, 512), math.log(0.5)), math.pi * torch.arange(512.0).repeat(heads, 1)
    B, C = torch.randn(heads, 512, 2), torch.randn(heads, 512, 2)
    return [decay, turn, B, C, torch.linspace(math.log(0.001), math.log(0.1), heads)]


def run() -> list[Row]:
    rows = []
    for name, ours, peer, inputs in cases():
        leaves = [x.detach().requires_grad_() for x in inputs]
        weights = torch.randn_like(ours(*leaves))

        def step(op: Op, leaves: list[Tensor] = leaves, weights: Tensor = weights) -> object:
            return torch.autograd.grad(op(*leaves), leaves, weights)

        ms = interleaved({"ours": partial(step, ours), "peer": partial(step, peer)}, seconds=2.0)
        rows.append(Row(name, ms["ours"], ms["peer"], target=1.0))
    return rows


if __name__ == "__main__":
    show(run())
