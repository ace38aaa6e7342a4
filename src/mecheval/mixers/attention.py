"""Softmax attention (Vaswani et al., 2017).

| here | there | |
|---|---|---|
| q, k, v | Q, K, V | rows of Wqkv, in this order |
| pattern | softmax(QKᵀ/√d_k) | masked to the past |
| heads | head_1 ... head_h | side by side, before W^O = out_proj |

B batch, L length, K positions asked for (K = L when all are), H heads, E width of a head, D = H E.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.errors import UserError
from mecheval.mixers.base import Mixer, divides
from mecheval.mixers.options import AttentionOptions
from mecheval.ops.dispatch import in_float32
from mecheval.ops.pieces import extended, tokens_before
from mecheval.ops.product import Linear, linear
from mecheval.ops.queries import take
from mecheval.ops.ragged import documents_now, longest, packed, padded
from mecheval.ops.ragged_attention import ragged_attention
from mecheval.sites import Tap

attend = in_float32(F.scaled_dot_product_attention)
"""PyTorch's softmax attention, which takes five times as long in bfloat16 on short documents."""


class Attention(Mixer):
    """Multi-head causal attention."""

    Options = AttentionOptions
    ragged = True
    positions = AttentionOptions.positions
    canon_b = ("Wqkv",)
    weighs = ("pattern", "v", "heads")
    window: int | None = None  # number of tokens that a position sees; None means all before it

    def __init__(self, d_model: int, layer: int, options: AttentionOptions) -> None:
        super().__init__()
        self.d_model, self.num_heads, self.rotary = d_model, options.num_heads, options.rotary
        self.d_head = divides(options.num_heads, d_model, "attention")
        if options.rotary and self.d_head % 2:
            raise UserError(f"attention: rotary positions need an even head width (got {self.d_head}).")
        self.Wqkv = Linear(d_model, 3 * d_model, bias=options.bias)
        self.out_proj = Linear(d_model, d_model)
        self.q, self.k, self.v = Tap("q"), Tap("k"), Tap("v")
        self.pattern = Tap("pattern", "B H L S")
        self.heads = Tap("heads", "B L HE", heads=self.num_heads)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """y_t = out_proj(Σ_{s<=t} softmax_s(q_t·k_s/√E) v_s)."""
        d, length = self.d_model, longest(x)
        if at is not None and not self.rotary and at.shape[1] * self.num_heads <= self.d_head:
            heads = self._few_queries(x, at)
        elif at is None and not self.rotary and (documents := documents_now()) is not None:
            heads = ragged_attention(self.Wqkv(x), self.num_heads, documents)
        else:
            if at is None:
                q_BKD, k_BLD, v_BLD = padded(self.Wqkv(x)).split(d, dim=-1)
            else:
                W, b = self.Wqkv.weight, self.Wqkv.bias
                q_BKD = linear(take(x, at), W[:d], None if b is None else b[:d])
                k_BLD, v_BLD = padded(linear(x, W[d:], None if b is None else b[d:])).split(d, dim=-1)
            q, k, v = self._split(self.q(q_BKD)), self._split(self.k(k_BLD)), self._split(self.v(v_BLD))  # (B, H, ., E)
            q, k, v = self._turned_and_kept(q, k, v, at)
            if at is None and not self.pattern.listening and k.shape[2] == length:
                heads_BHKE = attend(q, k, v, is_causal=True)
            else:
                heads_BHKE = self._pattern(q @ k.transpose(-1, -2), at) @ v
            heads = heads_BHKE.transpose(1, 2).flatten(2)
            heads = packed(heads) if at is None else heads
        y: Tensor = self.out_proj(self.heads(heads))
        return y

    def _turned_and_kept(self, q: Tensor, k: Tensor, v: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Rotary positions, and the keys and values of earlier pieces before those of this one; (B, H, ., E) each."""
        if self.rotary:
            everywhere = tokens_before() + torch.arange(k.shape[2], device=k.device)[None]
            q, k = rotate(q, everywhere if at is None else at), rotate(k, everywhere)
        k, v = (extended(x.transpose(1, 2), self.window).transpose(1, 2) for x in (k, v))
        return q, k, v

    def _pattern(self, scores_BHKL: Tensor, at: Tensor | None) -> Tensor:
        """Softmax over what is seen; query number k is at position at[:, k], or the queries are the last positions."""
        queries, sources = scores_BHKL.shape[-2:]
        source = torch.arange(sources, device=scores_BHKL.device)
        hidden_BKL = self._hidden(source, (source[None, sources - queries :] if at is None else at)[:, :, None])
        masked = (scores_BHKL * self.d_head**-0.5).masked_fill(hidden_BKL[:, None], float("-inf"))
        return self.pattern(masked.softmax(dim=-1))

    def _hidden(self, source: Tensor, query: Tensor) -> Tensor:
        """Whether a query does not see a source: the future is hidden."""
        return source > query

    @in_float32
    def _few_queries(self, x: Tensor, at: Tensor) -> Tensor:
        """The same heads (B, K, D) without a key or value of any token: q·(W_k x) = (q W_k)·x, Σ p (W_v x) = W_v Σ p x.

        Cheaper while there are fewer queries, over all heads, than a key is wide. A bias of the keys moves all
        scores of a query alike and drops out of the softmax; one of the values is added at the end.
        """
        (batch, count), d, H, E = at.shape, x.shape[-1], self.num_heads, self.d_head
        b = self.Wqkv.bias
        Wq, Wk, Wv = self.Wqkv.weight.split(d)
        q = linear(take(x, at), Wq, None if b is None else b[:d]).view(batch * count, H, E)
        x = padded(x)
        read = torch.bmm(q.transpose(0, 1), Wk.view(H, E, d)).view(H, batch, count, d).transpose(0, 1)  # (B, H, K, D)
        scores = torch.bmm(read.reshape(batch, H * count, d), x.mT).view(batch, H, count, x.shape[1])
        mixed = torch.bmm(self._pattern(scores, at).flatten(1, 2), x).view(batch, H, count, d)
        mixed_HND = mixed.transpose(0, 1).reshape(H, batch * count, d)
        heads = torch.bmm(mixed_HND, Wv.view(H, E, d).mT).transpose(0, 1)  # (BK, H, E)
        merged = heads.reshape(batch, count, d)
        return merged if b is None else merged + b[2 * d :]

    def _split(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, H, L, E)."""
        return x.view(*x.shape[:2], self.num_heads, self.d_head).transpose(1, 2)

    def state_size(self, length: int) -> int:
        """Keys and values of all tokens so far."""
        return 2 * length * self.num_heads * self.d_head


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotary positions (Su et al., 2021): halves of x (B, H, K, E) turned by position · base^(-2i/E)."""
    half = x.shape[-1] // 2
    exact = torch.promote_types(x.dtype, torch.float32)  # bfloat16 has no position 257
    speed = base ** (-torch.arange(half, device=x.device, dtype=exact) / half)
    angle = positions[:, None, :, None] * speed
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], dim=-1)
