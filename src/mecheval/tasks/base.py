"""A task: its options, a readable way to write one document and, for speed, a kernel that writes many."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from mecheval import rng
from mecheval.errors import UnknownName, UserError, parse_options
from mecheval.machine import check_fits
from mecheval.registry import Registry
from mecheval.tasks.corpus import Corpus, Document, frame
from mecheval.types import BOS, EOS, FACTS, PAD, ROLES, Batch, Split, check_split

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
        return self.corpus(n, split, seed, start).batch()

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

    def corrupt(self, batch: Batch, seed: int = 0) -> Batch:
        """The same documents with the token at role `key` replaced by another, uniform over `substitutes`.

        A document's substitute depends on the seed and the document's number, not on its place in the batch.
        """
        key = rng.key(seed, "corrupt")
        tokens = batch.tokens.clone()
        for row, (place, number) in enumerate(zip(batch.roles["key"].tolist(), batch.index.tolist(), strict=True)):
            choices = self.substitutes(batch.tokens[row, : int(batch.lengths[row])].numpy(), place)
            if len(choices) == 0:
                raise UserError(f"{self.name}: no other symbol can replace the key; the vocabulary is too small.")
            state = rng.generator(rng.derived(key, number))
            tokens[row, place] = int(choices[rng.below(state, len(choices))])
        return replace(batch, tokens=tokens)

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
