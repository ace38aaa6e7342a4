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
from mecheval.ops.gated_recurrence import gated_recurrence, sigmoid_gate
from mecheval.ops.gelu_gate import gelu_gate
from mecheval.ops.pieces import tokens_before
from mecheval.ops.product import Linear
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

    @property
    def maps(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The weights (H, E, E) and biases (H, E) of the recurrence gate, and then those of the input gate."""
        return self.recurrent_gate_weight, self.recurrent_gate_bias, self.input_gate_weight, self.input_gate_bias

    @property
    def steepness(self) -> Tensor:
        """softplus(Λ), (W,)."""
        return F.softplus(self.recurrent_param)


class RGLRU(Mixer):
    """A gated diagonal recurrence beside a gated branch."""

    Options = RGLRUOptions
    weighs = ("weights", "u", "heads")

    def __init__(self, d_model: int, layer: int, options: RGLRUOptions) -> None:
        super().__init__()
        self.width, self.taps = options.lru_width or d_model, options.conv1d_width
        size_of_head(self.width, options.num_heads, "rg_lru", "its channels")
        self.linear_y = Linear(d_model, self.width)
        self.linear_x = Linear(d_model, self.width)
        self.linear_out = Linear(self.width, d_model)
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
        if any(tap.listening for tap in (self.r, self.i, self.a, self.state, self.weights)):
            h = self._by_parts(u, at)
        else:
            h = gated_recurrence(u, *self.rg_lru.maps, self.rg_lru.steepness, at=at)
        h = self.heads(h)
        gate = self.gate(self.linear_y(x if at is None else take(x, at)))
        y: Tensor = self.linear_out(gelu_gate(h, gate))
        return y

    def _by_parts(self, u: Tensor, at: Tensor | None) -> Tensor:
        """h (B, L, W), or (B, K, W) with `at`, where someone listens to what is between u and h."""
        (w_r, b_r, w_i, b_i), s = self.rg_lru.maps, self.rg_lru.steepness
        r, i = self.r(sigmoid_gate(u, w_r, b_r)), self.i(sigmoid_gate(u, w_i, b_i))
        a, entered = gated_decay(r, i, u, s)
        a = self.a(a)
        if self.state.listening:
            self.state(diagonal_recurrence(a, entered))
        if self.weights.listening:
            log_a = -8 * r * s
            self.weights(of_decays(log_a) * (i * input_scale(log_a, tokens_before() == 0)).mT[:, :, None])
        return diagonal_recurrence(a, entered, at)

    def state_size(self, length: int) -> int:
        """The state, and the tokens that the convolution still reaches."""
        return self.width * (1 + min(length, max(0, self.taps - 1)))
