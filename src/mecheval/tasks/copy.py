"""Selective copying: some tokens among blanks, which the model reproduces in order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from mecheval import rng
from mecheval.kernels import kernel
from mecheval.tasks.ar import draw_distinct
from mecheval.tasks.base import TASKS, SymbolTask, TaskOptions
from mecheval.tasks.corpus import I32, Corpus, Document, Ints, Question, empty_columns, small_ints
from mecheval.types import BOS, EOS, FIRST_SYMBOL, NOWHERE, Meaning, Split

BLANK, ASK = FIRST_SYMBOL, FIRST_SYMBOL + 1
FIRST = ASK + 1
"""Token ids of the blank, of the question mark that asks for the next token, and of the first symbol to copy."""


class CopyOptions(TaskOptions):
    """Options of selective copying."""

    length: int = Field(256, ge=1, le=1 << 20, description="tokens between BOS and the divider")
    content: int = Field(16, ge=1, le=1 << 14, description="tokens to copy; the others are blank")
    symbols: int = Field(16, ge=2, le=1 << 20, description="symbols of the tokens to copy, which may repeat")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.content > self.length:
            raise ValueError(f"content={self.content} cannot exceed length={self.length}")
        return self


@TASKS.register("copy")
class Copy(SymbolTask):
    """Selective copying: `BOS _ a _ _ b _ EOS ? ?`; the answers are a at the first question mark, b at the second.

    A token is asked for by its rank and not by a key, so key and value coincide and there is no verdict.
    """

    name = "copy"
    Options = CopyOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "laptop": {"length": 32, "content": 4}}
    roles = ("bos", "content", "before", "divider", "query")
    meaning = Meaning(key="content", value=None, places=("before", "divider"))
    corruptions = ("key",)
    facts = ("content", "gap")
    first = FIRST
    options: CopyOptions

    @property
    def vocab_size(self) -> int:
        """The number of token ids: the frame, the blank, the question mark and the symbols."""
        return FIRST + self.options.symbols

    @property
    def max_tokens(self) -> int:
        return self.options.length + self.options.content + 2

    @property
    def bytes_each(self) -> int:
        return super().bytes_each + 4 * self.max_tokens + 4 * (len(self.roles) + 2) * self.options.content

    def symbol(self, token: int) -> str:
        return {BLANK: "_", ASK: "?"}.get(token) or super().symbol(token)

    def document(self, random: random.Random, split: Split) -> Document:
        """One document; role `before` is the previous token to copy, if there is one."""
        o = self.options
        text = [BOS, *[BLANK] * o.length, EOS, *[ASK] * o.content]
        places = sorted(random.sample(range(1, o.length + 1), o.content))
        questions = []
        for rank, place in enumerate(places):
            text[place] = random.randrange(FIRST, self.vocab_size)
            at = o.length + 2 + rank
            roles = {"bos": 0, "content": place, "divider": o.length + 1, "query": at}
            if rank:
                roles["before"] = places[rank - 1]
            questions.append(Question(at, text[place], roles))
        return Document(text, questions, {"content": o.content, "gap": questions[0].at - places[0]})

    def _fill(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        o = self.options
        tokens = np.empty((n, self.max_tokens), small_ints(self.vocab_size))
        columns = empty_columns(n, o.content, len(self.roles), len(self.facts))
        fill(rng.key(seed, split), start, o.length, o.symbols, tokens, *columns)
        return Corpus(tokens.ravel(), np.arange(n + 1, dtype=np.int64) * self.max_tokens, *columns, first=start)


@kernel
def fill(
    stream: np.uint64, start: int, length: int, symbols: int,
    tokens: Ints, roles: I32, predict_at: I32, targets: I32, facts: I32,
) -> None:  # fmt: skip
    """`Copy.document` for many documents."""
    content = targets.shape[1]
    pool, swaps, places = np.arange(length), np.empty(content, np.int64), np.empty(content, np.int64)
    state = np.empty(1, np.uint64)
    for row in range(len(tokens)):
        state[0] = rng.fold(stream, np.uint64(start + row))
        draw_distinct(state, pool, swaps, places)
        text = tokens[row]
        text[: length + 1], text[length + 2 :] = BLANK, ASK
        text[0], text[length + 1] = BOS, EOS
        for place in places:
            text[1 + place] = FIRST + rng.below(state, symbols)
        rank, before = 0, NOWHERE
        for at in range(1, length + 1):
            if text[at] == BLANK:
                continue
            predict_at[row, rank], targets[row, rank] = length + 2 + rank, text[at]
            place = roles[row, rank]
            place[0], place[1], place[2], place[3], place[4] = 0, at, before, length + 1, length + 2 + rank
            rank, before = rank + 1, at
        facts[row, 0], facts[row, 1] = content, length + 2 - roles[row, 0, 1]
