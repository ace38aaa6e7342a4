"""Models written as programs: every layer is a function on named slots of a stream of one-hot codes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mecheval as me
from mecheval.evaluation.layers import sites_of
from mecheval.intervene import Verdict
from mecheval.intervene.answering import Answering

SLOTS = ("token", "position", "before", "a", "b", "c", "answer")
SURE = 12.0
"""Logit of an answer of length 1."""
SHARP = 30.0
"""Score of a whole match; half a match wins nothing."""
Row = Callable[["Stream"], None]


class Stream:
    """The slots of a stream (n, L, D), and what a layer adds to them."""

    def __init__(self, h: Tensor) -> None:
        self.slots = dict(zip(SLOTS, h.chunk(len(SLOTS), -1), strict=True))
        self.added = {name: torch.zeros_like(x) for name, x in self.slots.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self.slots[name]

    def add(self, name: str, x: Tensor) -> None:
        self.added[name] = self.added[name] + x


class Layer(nn.Module):
    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row

    def forward(self, h: Tensor) -> Tensor:
        x = Stream(h)
        self.row(x)
        return h + torch.cat(list(x.added.values()), -1)


class Program(nn.Module):
    """Layers one after the other; `before` and `after` happen outside of them."""

    def __init__(self, task: me.Task, *rows: Row, before: Row | None = None, after: Row | None = None) -> None:
        super().__init__()
        self.width, self.vocabulary = max(task.vocab_size, task.max_tokens), task.vocab_size
        self.first, self.last = (None if row is None else Layer(row) for row in (before, after))
        self.layers = nn.ModuleList(map(Layer, rows))

    def embed(self, tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1]).expand_as(tokens)
        codes = [F.one_hot(x, self.width).float() for x in (tokens, position)]
        return torch.cat([*codes, torch.zeros(*tokens.shape, (len(SLOTS) - 2) * self.width)], -1)

    def unembed(self, h: Tensor) -> Tensor:
        return SURE * h[..., -self.width :][..., : self.vocabulary]

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for layer in (self.first, *self.layers, self.last):
            h = h if layer is None else layer(h)
        return self.unembed(h)


def shifted(x: Tensor, by: int = 1) -> Tensor:
    """What stood so many tokens earlier."""
    return F.pad(x, (0, 0, by, 0))[:, : x.shape[1]]


def look(q: Tensor, k: Tensor, v: Tensor, match: float = 1.0) -> Tensor:
    """The v of the earlier token whose k has this inner product with q; nothing where there is none."""
    length = q.shape[1]
    later = torch.ones(length, length).triu().bool()
    scores = (SHARP * (q @ k.mT)).masked_fill(later, -1e4)
    return F.pad(scores, (1, 0), value=SHARP * (match - 0.5)).softmax(-1)[..., 1:] @ v


def judged(model: nn.Module, task: me.Task, n: int = 24, layers: list[str] | None = None) -> Verdict:
    answering, clean = Answering(model), task.sample(n, "test")
    depths = sites_of(answering, layers, (), None, clean.tokens[:2]).depths
    return me.verdict(answering, clean, task.corrupt(clean), depths=depths, resamples=100)
