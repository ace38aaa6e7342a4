"""A model that is linear from its embedding to its logits, with parts that add to a stream."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from intervene.models import small_task


class Mixes(nn.Module):
    """Each position adds up what those before it say: (B, L, D) -> (B, L, D), linear."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map, self.over = nn.Linear(width, width), nn.Parameter(torch.randn(64, 64).tril())

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        out: Tensor = torch.einsum("ls,nsd->nld", self.over[:length, :length], self.map(x))
        return out


class Linear(nn.Module):
    """Three layers; the inputs of layers and of the head are modules of their own, so that they have names."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        vocabulary = small_task().vocab_size
        self.embed = nn.Embedding(vocabulary, width)
        self.reads = nn.ModuleList(nn.Identity() for _ in range(3))
        self.layers = nn.ModuleList(Mixes(width) for _ in range(3))
        self.last, self.head = nn.Identity(), nn.Linear(width, vocabulary)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for reads, layer in zip(self.reads, self.layers, strict=True):
            h = h + layer(reads(h))
        out: Tensor = self.head(self.last(h))
        return out


WRITES = [f"layers.{i}.output" for i in range(3)]
READS = [*(f"reads.{i}.output" for i in range(3)), "last.output"]


def logit(model: nn.Module, tokens: Tensor, at: Tensor, answers: Tensor) -> float:
    """The mean logit of the answers."""
    rows = torch.arange(len(tokens))
    return float(model(tokens)[rows, at][rows, answers].detach().mean())
