"""Small models and documents for interventions."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn

import mecheval as me
from mecheval.mixers import MIXERS
from mecheval.mixers.pattern import is_pattern, read_pattern
from mecheval.model.canon import places
from mecheval.types import Batch

ROUNDED = 3e-6
"""How far the likelihood of one document may lie apart in two batches of different shape, in which a library's products
add in different orders: twice the largest error of `small_lm` in single precision, 1.3e-6, measured against double."""


CANON = ", canon"
"""Ends the name of a variant that has all Canon convolutions for which its layers have places."""
WITH_CANON = ("attention", "base_conv", "delta_net", "h3", "hyena", "mamba", "rwkv7")
"""Mixers of all kinds of blocks and of places for Canon convolutions."""
VARIANTS = [*MIXERS.names(), *(f"{name}{CANON}" for name in WITH_CANON), "mamba+attention+delta_net"]
"""The models of the laws: every mixer, some with Canon convolutions, and a hybrid."""


def small_lm(variant: str, n_layers: int = 2, d_model: int = 16, vocab_size: int | None = None) -> me.LM:
    """A model with weights far from their start, so that every position matters; see `VARIANTS`."""
    name = variant.removesuffix(CANON)
    mixer = list(islice(cycle(read_pattern(name)), n_layers)) if is_pattern(name) else name
    given = (vocab_size or small_task().vocab_size, d_model, n_layers, mixer)
    canon = all_canon(me.LM(*given, max_length=64)) if name != variant else ""
    lm = me.LM(*given, max_length=64, seed=0, canon=canon)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return lm.eval()


def all_canon(lm: me.LM) -> str:
    """The letters of the Canon convolutions for which a model has places."""
    blocks: list[Any] = list(lm.blocks)
    return "".join(sorted({letter for block in blocks for letter in places(block)}))


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
