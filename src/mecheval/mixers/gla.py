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

from mecheval.mixers.memory import MemoryMixer, size_of_head, whole
from mecheval.mixers.options import GLAOptions
from mecheval.mixers.parts import RMSNorm
from mecheval.ops.queries import take
from mecheval.sites import Tap


class GLA(MemoryMixer):
    """Linear attention with a decay for each key channel."""

    Options = GLAOptions
    q: Tap
    k: Tap
    v: Tap
    g: Tap
    gate: Tap

    def __init__(self, d_model: int, layer: int, options: GLAOptions) -> None:
        heads = options.num_heads
        keys, values = (
            size_of_head(whole(d_model * expand, "gla", what), heads, "gla", what)
            for expand, what in ((options.expand_k, "keys"), (options.expand_v, "values"))
        )
        super().__init__(d_model, heads, keys, values)
        self.tau, self.use_gate = options.gate_logit_normalizer, options.use_output_gate
        if self.use_gate:
            self.g_proj = nn.Linear(d_model, heads * values, bias=False)
        gates = {"g": "B L H E", **({"gate": "B L H V"} if self.use_gate else {})}
        self.add_sites(options.conv_size if options.use_short_conv else 0, gates)
        rank = options.gate_low_rank_dim
        self.gk_proj = nn.Sequential(nn.Linear(d_model, rank, bias=False), nn.Linear(rank, heads * keys))
        self.o_proj = nn.Linear(heads * values, d_model, bias=False)
        norm = RMSNorm(values)
        if self.use_gate:
            self.g_norm_swish_gate = norm
        else:
            self.g_norm = norm

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """q, k, v = W x, q scaled by 1/√E; then linear attention with decay."""
        q, k, v = self.project("q", x, at), self.project("k", x), self.project("v", x)
        if self.taps:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        q, k, v = self.q(self.split(q) * self.key_size**-0.5), self.k(self.split(k)), self.v(self.split(v))
        g = self.g(self.split(F.logsigmoid(self.gk_proj(x)) / self.tau))  # (B, L, H, E)
        o = self.read(q, k, v, at, g=g)
        if self.use_gate:
            gate = self.gate(self.split(self.g_proj(x if at is None else take(x, at))))
            o = self.g_norm_swish_gate(o, F.silu(gate))
        else:
            o = self.g_norm(o)
        y: Tensor = self.o_proj(o.flatten(2))
        return y
