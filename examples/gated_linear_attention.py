"""Gated linear attention (Yang et al. 2024), in chunks.

    mecheval evaluate examples/gated_linear_attention.py:GatedLinearAttention
    mecheval check examples/gated_linear_attention.py --set heads=4

The state S is a matrix whose rows fade by gates that depend on the token, S_t = diag(a_t) S_{t-1} + k_t^T v_t, and q_t
reads it. Within a chunk this is attention whose weights fade; from chunk to chunk only S is passed on. Documents have
any number of tokens, so they are padded inside to whole chunks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GatedLinearAttention(nn.Module):
    """o_t = q_t S_t, with S_t = diag(a_t) S_{t-1} + k_t^T v_t for each head; `slow` brings a near 1."""

    def __init__(self, d_model: int, heads: int = 2, chunk: int = 64, rank: int = 16, slow: float = 16.0) -> None:
        super().__init__()
        self.heads, self.chunk, self.slow = heads, chunk, slow
        self.qkvg = nn.Linear(d_model, 4 * d_model, bias=False)
        self.fade = nn.Sequential(nn.Linear(d_model, rank, bias=False), nn.Linear(rank, d_model))
        self.norm = nn.LayerNorm(d_model // heads)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D); C tokens in each of N chunks, E = D / H channels in each of H heads."""
        batch, length, width = x.shape
        q, k, v, gate = self.qkvg(x).chunk(4, dim=-1)
        log_a = F.logsigmoid(self.fade(x)) / self.slow
        q, k, v, log_a = (self._in_chunks(each) for each in (q, k, v, log_a))  # (B, H, N, C, E)
        kept = log_a.cumsum(dim=3)  # log of what is left at a token of the state before the chunk
        all_kept = kept[:, :, :, -1:]
        q_faded = q * kept.exp() / (width // self.heads) ** 0.5
        scores = (q_faded @ (k * (-kept).exp()).mT).tril()  # gates are slow and chunks short, so exp(-kept) is small
        y = scores @ v
        if y.shape[2] > 1:
            added = (k * (all_kept - kept).exp()).mT @ v  # (B, H, N, E, E): what each chunk writes
            states = [torch.zeros_like(added[:, :, 0])]  # the state before each chunk
            for n in range(added.shape[2] - 1):
                states.append(states[-1] * all_kept[:, :, n].mT.exp() + added[:, :, n])
            y = y + q_faded @ torch.stack(states, dim=2)
        y = self.norm(y).flatten(2, 3)[:, :, :length].transpose(1, 2).reshape(batch, length, width)
        out: Tensor = self.out(y * F.silu(gate))
        return out

    def _in_chunks(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, H, N, C, E), padded with zeros, which neither write nor fade."""
        size = min(self.chunk, x.shape[1])
        padded = F.pad(x, (0, 0, 0, -x.shape[1] % size))
        return padded.unflatten(2, (self.heads, -1)).transpose(1, 2).unflatten(2, (-1, size))
