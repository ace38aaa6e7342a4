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
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.mixers.attention import rotate
from mecheval.mixers.memory import MemoryMixer, size_of_head, whole
from mecheval.mixers.options import RetNetOptions
from mecheval.mixers.parts import RMSNorm
from mecheval.ops.pieces import tokens_before
from mecheval.ops.queries import take
from mecheval.sites import Tap


class RetNet(MemoryMixer):
    """Multi-scale retention: linear attention with a fixed decay for each head."""

    Options = RetNetOptions
    q: Tap
    k: Tap
    v: Tap
    gate: Tap

    def __init__(self, d_model: int, layer: int, options: RetNetOptions) -> None:
        heads = options.num_heads
        keys, values = (
            size_of_head(whole(d_model * expand, "retnet", what), heads, "retnet", what)
            for expand, what in ((options.expand_k, "keys"), (options.expand_v, "values"))
        )
        if options.rotary and keys % 2:
            raise UserError(f"retnet: rotary positions need an even head width (got {keys}).")
        super().__init__(d_model, heads, keys, values)
        self.rotary, self.use_gate = options.rotary, options.use_output_gate
        if self.use_gate:
            self.g_proj = nn.Linear(d_model, heads * values, bias=False)
        gates = {"gate": "B L H V"} if self.use_gate else {}
        self.add_sites(options.conv_size if options.use_short_conv else 0, gates)
        self.o_proj = nn.Linear(heads * values, d_model, bias=False)
        norm = RMSNorm(values)
        if self.use_gate:
            self.g_norm_swish_gate = norm
        else:
            self.g_norm = norm

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """q, k, v = W x, q and k rotated, q scaled by 1/√E; then linear attention with decay."""
        batch, length = x.shape[:2]
        q, k, v = self.project("q", x, at), self.project("k", x), self.project("v", x)
        if self.taps:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        q, k = self.split(q) * self.key_size**-0.5, self.split(k)
        if self.rotary:
            everywhere = tokens_before() + torch.arange(length, device=x.device)[None]
            q = rotate(q.transpose(1, 2), everywhere if at is None else at).transpose(1, 2)
            k = rotate(k.transpose(1, 2), everywhere).transpose(1, 2)
        q, k, v = self.q(q), self.k(k), self.v(self.split(v))
        head = torch.arange(self.num_heads, device=x.device, dtype=torch.float64)
        g_H = torch.log1p(-(2 ** (-5 - head))).to(x.dtype)
        o = self.read(q, k, v, at, g=g_H.expand(batch, length, -1))
        if self.use_gate:
            gate = self.gate(self.split(self.g_proj(x if at is None else take(x, at))))
            o = self.g_norm_swish_gate(o, F.silu(gate))
        else:
            o = self.g_norm(o)
        y: Tensor = self.o_proj(o.flatten(2))
        return y
