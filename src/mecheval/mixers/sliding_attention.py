"""Softmax attention in a sliding window (Child et al., 2019; Beltagy et al., 2020): a token sees the last few only.

| here | there | |
|---|---|---|
| window | w, W | tokens that a position sees, itself among them |
| q, k, v | Q, K, V | rows of Wqkv, in this order |
| heads | head_1 ... head_h | side by side, before W^O = out_proj |

B batch, L length, K positions asked for, H heads, E width of a head, D = H E, W window, N blocks of W tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.mixers.attention import Attention, attend
from mecheval.mixers.options import SlidingAttentionOptions
from mecheval.mixers.parts import ShortConv, projected_conv_at
from mecheval.ops.product import linear
from mecheval.ops.queries import take
from mecheval.ops.short_conv import short_conv
from mecheval.sites import Tap


class SlidingAttention(Attention):
    """Multi-head attention to the last `window` tokens."""

    Options = SlidingAttentionOptions
    window: int

    def __init__(self, d_model: int, layer: int, options: SlidingAttentionOptions) -> None:
        super().__init__(d_model, layer, options)
        self.window, self.taps = options.window, options.conv_size if options.use_short_conv else 0
        if self.taps:
            self.conv1d = ShortConv(3 * d_model, self.taps, bias=False)
            self.conv = Tap("conv", "B L C")

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """y_t = out_proj(Σ_{t-W<s<=t} softmax_s(q_t·k_s/√E) v_s)."""
        length = x.shape[1]
        q_BKD, k_BLD, v_BLD = self._qkv(x, at)
        q, k, v = self._split(self.q(q_BKD)), self._split(self.k(k_BLD)), self._split(self.v(v_BLD))  # (B, H, ., E)
        q, k, v = self._turned_and_kept(q, k, v, at)
        if at is None and not self.pattern.listening and length > self.window and k.shape[2] == length:
            heads_BHKE = self._in_blocks(q, k, v)
        else:
            heads_BHKE = self._pattern(q @ k.transpose(-1, -2), at) @ v
        y: Tensor = self.out_proj(self.heads(heads_BHKE.transpose(1, 2).flatten(2)))
        return y

    def _qkv(self, x: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        d, W, b = x.shape[2], self.Wqkv.weight, self.Wqkv.bias
        if at is None:
            mixed = self.Wqkv(x)
            q, k, v = (self.conv(self.conv1d(mixed)) if self.taps else mixed).split(d, dim=-1)
            return q, k, v
        b_q, b_kv = (None, None) if b is None else (b[:d], b[d:])
        kv = linear(x, W[d:], b_kv)
        if self.taps:
            q = projected_conv_at(x, W[:d], b_q, self.conv1d.weight[:d], None, at)
            kv = short_conv(kv, self.conv1d.weight[d:])
        else:
            q = linear(take(x, at), W[:d], b_q)
        k, v = kv.split(d, dim=-1)
        return q, k, v

    def _hidden(self, source: Tensor, query: Tensor) -> Tensor:
        return (source > query) | (source <= query - self.window)

    def _in_blocks(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The heads (B, H, L, E): each block of W tokens sees itself and the block before, so time grows with L."""
        length, W = q.shape[2], self.window
        blocks = -(-length // W)
        q_BHNWE = F.pad(q, (0, 0, 0, blocks * W - length)).unflatten(2, (blocks, W))
        padded = (F.pad(x, (0, 0, W, blocks * W - length)).unflatten(2, (blocks + 1, W)) for x in (k, v))
        k, v = (torch.cat([x[:, :, :-1], x[:, :, 1:]], dim=3) for x in padded)  # (B, H, N, 2W, E)
        query, source = torch.arange(W, device=q.device), torch.arange(-W, W, device=q.device)
        seen_N = torch.arange(blocks, device=q.device).view(-1, 1, 1) * W + source >= 0
        seen_NWS = ~self._hidden(source, query.unsqueeze(1)) & seen_N
        o = attend(q_BHNWE, k, v, attn_mask=seen_NWS)
        return o.flatten(2, 3)[:, :, :length]

    def state_size(self, length: int) -> int:
        """Keys and values of the tokens in the window, and the tokens that the convolution still reaches."""
        return super().state_size(min(length, self.window)) + 3 * min(length, max(0, self.taps - 1)) * self.d_model
