"""Softmax attention with rotary positions (RoPE, Su et al. 2021), by torch's scaled_dot_product_attention.

    mecheval evaluate examples/rotary_attention.py:RotaryAttention
    mecheval check examples/rotary_attention.py --set heads=2

Pairs of channels of q and k are turned by angles that grow with the position, so that their product depends on the
distance of the two tokens alone. Each head's channels i and i + E/2 are a pair.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RotaryAttention(nn.Module):
    """Causal attention; positions come from the rotation, and the model needs no position embeddings."""

    def __init__(self, dim: int, heads: int = 1, base: float = 10_000.0) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        half = dim // heads // 2
        self.register_buffer("frequency", base ** -(torch.arange(half) / half), persistent=False)  # (E/2,)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D); H heads of E channels."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, L, E) each
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * self.frequency.repeat(2)  # (L, E)
        cos, sin = angle.cos(), angle.sin()
        y = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair of channels of x (..., L, E) turned by its angle, of which cosine and sine are (L, E)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
