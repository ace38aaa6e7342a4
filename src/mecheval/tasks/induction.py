"""The induction task: a special token occurs once in the document; which token followed it?"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from mecheval import rng
from mecheval.kernels import kernel
from mecheval.tasks.base import TASKS, SymbolTask, TaskOptions
from mecheval.tasks.corpus import I32, Corpus, Document, Ints, Question, empty_columns, small_ints
from mecheval.types import BOS, FIRST_SYMBOL, Meaning, Split

SPECIAL = FIRST_SYMBOL
FIRST = SPECIAL + 1
"""Token ids of the special token and of the first other symbol."""


class InductionOptions(TaskOptions):
    """Options of the induction task."""

    length: int = Field(256, ge=2, le=1 << 20, description="tokens between BOS and question, including the special one")
    symbols: int = Field(16, ge=2, le=1 << 20, description="other symbols, which may repeat")


@TASKS.register("induction")
class Induction(SymbolTask):
    """Induction: `BOS a b S c a S`; the answer is c, the symbol after the first special token S."""

    name = "induction"
    Options = InductionOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "laptop": {"length": 32}}
    roles = ("bos", "key", "value", "next_key", "query")
    meaning = Meaning(places=("next_key",))
    corruptions = ("key", "value")
    facts = ("symbols", "gap")
    first = FIRST
    options: InductionOptions

    @property
    def vocab_size(self) -> int:
        """The number of token ids: the frame, the special token and the other symbols."""
        return FIRST + self.options.symbols

    @property
    def max_tokens(self) -> int:
        return self.options.length + 2

    @property
    def bytes_each(self) -> int:
        return super().bytes_each + 4 * self.max_tokens + 8

    def symbol(self, token: int) -> str:
        return "S" if token == SPECIAL else super().symbol(token)

    def document(self, random: random.Random, split: Split) -> Document:
        """One document of random symbols, of which one, but not the last, is replaced by the special token."""
        o = self.options
        text = [BOS, *(random.randrange(FIRST, self.vocab_size) for _ in range(o.length)), SPECIAL]
        key, end = random.randint(1, o.length - 1), o.length + 1
        text[key] = SPECIAL
        roles = {"bos": 0, "key": key, "value": key + 1, "next_key": key + 2, "query": end}
        return Document(text, [Question(end, text[key + 1], roles)], {"symbols": o.length - 1, "gap": end - key})

    def _fill(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        tokens = np.empty((n, self.max_tokens), small_ints(self.vocab_size))
        columns = empty_columns(n, 1, len(self.roles), len(self.facts))
        fill(rng.key(seed, split), start, self.options.symbols, tokens, *columns)
        return Corpus(tokens.ravel(), np.arange(n + 1, dtype=np.int64) * self.max_tokens, *columns, first=start)


@kernel
def fill(
    stream: np.uint64, start: int, symbols: int, tokens: Ints, roles: I32, predict_at: I32, targets: I32, facts: I32
) -> None:
    """`Induction.document` for many documents."""
    end = tokens.shape[1] - 1
    state = np.empty(1, np.uint64)
    for row in range(len(tokens)):
        state[0] = rng.fold(stream, np.uint64(start + row))
        text = tokens[row]
        key = 1 + rng.below(state, end - 2)
        for at in range(1, end):
            text[at] = FIRST + rng.below(state, symbols)
        text[0], text[key], text[end] = BOS, SPECIAL, SPECIAL
        predict_at[row, 0], targets[row, 0] = end, text[key + 1]
        place = roles[row, 0]
        place[0], place[1], place[2], place[3], place[4] = 0, key, key + 1, key + 2, end
        facts[row, 0], facts[row, 1] = end - 2, end - key
