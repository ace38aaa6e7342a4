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
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.mixers.base import divides
from mecheval.mixers.memory import MemoryMixer
from mecheval.mixers.options import RWKV7Options
from mecheval.mixers.parts import OwnLinear
from mecheval.ops.pieces import shifted
from mecheval.ops.queries import take
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
        names = [name for name in MIXED if options.use_gate or name != "g"]
        if options.token_shift:
            self.shift = Tap("shift")
            share = torch.arange(d_model) / d_model
            for name in names:
                setattr(self, f"x_{name}", nn.Parameter((1 - share ** MIXED[name]).view(1, 1, -1)))
        line = torch.linspace(-0.5, 0.5, d_model)
        wave = torch.linspace(-1, 1, size).repeat(heads)
        wave = wave * wave.abs()
        self.k_k = nn.Parameter(0.71 - 0.1 * line)
        self.k_a = nn.Parameter(torch.full((d_model,), 1.02))
        self.r_k = nn.Parameter(torch.full((heads, size), -0.04))
        decay = -5.5 + 6 * (line + 0.5) + 2.5 * wave
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.w_lora = LowRank(d_model, rank, nn.Tanh(), decay)
        self.a_lora = LowRank(d_model, rank, nn.Identity(), -0.19 + 0.3 * wave + 0.4 * line)
        if options.use_gate:
            self.g_lora = LowRank(d_model, rank, nn.Sigmoid(), None)
        self.g_norm = nn.GroupNorm(heads, d_model, eps=size * 1e-5)
        gates = {"g": "B L H E", "rate": "B L H E", **({"gate": "B L D"} if options.use_gate else {})}
        self.add_sites(options.conv_size if options.use_short_conv else 0, gates)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """Six mixtures of a token with the previous one give r, w, k, v, a and g; see the module."""
        before = self.shift(shifted(x)) if self.token_shift else x

        def mixed(name: str) -> Tensor:
            return torch.lerp(x, before, getattr(self, f"x_{name}")) if self.token_shift else x

        r = self.r(self.split(self.project("r", mixed("r"), at)))
        plain, v = self.project("k", mixed("k")), self.v(self.split(self.project("v", mixed("v"))))
        g = self.g(self.split(-math.exp(-0.5) * torch.sigmoid(self.w_lora(mixed("w")))))
        rate = self.rate(self.split(torch.sigmoid(self.a_lora(mixed("a")))))
        removal = F.normalize(self.split(plain * self.k_k), dim=-1)
        k = self.k(self.split(plain) * (1 + (rate - 1) * self.k_a.view(self.num_heads, -1)))
        o = self.read(r, k, v, at, g=g, a=-removal, b=removal * rate)
        k, v = (k, v) if at is None else (take(k, at), take(v, at))
        o = self.g_norm(o.flatten(0, 1).flatten(1)).view(*o.shape[:2], self.d_model)
        o = o + ((r * k * self.r_k).sum(-1, keepdim=True) * v).flatten(2)
        if self.use_gate:
            seen = mixed("g")
            o = o * self.gate(self.g_lora(seen if at is None else take(seen, at)))
        y: Tensor = self.o_proj(o)
        return y

    def state_size(self, length: int) -> int:
        """The memory, the token before, and the tokens that the convolutions still reach."""
        return super().state_size(length) + self.d_model * int(self.token_shift)
