"""H3 (Fu et al., 2023): a shift SSM on the keys, a diagonal SSM on key-value products, then a query.

| here | there | |
|---|---|---|
| k' = shift | SSM_shift(K) | remembers recent keys |
| kd | SSM_diag kernel | complex modes A, discretised bilinearly with step dt |
| o | Q ⊙ SSM_diag(SSM_shift(K) ⊙ V) | products over pairs of channels within a head |

B batch, L length, K positions asked for, D width, P = head_dim, H = D / P heads, N = d_state. Channel c of the
projections is head c // P, entry c % P; the output is laid out the other way round, channel e H + h (as upstream).
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.mixers.base import Mixer, fits
from mecheval.mixers.options import H3Options
from mecheval.ops.h3_kernels import diagonal_kernel, h3_mix, h3_mix_recurrent, shift_kernel, shift_register
from mecheval.ops.long_conv import long_conv
from mecheval.ops.pieces import current, tokens_before
from mecheval.ops.product import Linear
from mecheval.ops.queries import take
from mecheval.ops.ragged import longest
from mecheval.ops.weights import of_convolution
from mecheval.sites import Tap

SSM = TypeVar("SSM", bound=nn.Module)


class H3(Mixer):
    """Two state space models and two multiplicative gates."""

    Options = H3Options
    ragged = True
    weighs = ("weights", "v", "heads")
    canon_b = ("q_proj", "k_proj", "v_proj")

    def __init__(self, d_model: int, layer: int, options: H3Options) -> None:
        super().__init__()
        if d_model % options.head_dim:
            raise UserError(f"h3: d_model={d_model} is not a multiple of head_dim={options.head_dim}.")
        self.d_model, self.head_dim, self.options = d_model, options.head_dim, options
        heads = d_model // options.head_dim
        self.q_proj = Linear(d_model, d_model)
        self.k_proj = Linear(d_model, d_model)
        self.v_proj = Linear(d_model, d_model)
        self.ssm_k_kernel = Nested(ShiftSSM(d_model, options.d_state))
        self.ssm_k_D = nn.Parameter(torch.randn(d_model))
        self.kernel = Nested(DiagonalSSM(heads, options.d_state))
        self.D = nn.Parameter(torch.randn(heads))
        self.output_linear = Linear(d_model, d_model)
        self.q, self.k, self.v = Tap("q"), Tap("k"), Tap("v")
        self.shift = Tap("shift")
        self.weights = Tap("weights", "B H L S", kind="weights", readonly=True)
        self.heads = Tap("heads", "B L PH", heads=heads)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """k' = ks ∗ k + D_k k; o[e2] = Σ_e1 q[e1] (kd ∗ + D)(k'[e1] v[e2])."""
        length = tokens_before() + longest(x)
        fits(length, self.options.l_max, "h3")
        q = self.q(self.q_proj(x if at is None else take(x, at)))
        k, v = self.k(self.k_proj(x)), self.v(self.v_proj(x))
        k = self.shift(self._remembered(k, length) + self.ssm_k_D * k)
        q, k, v = self._split(q), self._split(k), self._split(v)
        if current(at) is not None:
            ssm = self.kernel.kernel
            o_BKHP = h3_mix_recurrent(q, k, v, ssm.inv_A_real, ssm.A_imag, ssm.B, ssm.C[0], ssm.log_dt, self.D)
        else:
            kernel_LH = self.kernel.kernel(length)
            if self.weights.listening:
                now_LH = F.pad(self.D[None], (0, 0, 0, length - 1))
                products_BHLS = torch.einsum("blhe,bshe->bhls", q, k)
                self.weights(of_convolution(kernel_LH + now_LH, len(x)) * products_BHLS)
            o_BKHP = h3_mix(q, k, v, kernel_LH, self.D, at)
        y: Tensor = self.output_linear(self.heads(o_BKHP.transpose(2, 3).flatten(2)))
        return y

    def _remembered(self, k: Tensor, length: int) -> Tensor:
        """The shift SSM of k, as a convolution or, for pieces of a document, as a recurrence."""
        ssm = self.ssm_k_kernel.kernel
        return long_conv(k, ssm(length)) if current() is None else shift_register(k, ssm.B, ssm.C[0])

    def _split(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, H, P)."""
        return x.view(*x.shape[:2], x.shape[2] // self.head_dim, self.head_dim)

    def state_size(self, length: int) -> int:
        """N keys of the shift register for each channel; N/2 complex modes for each of the P² products of a head."""
        return self.d_model * self.options.d_state + self.d_model * self.head_dim * self.options.d_state


class Nested(nn.Module, Generic[SSM]):
    """Holds a kernel's parameters under the name `kernel`, as upstream does."""

    kernel: SSM

    def __init__(self, kernel: SSM) -> None:
        super().__init__()
        self.kernel = kernel


class ShiftSSM(nn.Module):
    """The shift SSM: ks_l = Σ_n B_n C_{n+l}; B starts as e_0, so that ks = C."""

    def __init__(self, channels: int, states: int) -> None:
        super().__init__()
        B = torch.zeros(channels, states)
        B[:, 0] = 1
        self.B = nn.Parameter(B)
        self.C = nn.Parameter(torch.empty(1, channels, states).uniform_(-1, 1) / math.sqrt(states))

    def forward(self, length: int) -> Tensor:
        """The first `length` taps ks, (L, D)."""
        return shift_kernel(self.B, self.C[0], length)


class DiagonalSSM(nn.Module):
    """The diagonal SSM, with N/2 complex modes per head; starts with A = -1/2 + iπn, B = 1, C complex normal."""

    def __init__(self, heads: int, states: int) -> None:
        super().__init__()
        modes = states // 2
        self.C = nn.Parameter(torch.randn(1, heads, modes, 2) * 0.5**0.5)
        self.log_dt = nn.Parameter(torch.empty(heads).uniform_(math.log(0.001), math.log(0.1)))
        self.B = nn.Parameter(torch.tensor([1.0, 0.0]).repeat(heads, modes, 1))
        self.inv_A_real = nn.Parameter(torch.full((heads, modes), math.log(0.5)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(modes, dtype=torch.float32).repeat(heads, 1))

    def forward(self, length: int) -> Tensor:
        """The first `length` taps kd, (L, H)."""
        return diagonal_kernel(self.inv_A_real, self.A_imag, self.B, self.C[0], self.log_dt, length)
