"""Gated DeltaNet (Yang et al., 2024, arXiv 2412.06464): the delta rule on a memory that each head lets fade.

| here | there | |
|---|---|---|
| S_t (E, V) | S_t | memory; here keys × values |
| g | log α_t = -exp(A_log) softplus(W_a x_t + dt_bias) | how much of the memory stays |
| beta | β_t = σ(W_β x_t), or 2σ(W_β x_t) | how much of the error is written |
| gate | g_proj | of the output, by silu |

S_t = α_t S_{t-1} + k_t (β_t (v_t - α_t S_{t-1}ᵀ k_t))ᵀ; o_t = S_tᵀ q_t.
B batch, L length, K positions asked for, H heads, E width of a head's keys, V of its values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.mixers.memory import MemoryMixer, decay_parameters, size_of_head, whole
from mecheval.mixers.options import GatedDeltaNetOptions
from mecheval.mixers.parts import RMSNorm
from mecheval.ops.product import Linear
from mecheval.sites import Tap


class GatedDeltaNet(MemoryMixer):
    """The delta rule with a decay for each head."""

    Options = GatedDeltaNetOptions
    ragged = True
    g: Tap
    beta: Tap

    def __init__(self, d_model: int, layer: int, options: GatedDeltaNetOptions) -> None:
        heads, name = options.num_heads, "gated_delta_net"
        size = options.head_dim or max(1, 3 * size_of_head(d_model, heads, name, "its heads") // 4)
        values = whole(size * options.expand_v, name, "values of a head")
        super().__init__(d_model, heads, size, values)
        self.strongest, self.use_gate = 2 if options.allow_neg_eigval else 1, options.use_gate
        self.a_proj = Linear(d_model, heads, bias=False)
        self.b_proj = Linear(d_model, heads, bias=False)
        self.A_log, self.dt_bias = decay_parameters(heads, heads, least=0.0)
        gates = {"g": "B L H", "beta": "B L H", **({"gate": "B L H V"} if options.use_gate else {})}
        self.add_sites(options.conv_size if options.use_short_conv else 0, gates)
        if options.use_gate:
            self.g_proj = Linear(d_model, heads * values, bias=False)
        self.o_norm = RMSNorm(values)
        self.o_proj = Linear(heads * values, d_model, bias=False)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """q, k, v = silu(conv(W x)), q and k of unit length; then the gated delta rule."""
        q, k, v = self.unit_parts(x, at)
        g = self.g(-self.A_log.exp() * F.softplus(self.a_proj(x) + self.dt_bias))  # (B, L, H)
        beta = self.beta(self.strongest * torch.sigmoid(self.b_proj(x)))
        o = self.read(q, k, v, at, g=g, beta=beta)
        y: Tensor = self.o_proj(self.o_norm(o, self.opened(x, at)).flatten(2))
        return y
