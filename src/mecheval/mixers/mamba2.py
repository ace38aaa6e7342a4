"""Mamba-2 (Dao & Gu, 2024, arXiv 2405.21060): a state space model with one decay a head, hence linear attention.

| here | there | |
|---|---|---|
| u (H, P) | x | input of the SSM, after the short convolution |
| gate | z | first rows of in_proj |
| dt (B, L, H) | Δ | step |
| A (H,) | A = -exp(A_log) | decay |
| B, C (B, L, N) | B, C | what is written, what is read; keys and queries that all heads share |
| S (N, P) | h | state: S <- exp(dt A) S + B (dt u)ᵀ; y = Sᵀ C + D u |

B batch, L length, K positions asked for, D model width, E = expand D = H P channels, N width of B and C, H heads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers.base import Mixer
from mecheval.mixers.memory import size_of_head
from mecheval.mixers.options import Mamba2Options
from mecheval.mixers.parts import RMSNorm, ShortConv, projected_conv_at
from mecheval.ops.linear_recurrence import linear_recurrence, linear_recurrence_states
from mecheval.ops.queries import take
from mecheval.ops.short_conv import short_conv
from mecheval.ops.weights import of_result, one_value_each
from mecheval.sites import Tap


class Mamba2(Mixer):
    """State space model with one decay a head, a short convolution and a gate."""

    Options = Mamba2Options
    block = "mamba"
    weighs = ("weights", "u", "heads")

    def __init__(self, d_model: int, layer: int, options: Mamba2Options) -> None:
        super().__init__()
        channels, heads = options.expand * d_model, options.num_heads
        self.d_inner, self.d_state, self.d_conv, self.num_heads = channels, options.d_state, options.d_conv, heads
        self.head_dim = size_of_head(channels, heads, "mamba2", "its channels")
        mixed = channels + 2 * options.d_state
        self.in_proj = nn.Linear(d_model, channels + mixed + heads, bias=False)
        if options.d_conv:
            self.conv1d = ShortConv(mixed, options.d_conv)
            self.conv = Tap("conv", "B L C")
        dt = torch.empty(heads).uniform_(math.log(0.001), math.log(0.1)).exp().clamp(min=1e-4)
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # softplus⁻¹ of it
        self.A_log = nn.Parameter(torch.arange(1, heads + 1).float().log())
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = RMSNorm(channels)
        self.out_proj = nn.Linear(channels, d_model, bias=False)
        self.u, self.gate, self.dt = Tap("u", "B L H P"), Tap("gate", "B L E"), Tap("dt", "B L H")
        self.B, self.C = Tap("B", "B L N"), Tap("C", "B L N")
        self.state = Tap("state", "B L H N P", readonly=True)
        self.weights = Tap("weights", "B H L S", kind="weights", readonly=True)
        self.heads = Tap("heads", "B L H P", heads=heads)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """out_proj(norm((scan(u) + D u) ⊙ silu(gate)))."""
        u, B, C, gate, low = self._parts(x, at)
        u, B, C = self.u(F.silu(u).unflatten(-1, (self.num_heads, -1))), self.B(F.silu(B)), self.C(F.silu(C))
        dt = self.dt(F.softplus(low + self.dt_bias))  # (B, L, H)
        k, q = (each.unsqueeze(2).expand(-1, -1, self.num_heads, -1) for each in (B, C))
        v, g = u * dt.unsqueeze(3), -dt * self.A_log.exp()
        if self.state.listening:
            self.state(linear_recurrence_states(k, v, g=g))
        if self.weights.listening:
            now_HLS = torch.diag_embed(self.D[:, None].expand(-1, u.shape[1]))
            self.weights(of_result(linear_recurrence(q, k, one_value_each(u) * dt.unsqueeze(3), g=g)) + now_HLS)
        here = u if at is None else take(u, at)
        y = self.heads(linear_recurrence(q, k, v, g=g, at=at) + self.D.unsqueeze(1) * here)
        out: Tensor = self.out_proj(self.norm(y.flatten(2) * F.silu(self.gate(gate))))
        return out

    def _parts(self, x: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Before their activations: u (B, L, E), B (B, L, N), C and gate (B, L or K, .), dt (B, L, H)."""
        E, N, W = self.d_inner, self.d_state, self.in_proj.weight
        if at is None:
            gate, mixed, low = self.in_proj(x).split([E, E + 2 * N, self.num_heads], dim=-1)
            if self.d_conv:
                mixed = self.conv(self.conv1d(mixed))
            u, B, C = mixed.split([E, N, N], dim=-1)
            return u, B, C, gate, low
        gate, low = F.linear(take(x, at), W[:E]), F.linear(x, W[2 * E + 2 * N :])
        mixed, rows = F.linear(x, W[E : 2 * E + N]), W[2 * E + N : 2 * E + 2 * N]
        if self.d_conv:
            taps, bias = self.conv1d.weight, self.conv1d.bias
            assert bias is not None
            mixed = short_conv(mixed, taps[: E + N], bias[: E + N])
            C = projected_conv_at(x, rows, None, taps[E + N :], bias[E + N :], at)
        else:
            C = F.linear(take(x, at), rows)
        u, B = mixed.split([E, N], dim=-1)
        return u, B, C, gate, low

    def state_size(self, length: int) -> int:
        """The state, and the tokens that the convolution still reaches."""
        reach = min(length, max(0, self.d_conv - 1))
        return self.d_inner * self.d_state + reach * (self.d_inner + 2 * self.d_state)
