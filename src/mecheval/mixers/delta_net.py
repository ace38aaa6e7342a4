"""DeltaNet (Schlag et al., 2021; Yang et al., 2024): a matrix memory that corrects what it has stored under a key.

| here | there | |
|---|---|---|
| S_t (E, E) | S_t | memory; here keys × values |
| beta | β_t = σ(W_β x_t) | how much of the error is written |
| e_t | v_t - S_{t-1}ᵀ k_t | what the memory got wrong |

S_t = S_{t-1} + k_t (β_t e_t)ᵀ; o_t = S_tᵀ q_t.
B batch, L length, K positions asked for, H heads, E head width, D = H E.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers.base import Mixer, divides
from mecheval.mixers.options import DeltaNetOptions
from mecheval.mixers.parts import RMSNorm, ShortConv, projected_conv_at
from mecheval.ops.delta_rule import delta_rule, delta_rule_states
from mecheval.ops.queries import take
from mecheval.sites import Tap


class DeltaNet(Mixer):
    """Linear attention with the delta rule."""

    Options = DeltaNetOptions
    canon_b = ("q_proj", "k_proj", "v_proj")

    def __init__(self, d_model: int, layer: int, options: DeltaNetOptions) -> None:
        super().__init__()
        self.num_heads, self.conv_size = options.num_heads, options.conv_size if options.use_short_conv else 1
        self.d_model, self.d_head = d_model, divides(options.num_heads, d_model, "delta_net")
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.b_proj = nn.Linear(d_model, options.num_heads, bias=False)
        self.use_short_conv = options.use_short_conv
        if options.use_short_conv:
            self.q_conv1d = ShortConv(d_model, options.conv_size, bias=False)
            self.k_conv1d = ShortConv(d_model, options.conv_size, bias=False)
            self.v_conv1d = ShortConv(d_model, options.conv_size, bias=False)
            self.q_conv, self.k_conv, self.v_conv = Tap("q_conv"), Tap("k_conv"), Tap("v_conv")
        self.o_norm = RMSNorm(self.d_head)  # one weight for all heads
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.q, self.k, self.v = Tap("q", "B L H E"), Tap("k", "B L H E"), Tap("v", "B L H E")
        self.beta = Tap("beta", "B L H")
        self.state = Tap("state", "B L H E E", readonly=True)
        self.heads = Tap("heads", "B L H E")

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """q, k, v = silu(conv(W x)), q and k of unit length, q scaled by 1/√E; then the delta rule."""
        if self.use_short_conv:
            if at is None:
                q = self.q_conv(self.q_conv1d(self.q_proj(x)))
            else:
                q = self.q_conv(projected_conv_at(x, self.q_proj.weight, None, self.q_conv1d.weight, None, at))
            k, v = self.k_conv(self.k_conv1d(self.k_proj(x))), self.v_conv(self.v_conv1d(self.v_proj(x)))
        else:
            q, k, v = self.q_proj(x if at is None else take(x, at)), self.k_proj(x), self.v_proj(x)
        q = self.q(unit(self._split(F.silu(q))) * self.d_head**-0.5)  # (B, L or K, H, E)
        k, v = self.k(unit(self._split(F.silu(k)))), self.v(self._split(F.silu(v)))  # (B, L, H, E)
        beta = self.beta(torch.sigmoid(self.b_proj(x)))  # (B, L, H)
        if self.state.listening:
            self.state(delta_rule_states(k, v, beta))
        o = self.heads(delta_rule(q, k, v, beta, at))
        y: Tensor = self.o_proj(self.o_norm(o).flatten(2))
        return y

    def _split(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, H, E)."""
        return x.view(*x.shape[:2], self.num_heads, self.d_head)

    def state_size(self, length: int) -> int:
        """The memory, and the tokens that the three convolutions still reach."""
        reach = min(length, self.conv_size - 1)
        return self.num_heads * self.d_head**2 + 3 * reach * self.d_model


def unit(x: Tensor) -> Tensor:
    """X scaled to unit length over the last axis."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
