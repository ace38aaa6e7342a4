"""RWKV-7 (Peng et al., 2025, arXiv 2503.14456): a memory with decaying channels that learns where to forget.

| here | there | |
|---|---|---|
| shift | x_{t-1} | the token before, of which each map sees a share μ |
| r, k, v | r_t, k_t, v_t | receptance (query), key, value |
| g | log w_t = -e^(-1/2) σ(...) | how much of each key channel stays |
| rate | a_t | how much of what the removal key finds is replaced |
| κ | κ̂_t | removal key: k ⊙ k_k, of unit length |
| gate | g_t | of the output |

S_t = Diag(w_t) S_{t-1} - (κ̂_t ⊙ a_t) (κ̂_tᵀ S_{t-1}) + k̃_t v_tᵀ, k̃ = k (1 + (a - 1) k_a); o_t = S_tᵀ r_t. Then
o = group_norm(o) + (r · (r_k ⊙ k̃)) v.
Not here: values of later layers mixed with those of the first, because a mixer sees its own layer only; every layer
is as the published first one.
B batch, L length, K positions asked for, H heads, E head width, D = H E.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mecheval.mixers.base import divides
from mecheval.mixers.memory import MemoryMixer
from mecheval.mixers.options import RWKV7Options
from mecheval.mixers.parts import OwnLinear
from mecheval.ops.norm_and_bonus import norm_and_bonus
from mecheval.ops.pieces import shifted
from mecheval.ops.product import Linear
from mecheval.ops.queries import take
from mecheval.ops.removal_keys import removal_keys
from mecheval.ops.token_shift import token_shift
from mecheval.sites import Tap

MIXED = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
"""The maps that see the previous token, and the power of the channel's number that gives their initial shares."""


class LowRank(nn.Module):
    """A map of low rank that starts at a constant."""

    def __init__(self, d_model: int, rank: int, activation: nn.Module, start: Tensor | None) -> None:
        super().__init__()
        first, last = OwnLinear(d_model, rank, bias=False), OwnLinear(rank, d_model, bias=start is not None)
        nn.init.zeros_(first.weight)
        nn.init.orthogonal_(last.weight, gain=0.1 * math.sqrt(max(1.0, rank / d_model)))
        if start is not None:
            with torch.no_grad():
                last.bias.copy_(start)
        self.lora = nn.Sequential(first, activation, last)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        y: Tensor = self.lora(x)
        return y


class RWKV7(MemoryMixer):
    """The time mixing of RWKV-7."""

    Options = RWKV7Options
    query = "r"
    canon_b = ("r_proj", "k_proj", "v_proj")
    r: Tap
    k: Tap
    v: Tap
    g: Tap
    rate: Tap
    gate: Tap

    def __init__(self, d_model: int, layer: int, options: RWKV7Options) -> None:
        heads, rank = options.num_heads, options.low_rank_dim
        size = divides(heads, d_model, "rwkv7")
        super().__init__(d_model, heads, size, size)
        self.token_shift, self.use_gate = options.token_shift, options.use_gate
        self.mixed = [name for name in MIXED if options.use_gate or name != "g"]
        if options.token_shift:
            self.shift = Tap("shift")
            share = torch.arange(d_model) / d_model
            for name in self.mixed:
                setattr(self, f"x_{name}", nn.Parameter((1 - share ** MIXED[name]).view(1, 1, -1)))
        line = torch.linspace(-0.5, 0.5, d_model)
        wave = torch.linspace(-1, 1, size).repeat(heads)
        wave = wave * wave.abs()
        self.k_k = nn.Parameter(0.71 - 0.1 * line)
        self.k_a = nn.Parameter(torch.full((d_model,), 1.02))
        self.r_k = nn.Parameter(torch.full((heads, size), -0.04))
        decay = -5.5 + 6 * (line + 0.5) + 2.5 * wave
        self.o_proj = Linear(d_model, d_model, bias=False)
        self.w_lora = LowRank(d_model, rank, nn.Tanh(), decay)
        self.a_lora = LowRank(d_model, rank, nn.Identity(), -0.19 + 0.3 * wave + 0.4 * line)
        if options.use_gate:
            self.g_lora = LowRank(d_model, rank, nn.Sigmoid(), None)
        self.g_norm = nn.GroupNorm(heads, d_model, eps=size * 1e-5)
        gates = {"g": "B L H E", "rate": "B L H E", **({"gate": "B L D"} if options.use_gate else {})}
        self.add_sites(options.conv_size if options.use_short_conv else 0, gates)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """Six mixtures of a token with the previous one give r, w, k, v, a and g; see the module."""
        mixed = self.mixtures(x)
        r = self.r(self.split(self.project("r", mixed["r"], at)))
        plain, v = self.split(self.project("k", mixed["k"])), self.v(self.split(self.project("v", mixed["v"])))
        g = self.g(self.split(-math.exp(-0.5) * torch.sigmoid(self.w_lora(mixed["w"]))))
        rate = self.rate(self.split(torch.sigmoid(self.a_lora(mixed["a"]))))
        k, a, b = removal_keys(plain, rate, self.by_head(self.k_k), self.by_head(self.k_a))
        k = self.k(k)
        o = self.read(r, k, v, at, g=g, a=a, b=b)
        k, v = (k, v) if at is None else (take(k, at), take(v, at))
        scale, offset = self.by_head(self.g_norm.weight), self.by_head(self.g_norm.bias)
        o = norm_and_bonus(o, r, k, v, self.r_k, scale, offset, self.g_norm.eps).flatten(2)
        if self.use_gate:
            o = o * self.gate(self.g_lora(mixed["g"] if at is None else take(mixed["g"], at)))
        y: Tensor = self.o_proj(o)
        return y

    def mixtures(self, x: Tensor) -> dict[str, Tensor]:
        """What each map sees: a mixture of each token with the one before it, or the token itself."""
        if not self.token_shift:
            return dict.fromkeys(self.mixed, x)
        shares = [getattr(self, f"x_{name}") for name in self.mixed]
        return dict(zip(self.mixed, token_shift(x, self.shift(shifted(x)), shares), strict=True))

    def by_head(self, x: Tensor) -> Tensor:
        """(D,) -> (H, E)."""
        return x.view(self.num_heads, -1)

    def state_size(self, length: int) -> int:
        """The memory, the token before, and the tokens that the convolutions still reach."""
        return super().state_size(length) + self.d_model * int(self.token_shift)
