"""The base class of tasks: options, a readable way to write one document and, optionally, a fast way to write many."""

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
"""Number of rejected drafts of one document after which a sampler gives up with an error."""
MAX_WORK, MAX_WORK_EACH = 10**8, 500_000
"""A sampler also gives up when the symbols of all rejected drafts exceed MAX_WORK + MAX_WORK_EACH * documents: after a
few seconds, or hundreds of rejected drafts per document of the paper's length."""
MOST_SEED = (1 << 64) - 1
"""The largest seed."""


class TaskOptions(BaseModel):
    """Options of a task. Unknown names are errors, and options are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Task(ABC):
    """A source of documents with known roles.

    A new task needs `Options`, `vocab_size`, `max_tokens`, `document` and `substitutes`; it may override `_fill` with
    something faster than writing documents one by one. A task whose documents are not framed (`BOS body EOS query
    answer EOS`) also declares its roles, their meaning, its facts and its corruptions.
    """

    name: ClassVar[str]
    Options: ClassVar[type[TaskOptions]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    roles: tuple[str, ...] = ROLES
    """The names of all roles, in order."""
    meaning: Meaning = FRAMED
    """Which roles hold the key, the value and the query, and at which others an association may be stored."""
    corruptions: tuple[str, ...] = ("key", "value", "query")
    """The kinds of corruption that the task supports (see CORRUPTIONS); a verdict is based mainly on `key`."""
    facts: tuple[str, ...] = FACTS
    """The names of the numbers that describe a document; `distance` is the distance from key to value."""

    def __init__(self, options: TaskOptions) -> None:
        self.options = options

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of token ids, including those of the frame."""

    @property
    @abstractmethod
    def max_tokens(self) -> int:
        """The length of the longest document, frame included, for which a model needs positions."""

    @abstractmethod
    def document(self, random: random.Random, split: Split) -> Document:
        """Write one document in the plainest way; this is the definition against which a faster `_fill` is tested."""

    @abstractmethod
    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """The token ids that may replace the token at position `key` of the document `tokens` (length,)."""

    @property
    def bytes_each(self) -> int:
        """A lower bound on the memory in bytes of one document in a corpus."""
        return 8 + 4 * (len(self.roles) + len(self.facts))

    def symbol(self, token: int) -> str:
        """The name of a token."""
        return {PAD: "PAD", BOS: "BOS", EOS: "EOS"}.get(token, str(token))

    def sample(self, n: int, split: str = "train", seed: int = 0, start: int = 0) -> Batch:
        """The documents with numbers `start` to `start + n - 1` of a split, padded to the longest of them."""
        batch = self.corpus(n, split, seed, start).batch()
        return replace(batch, chance=self.chance(batch))

    def corpus(self, n: int, split: str = "train", seed: int = 0, start: int = 0) -> Corpus:
        """The same documents stored compactly, such as a fixed training set, `task.corpus(100_032)`."""
        if n < 1 or start < 0:
            raise UserError(f"{self.name}: the number of documents must be positive (got n={n}, start={start}).")
        check_fits(2 * n * self.bytes_each, f"{self.name}: {n:,} documents")  # other things need memory, too
        self._check_roles()
        drawn = self._fill(n, check_split(split), seed, start)
        return replace(drawn, role_names=self.roles, fact_names=self.facts, meaning=self.meaning)

    def _check_roles(self) -> None:
        """Raise an error if a role has a reserved name, or if a role in `meaning` is not declared."""
        for role in self.roles:
            if role in RESERVED:
                taken = ", ".join(RESERVED)
                raise UserError(f"{self.name}: a role cannot be called {role}; these names are taken: {taken}.")
        for named in (self.meaning.key, self.meaning.value, self.meaning.query):
            if named is not None and named not in self.roles:
                raise UnknownName(f"role in the meaning of {self.name}", named, self.roles)

    def stream(self, batch_size: int, split: str = "train", seed: int = 0, start: int = 0) -> Iterator[Batch]:
        """An endless stream of batches of new documents, from document number `start`."""
        for first in itertools.count(start, batch_size):
            yield self.sample(batch_size, split, seed, first)

    def corrupt(self, batch: Batch, seed: int = 0, kind: str = "key") -> Batch:
        """The same documents after a corruption of the question that the batch's roles describe.

        What replaces a token depends on the seed and the document's number, and not on its row in the batch.
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
        """New tokens for the positions `span` of a document, as many as there are positions; None if there are none.

        By default, each token is replaced by one of its `substitutes`; a task may replace the item as a whole instead.
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
        """In each document, exchange the value that is asked for with that of another pair, drawn at random."""
        key = rng.key(seed, "corrupt swap")
        tokens, answers = batch.tokens.clone(), batch.answers.clone()
        for row, number in enumerate(batch.index.tolist()):
            here = places_of(batch.roles[self.meaning.role("value")], row)
            others = self.swappable(batch, row)
            if not others:
                raise UserError(f"{self.name}: document {number} has no second pair to exchange values with.")
            first = others[rng.below(rng.generator(rng.derived(key, number)), len(others))]
            there = [place - here[0] + first for place in here]
            said = tokens[row, here].tolist().index(int(answers[row]))  # which token of the value is the answer
            answers[row] = tokens[row, there[said]]
            tokens[row, here + there] = tokens[row, there + here]
        return replace(batch, tokens=tokens, counterfactual=answers)

    def swappable(self, batch: Batch, row: int) -> list[int]:
        """The first positions of the values with which the answer's value can be exchanged, all of the same length."""
        raise NotImplementedError(f"{self.name} declares the corruption swap but has no method `swappable`")

    def chance(self, batch: Batch) -> Tensor:
        """(n, k) likelihoods of the answers under the best guess of a reader who sees the document but recalls no pair.

        A model has learnt the task only if it does better than this.
        """
        import torch

        if "pairs" not in batch.facts:
            raise UserError(f"{self.name} needs a method `chance`, because its documents have no fact `pairs`.")
        pairs = batch.facts["pairs"].clamp(min=1).double()
        return (1 / pairs)[:, None].expand(batch.targets.shape).to(torch.float64)

    def about(self, batch: Batch, query: Tensor) -> Batch:
        """The same documents with the roles, the answer and the prediction of question number `query` (n,)."""
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
        """Document i about its question number i modulo k, so that all questions occur equally often."""
        return batch if batch.targets.shape[1] == 1 else self.about(batch, batch.index % batch.targets.shape[1])

    def reference(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        """Documents written one by one with `document`: the same distribution as `corpus`, but not the same draws."""
        key = rng.key(seed, split)
        numbers = range(start, start + n)
        documents = [self.document(random.Random(int(rng.derived(key, i))), split) for i in numbers]
        return pack(documents, self.vocab_size, start, self.roles, self.facts, self.meaning)

    _fill = reference


def places_of(positions: Tensor, row: int) -> list[int]:
    """The positions of a role in the document `row`; `positions` is (n,) or (n, m)."""
    where = positions[row].reshape(-1).tolist()
    return [place for place in where if place != NOWHERE]


class SymbolTask(Task):
    """A task whose symbols are s0, s1, ..., each of which may replace any other and may repeat in a document."""

    first: ClassVar[int]
    """The token id of the first symbol; smaller ids belong to the frame and to marks of the task."""

    def symbol(self, token: int) -> str:
        return f"s{token - self.first}" if token >= self.first else super().symbol(token)

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(self.first, self.vocab_size), tokens[key])

    def chance(self, batch: Batch) -> Tensor:
        """(n, k) the share of the most frequent symbol of each document."""
        import torch

        counts = [np.bincount(row[row >= self.first]) for row in batch.tokens.numpy()]
        shares = torch.tensor([count.max() / count.sum() for count in counts], dtype=torch.float64)
        return shares[:, None].expand(batch.targets.shape)


TASKS: Registry[type[Task]] = Registry("task", "mecheval.tasks")


def build_task(name: str, preset: str | None = None, **options: Any) -> Task:
    """The task called `name`, with a preset's options and then the given ones; the defaults are the paper's."""
    cls = TASKS.get(name)
    base: Mapping[str, Any] = {}
    if preset is not None:
        if preset not in cls.presets:
            raise UnknownName(f"preset of {name}", preset, cls.presets)
        base = cls.presets[preset]
    return cls(parse_options(cls.Options, name, {**base, **options}))
