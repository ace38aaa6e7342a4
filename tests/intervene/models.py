"""Small models and documents for interventions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import mecheval as me
from mecheval.types import Batch

ROUNDED = 3e-6
"""How far the likelihood of one document may lie apart in two batches of different shape, in which a library's products
add in different orders: twice the largest error of `small_lm` in single precision, 1.3e-6, measured against double."""


def small_lm(mixer: str, n_layers: int = 2, d_model: int = 16, vocab_size: int | None = None) -> me.LM:
    """A model with weights far from their start, so that every position matters."""
    task = small_task()
    lm = me.LM(vocab_size or task.vocab_size, d_model, n_layers, mixer, max_length=64, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return lm.eval()


def small_task() -> me.Task:
    return me.build_task("ar", pairs=4, keys=12, values=12)


def pairs(n: int = 6, task: me.Task | None = None) -> tuple[Batch, Batch]:
    """Clean and corrupted documents."""
    task = task or small_task()
    clean = task.sample(n, "test")
    return clean, task.corrupt(clean)


class Sums(nn.Module):
    """A model one can compute by hand: `add` is the running sum of tokens, logits at t are one-hot-ish of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.add, self.head = Numbers(), Running(), Head()

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.add(self.embed(tokens)))
        return out


class Numbers(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[..., None].double()  # (n, L, 1)


class Running(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return x.cumsum(1), "a cache"


class Head(nn.Module):
    def forward(self, given: tuple[Tensor, str]) -> Tensor:
        return given[0] * torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)  # (n, L, 3)
