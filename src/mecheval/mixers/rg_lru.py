"""The recurrent block of Griffin with its RG-LRU (De et al., 2024, arXiv 2402.19427).

| here | there | |
|---|---|---|
| u (W,) | x_t | input of the recurrence, after the short convolution |
| h (W,) | h_t | state, a number a channel |
| r, i | r_t, i_t | recurrence gate and input gate, sigmoids of block-diagonal maps of u |
| a | a_t = exp(-8 softplus(Λ) r_t) | decay; Λ is recurrent_param |
| gate | | the other branch, by GELU |

h_t = a_t h_{t-1} + sqrt(1 - a_t²) (i_t ⊙ u_t), where the first token is not scaled down; out = linear_out(h ⊙
gelu(gate)).
B batch, L length, K positions asked for, D model width, W width of the state, H blocks, E = W / H.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers.base import Mixer
from mecheval.mixers.memory import size_of_head
from mecheval.mixers.options import RGLRUOptions
from mecheval.mixers.parts import ShortConv
from mecheval.ops.diagonal_recurrence import diagonal_recurrence
from mecheval.ops.gated_decay import gated_decay, input_scale
from mecheval.ops.gelu_gate import gelu_gate
from mecheval.ops.pieces import tokens_before
from mecheval.ops.queries import take
from mecheval.ops.weights import of_decays
from mecheval.sites import Tap


class Gates(nn.Module):
    """Parameters of the RG-LRU, as upstream names them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        size = width // heads
        a_W = torch.empty(width).uniform_(0.9**2 + 1e-8, 0.999**2 + 1e-8).sqrt()  # the decay at full recurrence gate
        self.recurrent_param = nn.Parameter(torch.log(torch.expm1(-torch.log(a_W) / 8)))  # softplus⁻¹
        self.input_gate_weight = nn.Parameter(torch.randn(heads, size, size) * size**-0.5)
        self.input_gate_bias = nn.Parameter(torch.zeros(heads, size))
        self.recurrent_gate_weight = nn.Parameter(torch.randn(heads, size, size) * size**-0.5)
        self.recurrent_gate_bias = nn.Parameter(torch.zeros(heads, size))

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """r and i (B, L, W) from u (B, L, W).

        A product with the whole matrix, zeros and all, is faster than one for each of a few small blocks, whose inputs
        and outputs would be copied.
        """
        r = F.linear(u, torch.block_diag(*self.recurrent_gate_weight).mT, self.recurrent_gate_bias.flatten())
        i = F.linear(u, torch.block_diag(*self.input_gate_weight).mT, self.input_gate_bias.flatten())
        return torch.sigmoid(r), torch.sigmoid(i)


class RGLRU(Mixer):
    """A gated diagonal recurrence beside a gated branch."""

    Options = RGLRUOptions
    weighs = ("weights", "u", "heads")

    def __init__(self, d_model: int, layer: int, options: RGLRUOptions) -> None:
        super().__init__()
        self.width, self.taps = options.lru_width or d_model, options.conv1d_width
        size_of_head(self.width, options.num_heads, "rg_lru", "its channels")
        self.linear_y = nn.Linear(d_model, self.width)
        self.linear_x = nn.Linear(d_model, self.width)
        self.linear_out = nn.Linear(self.width, d_model)
        if self.taps:
            self.conv_1d = ShortConv(self.width, self.taps)
            self.conv = Tap("conv", "B L W")
        self.rg_lru = Gates(self.width, options.num_heads)
        self.u, self.gate = Tap("u", "B L W"), Tap("gate", "B L W")
        self.r, self.i, self.a = Tap("r", "B L W"), Tap("i", "B L W"), Tap("a", "B L W")
        self.state = Tap("state", "B L W", readonly=True)
        self.weights = Tap("weights", "B W L S", kind="weights", readonly=True)
        self.heads = Tap("heads", "B L HE", heads=options.num_heads)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """linear_out(h ⊙ gelu(linear_y(x))), where the recurrence makes h of conv(linear_x(x))."""
        u = self.linear_x(x)
        if self.taps:
            u = self.conv(self.conv_1d(u))
        u = self.u(u)
        r, i = self.rg_lru(u)
        r, i, steepness = self.r(r), self.i(i), F.softplus(self.rg_lru.recurrent_param)
        a, entered = gated_decay(r, i, u, steepness)
        a = self.a(a)
        if self.state.listening:
            self.state(diagonal_recurrence(a, entered))
        if self.weights.listening:
            log_a = -8 * r * steepness
            self.weights(of_decays(log_a) * (i * input_scale(log_a, tokens_before() == 0)).mT[:, :, None])
        h = self.heads(diagonal_recurrence(a, entered, at))
        gate = self.gate(self.linear_y(x if at is None else take(x, at)))
        y: Tensor = self.linear_out(gelu_gate(h, gate))
        return y

    def state_size(self, length: int) -> int:
        """The state, and the tokens that the convolution still reaches."""
        return self.width * (1 + min(length, max(0, self.taps - 1)))
