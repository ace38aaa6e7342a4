"""A task with roles of its own (spans, no divider, questions anywhere), and a model whose mechanism on it is known."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from mecheval.tasks import Document, Question, Task, TaskOptions
from mecheval.types import FIRST_SYMBOL, Meaning, Split

PARTS, CONTENTS, BOXES = 14, 16, 4


class PostOptions(TaskOptions):
    recall: bool = True


class Post(Task):
    """Four boxes, each an address of two tokens and its content; one is asked after two boxes, another at the end."""

    name = "post"
    Options = PostOptions
    options: PostOptions
    roles = ("address", "content", "ask")
    facts = ("pairs",)
    corruptions = ("key", "value", "query")
    vocab_size = FIRST_SYMBOL + PARTS + CONTENTS
    max_tokens = 3 * BOXES + 4

    def __init__(self, options: PostOptions) -> None:
        super().__init__(options)
        self.meaning = Meaning("address", "content" if options.recall else None, "ask", places=())

    def document(self, random: random.Random, split: Split) -> Document:
        parts = random.sample(range(PARTS), 2 * BOXES)
        addresses = [[FIRST_SYMBOL + part for part in parts[2 * i : 2 * i + 2]] for i in range(BOXES)]
        contents = [FIRST_SYMBOL + PARTS + c for c in random.sample(range(CONTENTS), BOXES)]
        early = random.randrange(2)
        late = random.choice([i for i in range(BOXES) if i != early])
        tokens: list[int] = []
        boxes: list[int] = []
        for i in range(BOXES):
            if i == 2:
                tokens += addresses[early]
            boxes.append(len(tokens))
            tokens += [*addresses[i], contents[i]]
        tokens += addresses[late]

        def asked(i: int, end: int) -> Question:
            first = boxes[i]
            return Question(
                end, contents[i], {"address": (first, first + 2), "content": first + 2, "ask": (end - 1, end + 1)}
            )

        return Document(tokens, [asked(early, 7), asked(late, len(tokens) - 1)], {"pairs": BOXES})

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        low, size = (FIRST_SYMBOL, PARTS) if tokens[key] < FIRST_SYMBOL + PARTS else (FIRST_SYMBOL + PARTS, CONTENTS)
        return np.setdiff1d(np.arange(low, low + size), tokens)


class Shift(nn.Module):
    """Layer 0: every position keeps the two tokens before it."""

    def forward(self, h: Tensor) -> Tensor:
        own = h[..., : Post.vocab_size]
        one, two = F.pad(own, (0, 0, 1, 0))[:, :-1], F.pad(own, (0, 0, 2, 0))[:, :-2]
        return h + torch.cat([torch.zeros_like(own), one, two, torch.zeros_like(own)], -1)


class Fetch(nn.Module):
    """Layer 1: the last token of a question takes the token whose two predecessors are the question."""

    def forward(self, h: Tensor) -> Tensor:
        own, one, two, _ = h.chunk(4, -1)
        score = own @ one.mT + one @ two.mT
        causal = torch.ones(score.shape[1:]).tril().bool()
        found = (20 * score).masked_fill(~causal, -1e4).softmax(-1) @ own
        return h + torch.cat([torch.zeros_like(h[..., : 3 * Post.vocab_size]), found], -1)


class Clerk(nn.Module):
    """Stores an address at its content, then fetches the content: induction over keys of two tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(Shift()), nn.Sequential(Fetch())])

    def forward(self, tokens: Tensor) -> Tensor:
        h: Any = F.pad(F.one_hot(tokens, Post.vocab_size).float(), (0, 3 * Post.vocab_size))
        for layer in self.layers:
            h = layer(h)
        logits: Tensor = 12 * h[..., -Post.vocab_size :]
        return logits
