"""A task: its options, a readable way to write one document and, for speed, a kernel that writes many."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from mecheval import rng
from mecheval.errors import UnknownName, UserError, parse_options
from mecheval.machine import check_fits
from mecheval.registry import Registry
from mecheval.tasks.corpus import Corpus, Document, frame
from mecheval.types import BOS, CORRUPTIONS, EOS, FACTS, PAD, ROLES, Batch, Split, check_split

if TYPE_CHECKING:  # slow to import
    from torch import Tensor

MAX_ATTEMPTS = 10_000
"""Rejected drafts of one document after which a sampler gives up with an error, instead of looping for ever."""
MAX_WORK, MAX_WORK_EACH = 10**8, 500_000
"""Symbols of rejected drafts after which a sampler gives up, too: a number in total, plus one per document asked for.
That is a few seconds of work, or hundreds of rejected drafts per document of the paper's length."""
MOST_SEED = (1 << 64) - 1
"""The largest seed."""


class TaskOptions(BaseModel):
    """Options of a task: a typo is an error, and options never change once a task is built."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Task(ABC):
    """A source of documents with known roles.

    A new task needs `Options`, `vocab_size`, `max_tokens`, `document` and `substitutes`; it may override
    `_fill` with something faster than writing documents one by one.
    """

    name: ClassVar[str]
    Options: ClassVar[type[TaskOptions]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, options: TaskOptions) -> None:
        self.options = options

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of token ids, the frame's included."""

    @property
    @abstractmethod
    def max_tokens(self) -> int:
        """Length of the longest document with its frame: what a position table must hold."""

    @abstractmethod
    def document(self, random: random.Random, split: Split) -> Document:
        """Write one document in the plainest way: the definition against which a faster `_fill` is tested."""

    @abstractmethod
    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """The token ids that may replace the one at position `key` of a document `tokens` (length,)."""

    @property
    def bytes_each(self) -> int:
        """Least memory of one document of a corpus in bytes, without the parts whose size varies."""
        return 8 + 4 * (len(ROLES) + len(FACTS))

    def symbol(self, token: int) -> str:
        """A token's name."""
        return {PAD: "PAD", BOS: "BOS", EOS: "EOS"}.get(token, str(token))

    def sample(self, n: int, split: str = "train", seed: int = 0, start: int = 0) -> Batch:
        """Documents start .. start+n of a split's stream, padded to the longest of them."""
        batch = self.corpus(n, split, seed, start).batch()
        return replace(batch, chance=self.chance(batch))

    def corpus(self, n: int, split: str = "train", seed: int = 0, start: int = 0) -> Corpus:
        """The same documents stored compactly: a fixed training set is `task.corpus(100_032)`."""
        if n < 1 or start < 0:
            raise UserError(f"{self.name}: the number of documents must be positive (got n={n}, start={start}).")
        check_fits(2 * n * self.bytes_each, f"{self.name}: {n:,} documents")  # other things need memory, too
        return self._fill(n, check_split(split), seed, start)

    def stream(self, batch_size: int, split: str = "train", seed: int = 0, start: int = 0) -> Iterator[Batch]:
        """Endless batches of fresh documents; `start` continues where an earlier stream stopped."""
        for first in itertools.count(start, batch_size):
            yield self.sample(batch_size, split, seed, first)

    def corrupt(self, batch: Batch, seed: int = 0, kind: str = "key") -> Batch:
        """The same documents after a corruption, about the query that the batch's roles are about.

        A document's substitute depends on the seed and the document's number, not on its place in the batch.
        """
        if kind not in CORRUPTIONS:
            raise UnknownName("corruption", kind, CORRUPTIONS)
        if kind == "swap":
            return self._swap(batch, seed)
        key = rng.key(seed, "corrupt" if kind == "key" else f"corrupt {kind}")
        tokens = batch.tokens.clone()
        for row, (place, number) in enumerate(zip(batch.roles[kind].tolist(), batch.index.tolist(), strict=True)):
            choices = self.substitutes(batch.tokens[row, : int(batch.lengths[row])].numpy(), place)
            if len(choices) == 0:
                raise UserError(f"{self.name}: no other symbol can replace the {kind}; the vocabulary is too small.")
            state = rng.generator(rng.derived(key, number))
            tokens[row, place] = int(choices[rng.below(state, len(choices))])
        return replace(batch, tokens=tokens)

    def _swap(self, batch: Batch, seed: int) -> Batch:
        """The asked pair and another one, drawn for each document, exchange their values."""
        key = rng.key(seed, "corrupt swap")
        tokens, answers = batch.tokens.clone(), batch.answers.clone()
        for row, (here, number) in enumerate(zip(batch.roles["value"].tolist(), batch.index.tolist(), strict=True)):
            others = self.swappable(batch, row)
            if not others:
                raise UserError(f"{self.name}: document {number} has no second pair to exchange values with.")
            there = others[rng.below(rng.generator(rng.derived(key, number)), len(others))]
            answers[row] = tokens[row, there]
            tokens[row, [here, there]] = tokens[row, [there, here]]
        return replace(batch, tokens=tokens, counterfactual=answers)

    def swappable(self, batch: Batch, row: int) -> list[int]:
        """Positions of the values that the asked value of a document can change places with."""
        raise UserError(f"{self.name}: values cannot be swapped; choices: key, value, query.")

    def chance(self, batch: Batch) -> Tensor:
        """(n, k) likelihoods of the answers for someone who sees the document but recalls no pair: the best guess.

        A model has learnt the task only if it does better than this.
        """
        import torch

        pairs = batch.facts["pairs"].clamp(min=1).double()
        return (1 / pairs)[:, None].expand(batch.targets.shape).to(torch.float64)

    def about(self, batch: Batch, query: Tensor) -> Batch:
        """The same documents with roles, answers and first prediction those of query number `query` (n,)."""
        import torch

        rows = torch.arange(len(batch))
        at, answers = batch.predict_at[rows, query], batch.targets[rows, query]
        asked = torch.where(batch.predict_at[:, 0] > batch.roles["query"], at - 1, at)  # a query type stands after it
        keys, values = [], []
        for row in range(len(batch)):
            body = batch.tokens[row, : int(batch.roles["divider"][row])].tolist()
            keys.append(len(body) - 1 - body[::-1].index(int(batch.tokens[row, asked[row]])))
            values.append(self._value_of(batch, row, body, keys[-1], int(at[row]), int(answers[row])))
        key, value = torch.tensor(keys), torch.tensor(values)
        end = torch.maximum(key, value) + 1 if self.pairs_are_adjacent else value + 1
        roles = {**batch.roles, "key": key, "value": value, "next_key": end, "query": asked}
        chance = None if batch.chance is None else batch.chance[rows, query][:, None]
        facts = {**batch.facts, "distance": value - key}
        return replace(
            batch, roles=roles, answers=answers, predict_at=at[:, None], targets=answers[:, None], chance=chance,
            facts=facts,
        )  # fmt: skip

    pairs_are_adjacent: ClassVar[bool] = True
    """Whether key and value stand side by side, so that `next_key` is the position after both."""

    def _value_of(self, batch: Batch, row: int, body: list[int], key: int, at: int, answer: int) -> int:
        """Position of the answer in the body; where symbols occur once it is where the answer's symbol stands."""
        return len(body) - 1 - body[::-1].index(answer)

    def each_query_in_turn(self, batch: Batch) -> Batch:
        """Document i about its query number i modulo k: over many documents, all queries count alike."""
        return batch if batch.targets.shape[1] == 1 else self.about(batch, batch.index % batch.targets.shape[1])

    def reference(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        """Documents written one by one with `document`: same distribution as `corpus`, not the same draws."""
        key = rng.key(seed, split)
        numbers = range(start, start + n)
        documents = [self.document(random.Random(int(rng.derived(key, i))), split) for i in numbers]
        return frame(documents, self.vocab_size, first=start)

    _fill = reference


TASKS: Registry[type[Task]] = Registry("task", "mecheval.tasks")


def build_task(name: str, preset: str | None = None, **options: Any) -> Task:
    """The task called `name`: a preset, then options over it; the defaults are the paper's."""
    cls = TASKS.get(name)
    base: Mapping[str, Any] = {}
    if preset is not None:
        if preset not in cls.presets:
            raise UnknownName(f"preset of {name}", preset, cls.presets)
        base = cls.presets[preset]
    return cls(parse_options(cls.Options, name, {**base, **options}))
