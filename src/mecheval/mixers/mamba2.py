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
from mecheval.ops.gated_norm import gated_norm
from mecheval.ops.linear_recurrence import linear_recurrence, linear_recurrence_states
from mecheval.ops.product import Linear, linear
from mecheval.ops.queries import take
from mecheval.ops.short_conv import short_conv
from mecheval.ops.silu_split import silu_split
from mecheval.ops.state_space import state_space
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
        self.in_proj = Linear(d_model, channels + mixed + heads, bias=False)
        if options.d_conv:
            self.conv1d = ShortConv(mixed, options.d_conv)
            self.conv = Tap("conv", "B L C")
        dt = torch.empty(heads).uniform_(math.log(0.001), math.log(0.1)).exp().clamp(min=1e-4)
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # softplus⁻¹ of it
        self.A_log = nn.Parameter(torch.arange(1, heads + 1).float().log())
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = RMSNorm(channels)
        self.out_proj = Linear(channels, d_model, bias=False)
        self.u, self.gate, self.dt = Tap("u", "B L H P"), Tap("gate", "B L E"), Tap("dt", "B L H")
        self.B, self.C = Tap("B", "B L N"), Tap("C", "B L N")
        self.state = Tap("state", "B L H N P", readonly=True)
        self.weights = Tap("weights", "B H L S", kind="weights", readonly=True)
        self.heads = Tap("heads", "B L H P", heads=heads)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """out_proj(norm((scan(u) + D u) ⊙ silu(gate)))."""
        u, B, C, gate, low = self._parts(x, at)
        u, B, C = self.u(u.unflatten(-1, (self.num_heads, -1))), self.B(B), self.C(C)
        dt, A = self.dt(F.softplus(low + self.dt_bias)), -self.A_log.exp()  # (B, L, H), (H,)
        if self.state.listening or self.weights.listening:
            self._show(u, B, C, dt, A)
        y = self.heads(state_space(u, dt, A, B, C, self.D, at))
        out: Tensor = self.out_proj(gated_norm(y.flatten(2), self.gate(gate), self.norm.weight))
        return out

    def _parts(self, x: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """u (B, L, E), B (B, L, N), C (B, L or K, N); before their activations gate (B, L or K, E), dt (B, L, H).

        One map for all of them would leave each with gaps, which their operations would close with a copy; and of long
        documents it would be so large that its memory is fetched from the system anew at each step.
        """
        E, N = self.d_inner, self.d_state
        W_gate, W_u, W_BC, W_low = self.in_proj.weight.split([E, E, 2 * N, self.num_heads])
        low, u = linear(x, W_low), linear(x, W_u)
        if at is None:
            gate, BC = linear(x, W_gate), linear(x, W_BC)
            if self.d_conv:
                u, BC = self._convolved(u, 0), self._convolved(BC, E)
                if self.conv.listening:
                    u, BC = self.conv(torch.cat([u, BC], dim=-1)).split([E, 2 * N], dim=-1)
            [u], (B, C) = silu_split(u, (E,)), silu_split(BC, (N, N))
            return u, B, C, gate, low
        gate, B, W_C = linear(take(x, at), W_gate), linear(x, W_BC[:N]), W_BC[N:]
        if self.d_conv:
            u, B = self._convolved(u, 0), self._convolved(B, E)
            C = projected_conv_at(x, W_C, None, *self._taps(E + N, N), at)
        else:
            C = linear(take(x, at), W_C)
        return F.silu(u), F.silu(B), F.silu(C), gate, low

    def _convolved(self, x: Tensor, first: int) -> Tensor:
        """The short convolution of x (B, L, .), which has some of its channels, from the given one on."""
        return short_conv(x, *self._taps(first, x.shape[2]))

    def _taps(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Taps (., 1, W) and biases (.,) of some channels of the short convolution."""
        taps, bias = self.conv1d.parameters()
        return taps[first : first + count], bias[first : first + count]

    def _show(self, u: Tensor, B: Tensor, C: Tensor, dt: Tensor, A: Tensor) -> None:
        """Compute the states and the weights, each if somebody listens."""
        k, q = (each.unsqueeze(2).expand(-1, -1, self.num_heads, -1) for each in (B, C))
        if self.state.listening:
            self.state(linear_recurrence_states(k, u * dt.unsqueeze(3), g=dt * A))
        if self.weights.listening:
            now_HLS = torch.diag_embed(self.D[:, None].expand(-1, u.shape[1]))
            self.weights(of_result(linear_recurrence(q, k, one_value_each(u) * dt.unsqueeze(3), g=dt * A)) + now_HLS)

    def state_size(self, length: int) -> int:
        """The state, and the tokens that the convolution still reaches."""
        reach = min(length, max(0, self.d_conv - 1))
        return self.d_inner * self.d_state + reach * (self.d_inner + 2 * self.d_state)
