"""Gated linear attention (Yang et al., 2023, arXiv 2312.06635): linear attention whose key channels fade by the token.

| here | there | |
|---|---|---|
| S_t (E, V) | S_t | memory; here keys × values |
| g | log α_t = log σ(W_α x_t) / τ | how much of each key channel stays; W_α has low rank, τ = 16 |
| gate | r_t | of the output, by silu |

S_t = Diag(α_t) S_{t-1} + k_t v_tᵀ; o_t = S_tᵀ q_t. With short convolutions, q, k and v are silu of them.
B batch, L length, K positions asked for, H heads, E width of a head's keys, V of its values.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers.memory import FadingAttention
from mecheval.mixers.options import GLAOptions
from mecheval.ops.product import Linear
from mecheval.sites import Tap


class GLA(FadingAttention):
    """Linear attention with a decay for each key channel."""

    Options = GLAOptions
    ragged = True
    g: Tap

    def __init__(self, d_model: int, layer: int, options: GLAOptions) -> None:
        super().__init__(d_model, "gla", options, {"g": "B L H E"})
        self.tau, rank = options.gate_logit_normalizer, options.gate_low_rank_dim
        decays = self.num_heads * self.key_size
        self.gk_proj = nn.Sequential(Linear(d_model, rank, bias=False), Linear(rank, decays))
        self.add_output()

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """q, k, v = W x, q scaled by 1/√E; then linear attention with decay."""
        q, k, v = self.inputs(x, at)
        g = self.g(self.split(F.logsigmoid(self.gk_proj(x)) / self.tau))  # (B, L, H, E)
        return self.output(self.read(self.q(q), self.k(k), self.v(v), at, g=g), x, at)
