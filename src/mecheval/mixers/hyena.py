"""Hyena (Poli et al., 2023), order 2: gate, long implicit convolution, gate.

| here | there | |
|---|---|---|
| x1, x2, v | x¹, x², v | projections, each through a short convolution |
| k | h | long filter: a sine MLP of the position, times a decay |
| y | x² ⊙ (h ∗ (x¹ ⊙ v)) | |

B batch, L length, K positions asked for, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mecheval.mixers.base import Mixer, fits
from mecheval.mixers.options import HyenaOptions
from mecheval.mixers.parts import PositionFeatures, ShortConv, projected_conv_at
from mecheval.ops.long_conv import long_conv
from mecheval.ops.pieces import tokens_before
from mecheval.ops.product import Linear, linear
from mecheval.ops.ragged import longest
from mecheval.ops.short_conv import short_conv
from mecheval.ops.weights import of_convolution
from mecheval.sites import Tap


class Hyena(Mixer):
    """Gated implicit long convolution."""

    Options = HyenaOptions
    ragged = True
    weighs = ("weights", "v", "long_conv")
    canon_b = ("in_proj",)  # x1, x2 and v are its k, q and v

    def __init__(self, d_model: int, layer: int, options: HyenaOptions) -> None:
        super().__init__()
        self.d_model, self.l_max, self.width = d_model, options.l_max, options.short_filter_order
        self.in_proj = Linear(d_model, 3 * d_model)
        self.out_proj = Linear(d_model, d_model)
        self.short_filter = ShortConv(3 * d_model, options.short_filter_order)
        self.filter_fn = HyenaFilter(d_model, options)
        self.conv = Tap("conv", "B L 3D")  # x1, x2 and v side by side
        self.x1, self.x2, self.v = Tap("x1"), Tap("x2"), Tap("v")
        self.weights = Tap("weights", "B D L S", kind="weights", readonly=True)
        self.long = Tap("long_conv")

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """y = out_proj(x2 ⊙ (k ∗ (x1 ⊙ v)))."""
        length, d = tokens_before() + longest(x), self.d_model
        fits(length, self.l_max, "hyena")
        if at is None:
            x1, x2, v = self.conv(self.short_filter(self.in_proj(x))).split(d, dim=-1)
        else:  # the gate x2 is wanted at few positions, x1 and v everywhere
            assert self.short_filter.bias is not None
            parts = (self.in_proj.weight, self.in_proj.bias, self.short_filter.weight, self.short_filter.bias)
            W, b, taps, taps_bias = (torch.cat([p[:d], p[2 * d :]]) for p in parts)
            x1, v = short_conv(linear(x, W, b), taps, taps_bias).split(d, dim=-1)
            W, b, taps, taps_bias = (p[d : 2 * d] for p in parts)
            x2 = projected_conv_at(x, W, b, taps, taps_bias, at)
        x1, k_LD = self.x1(x1), self.filter_fn(length)
        if self.weights.listening:
            self.weights(of_convolution(k_LD, len(x)) * x1.mT[:, :, None])
        y = long_conv(self.v(v) * x1, k_LD, at)
        out: Tensor = self.out_proj(self.long(y) * self.x2(x2))
        return out

    def state_size(self, length: int) -> int:
        """All gated inputs so far, and the tokens that the short convolution still reaches."""
        return length * self.d_model + 3 * min(length, self.width - 1) * self.d_model


class Sine(nn.Module):
    """sin(freq · a); one trained frequency vector serves all of a filter's activations."""

    def __init__(self, freq: nn.Parameter) -> None:
        super().__init__()
        self.freq = freq

    def forward(self, a: Tensor) -> Tensor:
        """Apply the function elementwise."""
        return torch.sin(self.freq * a)


class HyenaPositions(PositionFeatures):
    """Position features that are trained, beside τ_t = t/(l_max-1), which is not."""

    t: Tensor

    def __init__(self, l_max: int) -> None:
        super().__init__(l_max, trained=True)
        self.register_buffer("t", torch.linspace(0, 1, l_max)[None, :, None])


class Decay(nn.Module):
    """exp(-τ_t |δ_c|): channels forget at speeds between two fixed ends."""

    deltas: Tensor

    def __init__(self, d_model: int, fast: float = 0.3, slow: float = 1.5, target: float = 1e-2) -> None:
        super().__init__()
        ends = math.log(target) / slow, math.log(target) / fast
        self.register_buffer("deltas", torch.linspace(*ends, d_model)[None, None])

    def forward(self, tau_L1: Tensor) -> Tensor:
        """(L, 1) -> (L, D)."""
        return torch.exp(-tau_L1 * self.deltas[0].abs())


class HyenaFilter(nn.Module):
    """k_t = (W6 s(W4 s(W2 s(W0 z_t + b0) + b2) + b4)) ⊙ decay_t; the skip term is a tap on the token itself."""

    def __init__(self, d_model: int, options: HyenaOptions) -> None:
        super().__init__()
        width = options.filter_order
        self.use_bias = options.filter_bias
        self.bias = nn.Parameter(torch.randn(d_model))
        self.pos_emb = HyenaPositions(options.l_max)
        freq = nn.Parameter(torch.ones(1, width))
        self.implicit_filter = nn.Sequential(
            Linear(3, width), Sine(freq),
            Linear(width, width), Sine(freq),
            Linear(width, width), Sine(freq),
            Linear(width, d_model, bias=False),
        )  # fmt: skip
        self.modulation = Decay(d_model)

    def forward(self, length: int) -> Tensor:
        """The first `length` taps, (L, D)."""
        k_LD: Tensor = self.implicit_filter(self.pos_emb.z[0, :length])
        k_LD = k_LD * self.modulation(self.pos_emb.t[0, :length])
        skip = self.bias * float(self.use_bias)  # if off, the bias is still a parameter, with gradient 0, as upstream
        return torch.cat([k_LD[:1] + skip, k_LD[1:]])
