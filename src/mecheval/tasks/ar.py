"""Associative recall: key-value pairs, then one of the keys; the answer is its value."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from mecheval import rng
from mecheval.errors import UserError
from mecheval.kernels import kernel
from mecheval.tasks.base import MAX_ATTEMPTS, MAX_WORK, MAX_WORK_EACH, MOST_SEED, TASKS, Task, TaskOptions
from mecheval.tasks.corpus import Corpus, Document, Query, empty_columns, framed, small_ints
from mecheval.tasks.holdout import Holdout, allowed, holdout
from mecheval.types import BOS, CORRUPTIONS, EOS, FIRST_SYMBOL, Batch, Split

if TYPE_CHECKING:  # slow to import
    from torch import Tensor


class AROptions(TaskOptions):
    """Options of associative recall."""

    pairs: int = Field(16, ge=1, le=1 << 20, description="key-value pairs in a document")
    keys: int = Field(4096, ge=1, lt=1 << 24, description="key symbols")
    values: int = Field(4096, ge=1, lt=1 << 24, description="value symbols, disjoint from the keys")
    queries: int = Field(1, ge=1, le=1 << 20, description="queries in a document, about different pairs")
    query: Literal["key", "value"] = Field("key", description="what the query repeats; value means reverse recall")
    holdout: float = Field(0.0, ge=0, lt=1, description="share of (key, value) pairs that only test asks about")
    holdout_seed: int = Field(0, ge=0, le=MOST_SEED, description="seed that chooses the held-out pairs")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, size in (("keys", self.keys), ("values", self.values)):
            if self.pairs > size:
                raise ValueError(f"pairs={self.pairs} distinct {name} cannot be drawn from {name}={size}")
        if self.queries > self.pairs:
            raise ValueError(f"queries={self.queries} cannot exceed pairs={self.pairs}: each is about another pair")
        return self


@TASKS.register("ar")
class AR(Task):
    """Associative recall: `BOS k1 v1 k2 v2 ... EOS k2 v2 EOS`; every key and value occurs once in the body."""

    name = "ar"
    Options = AROptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "laptop": {"pairs": 8, "keys": 64, "values": 64},
    }
    options: AROptions
    corruptions = CORRUPTIONS

    @property
    def vocab_size(self) -> int:
        """The number of token ids: the frame, the keys and the values, in this order."""
        return FIRST_SYMBOL + self.options.keys + self.options.values

    @property
    def max_tokens(self) -> int:
        return 2 * self.options.pairs + 2 * self.options.queries + 3

    @property
    def bytes_each(self) -> int:
        queries = self.options.queries
        return super().bytes_each + 6 * self.max_tokens + 8 * queries + 4 * len(self.roles) * (queries - 1)

    def symbol(self, token: int) -> str:
        """The keys are k0, k1, ... and the values v0, v1, ..."""
        number = token - FIRST_SYMBOL
        if number < 0:
            return super().symbol(token)
        return f"k{number}" if number < self.options.keys else f"v{number - self.options.keys}"

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Symbols of the same kind that are not in the document, so that the query matches nothing.

        If the document uses all symbols of the kind (pairs = keys), all others of the kind.
        """
        o = self.options
        is_key = tokens[key] < FIRST_SYMBOL + o.keys
        low, size = (FIRST_SYMBOL, o.keys) if is_key else (FIRST_SYMBOL + o.keys, o.values)
        symbols = np.arange(low, low + size)
        free = np.setdiff1d(symbols, tokens, assume_unique=False)
        return free if len(free) else symbols[symbols != tokens[key]]

    def chance(self, batch: Batch) -> Tensor:
        """The best guess is one of the values that are not the answer to an earlier query."""
        import torch

        answered = torch.arange(batch.targets.shape[1])
        return 1 / (batch.facts["pairs"][:, None] - answered).double()

    def swappable(self, batch: Batch, row: int) -> list[int]:
        """The values of all other pairs."""
        value, divider = int(batch.roles["value"][row]), int(batch.roles["divider"][row])
        return [place for place in range(2 - value % 2, divider, 2) if place != value]

    def document(self, random: random.Random, split: Split) -> Document:
        """One document; drafts with too few pairs that the split may ask about are rejected."""
        o = self.options
        side = self._side(split)
        for _ in range(MAX_ATTEMPTS):
            keys = random.sample(range(o.keys), o.pairs)
            values = random.sample(range(o.values), o.pairs)
            eligible = [i for i in range(o.pairs) if side.allows(keys[i], values[i])]
            if len(eligible) >= o.queries:
                break
        else:
            raise UserError(self._gave_up(split))
        body = [s for k, v in zip(keys, values, strict=True) for s in (FIRST_SYMBOL + k, FIRST_SYMBOL + o.keys + v)]
        queries = []
        for i in random.sample(eligible, o.queries):
            here, there = (2 * i, 2 * i + 1) if o.query == "key" else (2 * i + 1, 2 * i)
            queries.append(Query(body[here], body[there], here, there, 2 * i + 2, eligible=len(eligible)))
        return framed(body, queries, pairs=o.pairs)

    def _fill(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        o, length = self.options, self.max_tokens
        side = self._side(split)
        tokens = np.empty((n, length), np.int32)
        columns = empty_columns(n, o.queries)
        sizes = (o.pairs, o.keys, o.values, o.queries, o.query == "value")
        work = MAX_WORK + n * MAX_WORK_EACH
        if not fill(rng.key(seed, split), start, *sizes, *side, work, tokens, *columns):
            raise UserError(self._gave_up(split))
        starts = np.arange(n + 1, dtype=np.int64) * length
        flat = tokens.ravel().astype(small_ints(self.vocab_size))
        return Corpus(flat, starts, *columns, first=start)

    def _side(self, split: Split) -> Holdout:
        o = self.options
        return holdout(o.holdout, o.holdout_seed, split, o.keys, o.values)

    def _gave_up(self, split: Split) -> str:
        o = self.options
        return (
            f"ar: up to {MAX_ATTEMPTS} drafts of a {split} document had fewer than queries={o.queries} pairs that "
            f"holdout={o.holdout} allows {split} to ask about; use more pairs, fewer queries or another holdout."
        )


@kernel
def draw_distinct(state: rng.U64, pool: NDArray[np.int64], swaps: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """Fill `out` with distinct members of `pool` = 0, 1, 2, ..., which is unchanged afterwards.

    This is a Fisher-Yates shuffle that stops after len(out) swaps and then undoes them, so that the work grows with
    len(out) and not with len(pool).
    """
    for i in range(len(out)):
        j = i + rng.below(state, len(pool) - i)
        pool[i], pool[j] = pool[j], pool[i]
        swaps[i], out[i] = j, pool[i]
    for i in range(len(out) - 1, -1, -1):
        j = swaps[i]
        pool[i], pool[j] = pool[j], pool[i]


@kernel
def fill(
    stream: np.uint64, start: int, pairs: int, n_keys: int, n_values: int, queries: int, reverse: bool,
    hash_key: np.uint64, cut: np.uint64, held_out: bool, work: int,
    tokens: NDArray[np.int32], roles: NDArray[np.int32], predict_at: NDArray[np.int32],
    targets: NDArray[np.int32], facts: NDArray[np.int32],
) -> bool:  # fmt: skip
    """`AR.document` for many documents; returns False if it gave up. Roles and facts are ordered as ROLES and FACTS.

    `work` is the largest total number of pairs in rejected drafts.
    """
    key_pool, value_pool = np.arange(n_keys), np.arange(n_values)
    keys, values, swaps = np.empty(pairs, np.int64), np.empty(pairs, np.int64), np.empty(pairs, np.int64)
    eligible, asked = np.empty(pairs, np.int64), np.empty(queries, np.int64)
    state = np.empty(1, np.uint64)
    divider = 2 * pairs + 1
    for row in range(len(tokens)):
        state[0] = rng.fold(stream, np.uint64(start + row))
        count = 0
        for _ in range(MAX_ATTEMPTS):
            draw_distinct(state, key_pool, swaps, keys)
            draw_distinct(state, value_pool, swaps, values)
            count = 0
            for i in range(pairs):
                eligible[count] = i
                count += allowed(hash_key, cut, held_out, keys[i], values[i])
            if count >= queries:
                break
            work -= pairs
            if work < 0:
                return False
        if count < queries:
            return False
        for j in range(queries):
            other = j + rng.below(state, count - j)
            eligible[j], eligible[other] = eligible[other], eligible[j]
            asked[j] = eligible[j]

        text = tokens[row]
        text[0], text[divider], text[-1] = BOS, EOS, EOS
        for i in range(pairs):
            text[1 + 2 * i], text[2 + 2 * i] = FIRST_SYMBOL + keys[i], FIRST_SYMBOL + n_keys + values[i]
        for j in range(queries):
            here, there = 1 + 2 * asked[j] + reverse, 2 + 2 * asked[j] - reverse
            place = divider + 1 + 2 * j
            text[place], text[place + 1] = text[here], text[there]
            predict_at[row, j], targets[row, j] = place, text[there]
            where = roles[row, j]
            where[0], where[1], where[2] = 0, here, there
            where[3], where[4], where[5] = 3 + 2 * asked[j], divider, place
            if j == 0:
                facts[row, 0], facts[row, 1], facts[row, 2], facts[row, 3] = pairs, there - here, 0, count
    return True
