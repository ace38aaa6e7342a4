"""MesaNet (von Oswald et al., 2025, arXiv 2506.05233): a memory that is the best linear map from past keys to values.

| here | there | |
|---|---|---|
| G_t, M_t (E, E) | H_t, G_t | moments of keys with keys, and of keys with values |
| g | log γ_t = log σ(W_γ x_t + b) | how much of the moments stays |
| beta | β_t = σ(W_β x_t + b) | how much a token counts |
| λ | Λ = softplus(lambda_params) + lower bound | ridge of the regression |
| gate | g_proj | of the output, by silu; off by default |

G_t = γ_t G_{t-1} + β_t k_t k_tᵀ; M_t = γ_t M_{t-1} + β_t k_t v_tᵀ; o_t = M_tᵀ (G_t + Λ)⁻¹ q_t,
solved exactly (upstream takes 30 steps of conjugate gradients).
B batch, L length, K positions asked for, H heads, E head width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers.memory import MemoryMixer, size_of_head
from mecheval.mixers.options import MesaNetOptions
from mecheval.mixers.parts import RMSNorm
from mecheval.ops.linear_recurrence import linear_recurrence, linear_recurrence_states
from mecheval.ops.product import Linear
from mecheval.ops.ridge import ridge
from mecheval.ops.unit_silu import unit_silu
from mecheval.ops.weights import of_result, one_value_each
from mecheval.sites import Tap


class MesaNet(MemoryMixer):
    """Ridge regression of values on keys at every token."""

    Options = MesaNetOptions
    g: Tap
    beta: Tap
    solved: Tap

    def __init__(self, d_model: int, layer: int, options: MesaNetOptions) -> None:
        heads, least = options.num_heads, options.lambda_lower_bound
        size = options.head_dim or size_of_head(d_model, heads, "mesa_net", "its heads")
        super().__init__(d_model, heads, size, size)
        self.least, self.use_gate = least, options.use_output_gate
        self.a_proj = Linear(d_model, heads)
        self.b_proj = Linear(d_model, heads)
        start = max(1.0, 2 * least) - least  # so that λ starts at 1
        self.lambda_params = nn.Parameter(torch.full((heads * size,), start + math.log(-math.expm1(-start))))
        gates = {"g": "B L H", "beta": "B L H", "solved": "B L H E"}
        gates |= {"gate": "B L H E"} if self.use_gate else {}
        self.add_sites(options.conv_size if options.use_short_conv else 0, gates, convolved="qk")
        if self.use_gate:
            self.g_proj = Linear(d_model, heads * size, bias=False)
        self.o_norm = RMSNorm(size)
        self.o_proj = Linear(heads * size, d_model, bias=False)
        self.state = Tap("state", "B L H E 2E", readonly=True)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """q, k = silu(conv(W x)) of unit length, v = W x; then the regression."""
        q = self.q(unit_silu(self.split(self.project("q", x, at))))  # (B, L or K, H, E)
        k = self.k(unit_silu(self.split(self.project("k", x))))  # (B, L, H, E)
        v = self.v(self.split(self.project("v", x)))
        beta, g = self.beta(torch.sigmoid(self.b_proj(x))), self.g(F.logsigmoid(self.a_proj(x)))  # (B, L, H)
        written = beta.unsqueeze(3) * k
        if self.state.listening:  # both moments side by side
            self.state(linear_recurrence_states(written, torch.cat([k, v], dim=-1), g=g))
        lamb = (F.softplus(self.lambda_params) + self.least).view(self.num_heads, -1)
        solved = self.solved(ridge(q, k, g, beta, lamb, at))
        if self.weights.listening:
            self.weights(of_result(linear_recurrence(solved, written, one_value_each(v), g=g)))
        o = self.heads(linear_recurrence(solved, written, v, g=g, at=at))
        y: Tensor = self.o_proj(self.o_norm(o, self.opened(x, at)).flatten(2))
        return y

    def state_size(self, length: int) -> int:
        """Both moments, and the tokens that the convolutions still reach."""
        return super().state_size(length) + self.num_heads * self.key_size**2
