"""RetNet (Sun et al., 2023, arXiv 2307.08621): linear attention whose heads fade at fixed rates.

| here | there | |
|---|---|---|
| S_t (E, V) | S_n | memory; keys × values |
| γ_h | γ = 1 - 2^(-5-h) | how much of the memory of head h stays; not trained |
| q, k | Q, K ⊙ Θ | rotated by position (xPos without its scale) |
| gate | X W_G | of the output, by silu |

S_t = γ_h S_{t-1} + k_t v_tᵀ; o_t = S_tᵀ q_t. With short convolutions, q, k and v are silu of them.
B batch, L length, K positions asked for, H heads, E width of a head's keys, V of its values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mecheval.errors import UserError
from mecheval.mixers.attention import rotate
from mecheval.mixers.memory import FadingAttention
from mecheval.mixers.options import RetNetOptions
from mecheval.ops.pieces import tokens_before


class RetNet(FadingAttention):
    """Multi-scale retention: linear attention with a fixed decay for each head."""

    Options = RetNetOptions

    def __init__(self, d_model: int, layer: int, options: RetNetOptions) -> None:
        super().__init__(d_model, "retnet", options, {})
        self.rotary = options.rotary
        if self.rotary and self.key_size % 2:
            raise UserError(f"retnet: rotary positions need an even head width (got {self.key_size}).")
        self.add_output()

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """q, k, v = W x, q and k rotated, q scaled by 1/√E; then linear attention with decay."""
        batch, length = x.shape[:2]
        q, k, v = self.inputs(x, at)
        if self.rotary:
            everywhere = tokens_before() + torch.arange(length, device=x.device)[None]
            q = rotate(q.transpose(1, 2), everywhere if at is None else at).transpose(1, 2)
            k = rotate(k.transpose(1, 2), everywhere).transpose(1, 2)
        head = torch.arange(self.num_heads, device=x.device, dtype=torch.float64)
        g_H = torch.log1p(-(2 ** (-5 - head))).to(x.dtype)
        o = self.read(self.q(q), self.k(k), self.v(v), at, g=g_H.expand(batch, length, -1))
        return self.output(o, x, at)
