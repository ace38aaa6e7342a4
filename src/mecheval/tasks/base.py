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
from mecheval.tasks.corpus import Corpus, Document, pack
from mecheval.types import (
    BOS,
    EOS,
    FACTS,
    FRAMED,
    NOWHERE,
    PAD,
    RESERVED,
    ROLES,
    Batch,
    Meaning,
    Split,
    check_split,
    first_of,
)

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
    `_fill` with something faster than writing documents one by one. One whose documents are not framed
    (`BOS body EOS query answer EOS`) also declares its roles, what they mean, its facts and what it can corrupt.
    """

    name: ClassVar[str]
    Options: ClassVar[type[TaskOptions]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    roles: tuple[str, ...] = ROLES
    """The names of all roles, in order."""
    meaning: Meaning = FRAMED
    """Which of them carry the question and the answer, and at which others an association may be stored."""
    corruptions: tuple[str, ...] = ("key", "value", "query")
    """The kinds of corruption that can be asked for, see CORRUPTIONS; key is what a verdict rests on."""
    facts: tuple[str, ...] = FACTS
    """The names of the numbers about a document. One called distance is that from key to value."""

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
        return 8 + 4 * (len(self.roles) + len(self.facts))

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
        self._check_roles()
        drawn = self._fill(n, check_split(split), seed, start)
        return replace(drawn, role_names=self.roles, fact_names=self.facts, meaning=self.meaning)

    def _check_roles(self) -> None:
        """Raise an error if a role has a name that is taken, or if a role that has a meaning is not declared."""
        for role in self.roles:
            if role in RESERVED:
                taken = ", ".join(RESERVED)
                raise UserError(f"{self.name}: a role cannot be called {role}; these names are taken: {taken}.")
        for named in (self.meaning.key, self.meaning.value, self.meaning.query):
            if named is not None and named not in self.roles:
                raise UnknownName(f"role in the meaning of {self.name}", named, self.roles)

    def stream(self, batch_size: int, split: str = "train", seed: int = 0, start: int = 0) -> Iterator[Batch]:
        """Endless batches of fresh documents; `start` continues where an earlier stream stopped."""
        for first in itertools.count(start, batch_size):
            yield self.sample(batch_size, split, seed, first)

    def corrupt(self, batch: Batch, seed: int = 0, kind: str = "key") -> Batch:
        """The same documents after a corruption, about the question that the batch's roles are about.

        A document's substitute depends on the seed and the document's number, not on its place in the batch.
        """
        if kind not in self.corruptions:
            raise UnknownName(f"corruption of {self.name}", kind, self.corruptions)
        if kind == "swap":
            return self._swap(batch, seed)
        key, role = rng.key(seed, "corrupt" if kind == "key" else f"corrupt {kind}"), self.meaning.role(kind)
        tokens = batch.tokens.clone()
        for row, number in enumerate(batch.index.tolist()):
            span = places_of(batch.roles[role], row)
            if not span:
                raise UserError(f"{self.name}: document {number} has no {role} to corrupt.")
            text = batch.tokens[row, : int(batch.lengths[row])].numpy()
            new = self.corrupt_item(text, span, rng.generator(rng.derived(key, number)))
            if new is None:
                raise UserError(f"{self.name}: no other symbol can replace the {role}; the vocabulary is too small.")
            tokens[row, span] = batch.tokens.new_tensor(new)
        return replace(batch, tokens=tokens)

    def corrupt_item(self, tokens: NDArray[np.int64], span: list[int], state: rng.U64) -> list[int] | None:
        """What replaces the tokens at the positions `span` of a document, as many; None if nothing can.

        Each token is replaced by one of its `substitutes`; a task may put another item of the same kind there instead.
        All randomness comes from `state`, e.g. by `rng.below(state, 10)`.
        """
        new = []
        for place in span:
            choices = self.substitutes(tokens, place)
            if len(choices) == 0:
                return None
            new.append(int(choices[rng.below(state, len(choices))]))
        return new

    def _swap(self, batch: Batch, seed: int) -> Batch:
        """The asked pair and another one, drawn for each document, exchange their values."""
        key = rng.key(seed, "corrupt swap")
        tokens, answers = batch.tokens.clone(), batch.answers.clone()
        for row, number in enumerate(batch.index.tolist()):
            here = places_of(batch.roles[self.meaning.role("value")], row)
            others = self.swappable(batch, row)
            if not others:
                raise UserError(f"{self.name}: document {number} has no second pair to exchange values with.")
            first = others[rng.below(rng.generator(rng.derived(key, number)), len(others))]
            there = [place - here[0] + first for place in here]
            said = tokens[row, here].tolist().index(int(answers[row]))  # the token of the value that is the answer
            answers[row] = tokens[row, there[said]]
            tokens[row, here + there] = tokens[row, there + here]
        return replace(batch, tokens=tokens, counterfactual=answers)

    def swappable(self, batch: Batch, row: int) -> list[int]:
        """The first positions of the values, as long as the asked one, that it can change places with."""
        raise NotImplementedError(f"{self.name} declares the corruption swap, and has no `swappable`")

    def chance(self, batch: Batch) -> Tensor:
        """(n, k) likelihoods of the answers for someone who sees the document but recalls no pair: the best guess.

        A model has learnt the task only if it does better than this.
        """
        import torch

        if "pairs" not in batch.facts:
            raise UserError(f"{self.name} needs a method `chance`, because its documents have no fact `pairs`.")
        pairs = batch.facts["pairs"].clamp(min=1).double()
        return (1 / pairs)[:, None].expand(batch.targets.shape).to(torch.float64)

    def about(self, batch: Batch, query: Tensor) -> Batch:
        """The same documents with roles, answers and first prediction those of question number `query` (n,)."""
        import torch

        rows = torch.arange(len(batch))
        at, answers = batch.predict_at[rows, query], batch.targets[rows, query]
        roles = {role: where[rows, query] for role, where in batch.asked.items()}
        facts = dict(batch.facts)
        if "distance" in facts and self.meaning.value is not None:
            facts["distance"] = first_of(roles[self.meaning.value]) - first_of(roles[self.meaning.key])
        chance = None if batch.chance is None else batch.chance[rows, query][:, None]
        return replace(
            batch, roles=roles, answers=answers, predict_at=at[:, None], targets=answers[:, None], chance=chance,
            facts=facts,
        )  # fmt: skip

    def each_query_in_turn(self, batch: Batch) -> Batch:
        """Document i about its question number i modulo k: over many documents, all questions count alike."""
        return batch if batch.targets.shape[1] == 1 else self.about(batch, batch.index % batch.targets.shape[1])

    def reference(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        """Documents written one by one with `document`: same distribution as `corpus`, not the same draws."""
        key = rng.key(seed, split)
        numbers = range(start, start + n)
        documents = [self.document(random.Random(int(rng.derived(key, i))), split) for i in numbers]
        return pack(documents, self.vocab_size, start, self.roles, self.facts, self.meaning)

    _fill = reference


def places_of(positions: Tensor, row: int) -> list[int]:
    """The positions of a role, (n,) or (n, m), in one document."""
    where = positions[row].reshape(-1).tolist()
    return [place for place in where if place != NOWHERE]


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
