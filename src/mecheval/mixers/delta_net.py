"""DeltaNet (Schlag et al., 2021; Yang et al., 2024): a matrix memory that corrects what it has stored under a key.

| here | there | |
|---|---|---|
| S_t (E, E) | S_t | memory; here keys × values |
| beta | β_t = σ(W_β x_t), or 2σ(W_β x_t) | how much of the error is written |
| e_t | v_t - S_{t-1}ᵀ k_t | what the memory got wrong |

S_t = S_{t-1} + k_t (β_t e_t)ᵀ; o_t = S_tᵀ q_t. With β up to 2, a step can turn the sign of what it finds (Grazzi et
al., 2024, arXiv 2411.12537).
B batch, L length, K positions asked for, H heads, E head width, D = H E.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mecheval.mixers.base import divides
from mecheval.mixers.memory import MemoryMixer
from mecheval.mixers.options import DeltaNetOptions
from mecheval.mixers.parts import RMSNorm
from mecheval.ops.product import Linear
from mecheval.sites import Tap


class DeltaNet(MemoryMixer):
    """Linear attention with the delta rule."""

    Options = DeltaNetOptions
    ragged = True
    beta: Tap

    def __init__(self, d_model: int, layer: int, options: DeltaNetOptions) -> None:
        size = divides(options.num_heads, d_model, "delta_net")
        super().__init__(d_model, options.num_heads, size, size)
        self.strongest = 2 if options.allow_neg_eigval else 1
        self.b_proj = Linear(d_model, options.num_heads, bias=False)
        self.add_sites(options.conv_size if options.use_short_conv else 0, {"beta": "B L H"})
        self.o_norm = RMSNorm(size)  # one weight for all heads
        self.o_proj = Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """q, k, v = silu(conv(W x)), q and k of unit length; then the delta rule."""
        q, k, v = self.unit_parts(x, at)
        beta = self.beta(self.strongest * torch.sigmoid(self.b_proj(x)))  # (B, L, H)
        y: Tensor = self.o_proj(self.o_norm(self.read(q, k, v, at, beta=beta)).flatten(2))
        return y
