"""Joint recall: a value belongs to a pair of context and key, and every key occurs in every context."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from mecheval import rng
from mecheval.kernels import kernel
from mecheval.tasks.ar import draw_distinct
from mecheval.tasks.base import TASKS, Task, TaskOptions
from mecheval.tasks.corpus import I32, Corpus, Document, Ints, Question, empty_columns, small_ints
from mecheval.types import BOS, EOS, FIRST_SYMBOL, Batch, Meaning, Split

if TYPE_CHECKING:  # slow to import
    from torch import Tensor


class JointOptions(TaskOptions):
    """Options of joint recall."""

    contexts: int = Field(4, ge=1, le=1 << 10, description="contexts in a document")
    keys: int = Field(4, ge=1, le=1 << 10, description="keys in a document, all of them in every context")
    context_symbols: int = Field(1024, ge=1, le=1 << 20, description="context symbols")
    key_symbols: int = Field(1024, ge=1, le=1 << 20, description="key symbols")
    value_symbols: int = Field(1024, ge=1, le=1 << 20, description="value symbols; a document has each at most once")
    queries: int = Field(1, ge=1, le=1 << 10, description="queries in a document, all different")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        cells = self.contexts * self.keys
        for name, needed in (("context", self.contexts), ("key", self.keys), ("value", cells)):
            if needed > getattr(self, f"{name}_symbols"):
                raise ValueError(f"{name}_symbols must be at least {needed}: those of a document are distinct")
        if self.queries > cells:
            raise ValueError(f"queries={self.queries} cannot exceed contexts * keys = {cells}: all are different")
        return self


@TASKS.register("joint")
class Joint(Task):
    """Joint recall: `BOS c1 k1 v1 k2 v2 c2 k2 v3 k1 v4 EOS c2 k1 v4 EOS`; context and key together give the value."""

    name = "joint"
    Options = JointOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"contexts": 8, "keys": 8},
        "laptop": {"contexts": 2, "keys": 2, "context_symbols": 16, "key_symbols": 16, "value_symbols": 32},
    }
    roles = ("bos", "context", "key", "value", "next_key", "divider", "query")
    meaning = Meaning(places=("next_key", "context", "divider"))
    corruptions = ("key", "value", "query", "swap")
    facts = ("pairs", "distance")
    options: JointOptions

    @property
    def vocab_size(self) -> int:
        """The number of token ids: the frame, contexts, keys and values, in this order."""
        o = self.options
        return FIRST_SYMBOL + o.context_symbols + o.key_symbols + o.value_symbols

    @property
    def max_tokens(self) -> int:
        o = self.options
        return o.contexts * (1 + 2 * o.keys) + 3 * o.queries + 3

    @property
    def bytes_each(self) -> int:
        return super().bytes_each + 4 * self.max_tokens + 4 * (2 * len(self.roles) + 2) * self.options.queries

    def symbol(self, token: int) -> str:
        """The contexts are c0, c1, ..., the keys k0, k1, ... and the values v0, v1, ..."""
        number = token - FIRST_SYMBOL
        if number < 0:
            return super().symbol(token)
        for letter, size in (("c", self.options.context_symbols), ("k", self.options.key_symbols)):
            if number < size:
                return f"{letter}{number}"
            number -= size
        return f"v{number}"

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Symbols of the same kind that are not in the document."""
        o, low = self.options, FIRST_SYMBOL
        for size in (o.context_symbols, o.key_symbols, o.value_symbols):
            if tokens[key] < low + size:
                break
            low += size
        return np.setdiff1d(np.arange(low, low + size), tokens)

    def swappable(self, batch: Batch, row: int) -> list[int]:
        """The values of all other keys and contexts."""
        stop, first = int(batch.roles["divider"][row]), FIRST_SYMBOL + self.options.context_symbols
        values = batch.tokens[row, :stop] >= first + self.options.key_symbols
        return [place for place in values.nonzero()[:, 0].tolist() if place != int(batch.roles["value"][row])]

    def chance(self, batch: Batch) -> Tensor:
        """The best guess uses the key or the context alone: one of its values that has not been an answer yet."""
        import torch

        asked = batch.tokens[torch.arange(len(batch))[:, None, None], batch.asked["query"]]  # (n, k, 2)
        before = torch.ones(asked.shape[1], asked.shape[1]).tril(-1).bool()[:, :, None]
        answered = ((asked[:, :, None] == asked[:, None]) & before).sum(2)
        left = torch.tensor([self.options.keys, self.options.contexts]) - answered
        return 1 / left.amin(2).double()

    def document(self, random: random.Random, split: Split) -> Document:
        """One document: a block for each context, with all keys in random order."""
        o = self.options
        first_key = FIRST_SYMBOL + o.context_symbols
        contexts = [FIRST_SYMBOL + symbol for symbol in random.sample(range(o.context_symbols), o.contexts)]
        keys = [first_key + symbol for symbol in random.sample(range(o.key_symbols), o.keys)]
        values = iter(random.sample(range(o.value_symbols), o.contexts * o.keys))
        text, cells = [BOS], []
        for context in contexts:
            start = len(text)
            text.append(context)
            for key in random.sample(keys, o.keys):
                cells.append({"bos": 0, "context": start, "key": len(text), "value": len(text) + 1})
                text += [key, first_key + o.key_symbols + next(values)]
        divider = len(text)
        text.append(EOS)
        questions = []
        for cell in random.sample(cells, o.queries):
            answer, asked = text[cell["value"]], (len(text), len(text) + 2)
            text += [text[cell["context"]], text[cell["key"]], answer]
            roles: dict[str, int | tuple[int, int]] = {
                **cell,
                "next_key": cell["value"] + 1,
                "divider": divider,
                "query": asked,
            }
            questions.append(Question(asked[1] - 1, answer, roles))
        return Document([*text, EOS], questions, {"pairs": len(cells), "distance": 1})

    def _fill(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        o = self.options
        tokens = np.empty((n, self.max_tokens), small_ints(self.vocab_size))
        columns = empty_columns(n, o.queries, len(self.roles), len(self.facts))
        symbols = (o.context_symbols, o.key_symbols, o.value_symbols)
        fill(rng.key(seed, split), start, o.contexts, o.keys, symbols, tokens, *columns)
        spans = np.broadcast_to(np.array([1, 1, 1, 1, 1, 1, 2]), columns[0].shape)
        starts = np.arange(n + 1, dtype=np.int64) * self.max_tokens
        return Corpus(tokens.ravel(), starts, *columns, first=start, spans=spans)


@kernel
def fill(
    stream: np.uint64, start: int, n_contexts: int, n_keys: int, symbols: tuple[int, int, int],
    tokens: Ints, roles: I32, predict_at: I32, targets: I32, facts: I32,
) -> None:  # fmt: skip
    """`Joint.document` for many documents."""
    cells, queries = n_contexts * n_keys, targets.shape[1]
    first_key = FIRST_SYMBOL + symbols[0]
    first_value = first_key + symbols[1]
    context_pool, key_pool, value_pool = np.arange(symbols[0]), np.arange(symbols[1]), np.arange(symbols[2])
    order_pool, cell_pool, swaps = np.arange(n_keys), np.arange(cells), np.empty(max(cells, 1), np.int64)
    contexts, keys, values = np.empty(n_contexts, np.int64), np.empty(n_keys, np.int64), np.empty(cells, np.int64)
    order, asked = np.empty(n_keys, np.int64), np.empty(queries, np.int64)
    state = np.empty(1, np.uint64)
    block = 1 + 2 * n_keys
    divider = 1 + n_contexts * block
    for row in range(len(tokens)):
        state[0] = rng.fold(stream, np.uint64(start + row))
        draw_distinct(state, context_pool, swaps, contexts)
        draw_distinct(state, key_pool, swaps, keys)
        draw_distinct(state, value_pool, swaps, values)
        draw_distinct(state, cell_pool, swaps, asked)
        text = tokens[row]
        text[0], text[divider], text[-1] = BOS, EOS, EOS
        for c in range(n_contexts):
            at = 1 + c * block
            text[at] = FIRST_SYMBOL + contexts[c]
            draw_distinct(state, order_pool, swaps, order)
            for k in range(n_keys):
                text[at + 1 + 2 * k] = first_key + keys[order[k]]
                text[at + 2 + 2 * k] = first_value + values[c * n_keys + k]
        for j in range(queries):
            context = 1 + asked[j] // n_keys * block
            key, at = context + 1 + 2 * (asked[j] % n_keys), divider + 1 + 3 * j
            text[at], text[at + 1], text[at + 2] = text[context], text[key], text[key + 1]
            predict_at[row, j], targets[row, j] = at + 1, text[key + 1]
            place = roles[row, j]
            place[0], place[1], place[2], place[3], place[4] = 0, context, key, key + 1, key + 2
            place[5], place[6] = divider, at
        facts[row, 0], facts[row, 1] = cells, 1
