"""Kimi Delta Attention (Kimi Team, 2025, arXiv 2510.26692): the delta rule on a memory whose key channels fade apart.

| here | there | |
|---|---|---|
| S_t (E, V) | S_t | memory; here keys × values |
| g | log α_t = -exp(A_log) softplus(W_f x_t + dt_bias) | how much of each key channel stays; W_f has low rank |
| beta | β_t = σ(W_β x_t), or 2σ(W_β x_t) | how much of the error is written |
| gate | g_proj, of low rank | of the output, by a sigmoid |

S_t = Diag(α_t) S_{t-1} + k_t (β_t (v_t - (Diag(α_t) S_{t-1})ᵀ k_t))ᵀ; o_t = S_tᵀ q_t.
B batch, L length, K positions asked for, H heads, E width of a head's keys, V of its values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers.memory import MemoryMixer, decay_parameters, size_of_head, whole
from mecheval.mixers.options import KDAOptions
from mecheval.mixers.parts import RMSNorm
from mecheval.ops.product import Linear
from mecheval.sites import Tap


class KDA(MemoryMixer):
    """The delta rule with a decay for each key channel."""

    Options = KDAOptions
    ragged = True
    g: Tap
    beta: Tap

    def __init__(self, d_model: int, layer: int, options: KDAOptions) -> None:
        heads = options.num_heads
        size = options.head_dim or size_of_head(d_model, heads, "kda", "its heads")
        values = whole(size * options.expand_v, "kda", "values of a head")
        super().__init__(d_model, heads, size, values)
        self.strongest, self.use_gate = 2 if options.allow_neg_eigval else 1, options.use_gate
        gates = {"g": "B L H E", "beta": "B L H", **({"gate": "B L H V"} if options.use_gate else {})}
        self.add_sites(options.conv_size if options.use_short_conv else 0, gates)
        self.f_proj = nn.Sequential(Linear(d_model, values, bias=False), Linear(values, heads * size, bias=False))
        self.b_proj = Linear(d_model, heads, bias=False)
        self.A_log, self.dt_bias = decay_parameters(heads, heads * size, least=1.0)
        if options.use_gate:
            self.g_proj = nn.Sequential(Linear(d_model, values, bias=False), Linear(values, heads * values))
        self.o_norm = RMSNorm(values)
        self.o_proj = Linear(heads * values, d_model, bias=False)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """q, k, v = silu(conv(W x)), q and k of unit length; then the gated delta rule."""
        q, k, v = self.unit_parts(x, at)
        steps = F.softplus(self.f_proj(x) + self.dt_bias)
        g = self.g(-self.A_log.exp().unsqueeze(1) * self.split(steps))  # (B, L, H, E)
        beta = self.beta(self.strongest * torch.sigmoid(self.b_proj(x)))  # (B, L, H)
        o = self.read(q, k, v, at, g=g, beta=beta)
        y: Tensor = self.o_proj(self.o_norm(o, self.opened(x, at, torch.sigmoid)).flatten(2))
        return y
