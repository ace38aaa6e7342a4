"""BaseConv (Arora et al., 2024, "Zoology"): a convolution, gated by a linear map of the same token.

| here | there | |
|---|---|---|
| conv(x) | h ∗ u + b_conv | short (learnt taps) or long (taps given by a small MLP of the position) |
| gate | u W + b | `projection` |
| y | (u W + b) ⊙ (h ∗ u) + u | the "+ u" is inside the mixer, on the normed input |

B batch, L length, K positions asked for, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers.base import Mixer, fits
from mecheval.mixers.options import LONG, BaseConvOptions
from mecheval.mixers.parts import PositionFeatures, ShortConv
from mecheval.ops.long_conv import long_conv
from mecheval.ops.pieces import tokens_before
from mecheval.ops.product import Linear
from mecheval.ops.queries import take
from mecheval.ops.ragged import longest
from mecheval.ops.short_conv import short_conv
from mecheval.ops.weights import of_convolution
from mecheval.sites import Tap


class BaseConv(Mixer):
    """Gated convolution; by default short in even layers, long in odd ones."""

    Options = BaseConvOptions
    ragged = True
    weighs = ("weights", "input", "conv")  # but for the bias of a short convolution, which comes from no token

    def __init__(self, d_model: int, layer: int, options: BaseConvOptions) -> None:
        super().__init__()
        sizes = [options.kernel_size] if isinstance(options.kernel_size, int) else options.kernel_size
        self.d_model, self.kernel_size = d_model, sizes[layer % len(sizes)]
        self.projection = Linear(d_model, d_model)
        self.conv: ShortFilter | LongFilter
        if self.kernel_size == LONG:
            self.conv = LongFilter(d_model, options.l_max)
        else:
            self.conv = ShortFilter(d_model, self.kernel_size)
        self.weights = Tap("weights", "B D L S", kind="weights", readonly=True)
        self.conv_out, self.gate = Tap("conv"), Tap("gate")

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """y = conv(x) ⊙ projection(x) + x."""
        here = x if at is None else take(x, at)
        if self.weights.listening:
            self.weights(of_convolution(self.conv.taps(x.shape[1]), len(x)))
        return self.conv_out(self.conv(x, at)) * self.gate(self.projection(here)) + here

    def state_size(self, length: int) -> int:
        """The inputs that the kernel still reaches."""
        reach = length if self.kernel_size == LONG else min(length, self.kernel_size - 1)
        return reach * self.d_model


class ShortFilter(nn.Module):
    """Learnt taps."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.conv = ShortConv(d_model, width)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D), or (B, K, D) at positions `at`."""
        return short_conv(x, self.conv.weight, self.conv.bias, at)

    def taps(self, length: int) -> Tensor:
        """The first `length` taps (L, D), from the current token back; those beyond the filter are 0."""
        taps_WD = self.conv.weight[:, 0].t().flip(0)[:length]
        return F.pad(taps_WD, (0, 0, 0, length - len(taps_WD)))


class LongFilter(nn.Module):
    """Taps as long as the document: k_t = W2 relu(W0 z_t + b0) + b2, plus the input itself."""

    def __init__(self, d_model: int, l_max: int) -> None:
        super().__init__()
        self.pos_emb = PositionFeatures(l_max, trained=False)
        self.mlp = nn.Sequential(Linear(3, 16), nn.ReLU(), Linear(16, d_model))
        self.l_max = l_max

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D), or (B, K, D) at positions `at`."""
        length = tokens_before() + longest(x)
        fits(length, self.l_max, "base_conv")
        return long_conv(x, self._implicit(length), at) + (x if at is None else take(x, at))

    def _implicit(self, length: int) -> Tensor:
        k_LD: Tensor = self.mlp(self.pos_emb.z[0, :length])
        return k_LD

    def taps(self, length: int) -> Tensor:
        """The first `length` taps (L, D), from the current token back, the input itself included."""
        k_LD = self._implicit(length)
        return torch.cat([k_LD[:1] + 1, k_LD[1:]])
