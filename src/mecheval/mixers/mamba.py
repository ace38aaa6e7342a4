"""Mamba (Gu & Dao, 2023): a state space model whose step, input and output maps depend on the token.

| here | there | |
|---|---|---|
| u | x | input of the SSM, after the short convolution |
| gate | z | the other half of in_proj |
| dt (B, L, E) | Δ | step |
| A (E, N) | A = -exp(A_log) | decay |
| B, C (B, L, N) | B, C | what is written, what is read |
| S (E, N) | h | state: S <- exp(dt A) S + dt u B; y = S C + D u |

B batch, L length, K positions asked for, D model width, E = expand D channels, N states, R rank of the step.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers.base import Mixer
from mecheval.mixers.options import MambaOptions
from mecheval.mixers.parts import ShortConv
from mecheval.ops.product import Linear, linear
from mecheval.ops.queries import take
from mecheval.ops.selective_scan import selective_scan, selective_scan_states
from mecheval.ops.weights import of_scan
from mecheval.sites import Tap

UNUSED_WIDTH = 4
"""Upstream's variant without convolution has unused parameters of a convolution of this width, so checkpoints load."""


class Mamba(Mixer):
    """Selective state space model with a short convolution and a gate.

    Canon B has no place here: x is its only input, and its own short convolution is where B would be.
    """

    Options = MambaOptions
    block = "mamba"
    ragged = True
    weighs = ("weights", "u", "scan")

    def __init__(self, d_model: int, layer: int, options: MambaOptions) -> None:
        super().__init__()
        channels = options.expand * d_model
        self.d_inner, self.d_state, self.d_conv = channels, options.d_state, options.d_conv
        self.dt_rank = math.ceil(d_model / 16)
        self.in_proj = Linear(d_model, 2 * channels, bias=False)
        self.conv1d = ShortConv(channels, options.d_conv or UNUSED_WIDTH)
        self.x_proj = Linear(channels, self.dt_rank + 2 * options.d_state, bias=False)
        self.dt_proj = Linear(self.dt_rank, channels)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, options.d_state + 1).float()).repeat(channels, 1))
        self.D = nn.Parameter(torch.ones(channels))
        self.out_proj = Linear(channels, d_model, bias=False)
        self._init_step()
        if options.d_conv:
            self.conv = Tap("conv", "B L E")
        self.u, self.gate, self.dt = Tap("u", "B L E"), Tap("gate", "B L E"), Tap("dt", "B L E")
        self.B, self.C = Tap("B", "B L N"), Tap("C", "B L N")
        self.state = Tap("state", "B L E N", readonly=True)
        self.weights = Tap("weights", "B E L S", kind="weights", readonly=True)
        self.scan = Tap("scan", "B L E")

    def _init_step(self) -> None:
        """Set dt_proj so that dt starts log-uniform on [0.001, 0.1]: its bias is softplus⁻¹ of that."""
        nn.init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        dt = torch.empty(self.d_inner).uniform_(math.log(0.001), math.log(0.1)).exp().clamp(min=1e-4)
        with torch.no_grad():
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """out_proj((scan(u) + D u) ⊙ silu(gate))."""
        E, R, N = self.d_inner, self.dt_rank, self.d_state
        if at is None:
            u, gate = self.in_proj(x).split(E, dim=-1)
        else:
            u, gate = linear(x, self.in_proj.weight[:E]), linear(take(x, at), self.in_proj.weight[E:])
        if self.d_conv:
            u = self.conv(self.conv1d(u))
        u = self.u(F.silu(u))
        here = u if at is None else take(u, at)
        if at is None:
            low, B, C = self.x_proj(u).split([R, N, N], dim=-1)
        else:
            low, B = linear(u, self.x_proj.weight[: R + N]).split([R, N], dim=-1)
            C = linear(here, self.x_proj.weight[R + N :])
        dt = self.dt(F.softplus(self.dt_proj(low)))
        B, C, A = self.B(B), self.C(C), -torch.exp(self.A_log)
        if self.state.listening:
            self.state(selective_scan_states(u, dt, A, B))
        if self.weights.listening:
            self.weights(of_scan(dt, A, B, C) + torch.diag_embed(self.D[:, None].expand(-1, u.shape[1])))
        y = self.scan(selective_scan(u, dt, A, B, C, at) + self.D * here)
        out: Tensor = self.out_proj(y * F.silu(self.gate(gate)))
        return out

    def state_size(self, length: int) -> int:
        """The state, and the tokens that the convolution still reaches."""
        return self.d_inner * (self.d_state + min(length, max(0, self.d_conv - 1)))
