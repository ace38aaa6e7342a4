"""Modules that several mixers share.

B batch, L length, K positions asked for, D model width, C channels, W taps of a short convolution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mecheval.ops.product import Linear, linear
from mecheval.ops.queries import check_at, take
from mecheval.ops.rms_norm import rms_norm
from mecheval.ops.short_conv import short_conv


class ShortConv(nn.Conv1d):
    """A causal depthwise convolution over (B, L, C), with Conv1d's parameters and initialisation."""

    def __init__(self, channels: int, width: int, bias: bool = True) -> None:
        super().__init__(channels, channels, width, groups=channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, C) -> (B, L, C)."""
        return short_conv(x, self.weight, self.bias)


class OwnLinear(Linear):
    """A linear map that keeps its mixer's initialisation, whatever the model does to other linear maps."""


def projected_conv_at(
    x: Tensor, weight: Tensor, bias: Tensor | None, taps: Tensor, taps_bias: Tensor | None, at: Tensor
) -> Tensor:
    """A short convolution of linear(x) at positions `at` only, which projects just the W tokens that each output sees.

    x (B, L, D), weight (C, D), bias (C,), taps (C, 1, W), taps_bias (C,) -> (B, K, C).
    """
    check_at(at, *x.shape[:2])
    width = taps.shape[-1]
    seen_BKW = at[:, :, None] - torch.arange(width - 1, -1, -1, device=x.device)
    window = take(x, seen_BKW.clamp(min=0).flatten(1)).unflatten(1, seen_BKW.shape[1:])  # (B, K, W, D)
    u_BKWC = linear(window, weight, bias) * (seen_BKW >= 0)[..., None]  # zeros, not bias, before the first token
    y = torch.einsum("bkwc,cw->bkc", u_BKWC, taps[:, 0])
    return y if taps_bias is None else y + taps_bias


class PositionFeatures(nn.Module):
    """z_t = [t/(l_max-1), cos(f w_t), -sin(f w_t)], w_t = 2πt/l_max, with the one band f = 1e-4; `z` (1, l_max, 3)."""

    def __init__(self, l_max: int, trained: bool) -> None:
        super().__init__()
        t = torch.linspace(0, 1, l_max)[:, None]
        angle = 1e-4 * 2 * math.pi * torch.arange(l_max)[:, None] / l_max
        z = torch.cat([t, torch.cos(angle), -torch.sin(angle)], dim=1)[None]
        self.z = nn.Parameter(z, requires_grad=trained)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + 1e-5) · weight, over the last axis; then a product with a gate if there is one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        normed = rms_norm(x, self.weight)
        return normed if gate is None else normed * gate
