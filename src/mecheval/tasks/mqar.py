"""Multi-query associative recall as in zoology: all pairs come first, then every key is asked once, after a gap."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from mecheval import rng
from mecheval.tasks.base import TASKS, Task, TaskOptions
from mecheval.tasks.corpus import Corpus, Document, Question, empty_columns, small_ints
from mecheval.tasks.mqar_kernel import Shape, draw_slots, fill, slot_weights
from mecheval.types import Batch, Meaning, Split

if TYPE_CHECKING:  # slow to import
    from torch import Tensor

BLANK = 0
Fillers = Literal["blank", "random", "distinct"]
FILLERS: tuple[Fillers, ...] = get_args(Fillers)
GUESSES = 4096
"""Number of random orders of the questions from which the best guess is computed."""


class MQAROptions(TaskOptions):
    """Options of multi-query associative recall."""

    length: int = Field(64, ge=2, le=1 << 16, description="tokens in a document")
    pairs: int = Field(4, ge=1, le=1 << 14, description="key-value pairs, each asked once")
    vocab: int = Field(8192, ge=4, le=1 << 20, description="tokens: blank, then keys, then values, half of each")
    power: float = Field(0.01, ge=0, le=10, description="slot s is drawn with weight (s + 1)^(power - 1)")
    fillers: Fillers = Field("blank", description="tokens between the questions; distinct = random, but never a key")
    key_tokens: int = Field(1, ge=1, le=2, description="tokens of a key; with 2, neither alone identifies a key")
    reassign: int = Field(0, ge=0, le=1 << 14, description="number of keys written twice; their last value counts")
    merged: bool = Field(False, description="key and value are one token, one for each combination")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        s = shape(self)
        if self.merged and self.key_tokens > 1:
            raise ValueError("merged: key and value in one token cannot be combined with key_tokens=2")
        if self.reassign > self.pairs:
            raise ValueError(
                f"reassign={self.reassign} cannot exceed pairs={self.pairs}: a key is written at most twice"
            )
        written = self.pairs + self.reassign
        for kind, needed, size in (("keys", s.grid or self.pairs, s.n_keys), ("values", written, s.n_values)):
            if needed > size:
                raise ValueError(
                    f"{needed} distinct {kind} cannot be drawn from the {size} that vocab={self.vocab} has"
                )
        if self.pairs > slots(self):
            least = (written + self.pairs) * (s.key_tokens + 1)
            raise ValueError(f"length={self.length} has too few slots for questions; it must be at least {least}")
        return self


def shape(o: MQAROptions) -> Shape:
    """The sizes that follow from the options.

    If key and value are merged, a vocabulary of (m + 1)^2 tokens has m keys, m values and their m * m combinations.
    """
    grid = isqrt(2 * o.pairs - 1) + 1 if o.key_tokens == 2 else 0
    n_keys = isqrt(o.vocab) - 1 if o.merged else o.vocab // 2 - 1
    n_values = n_keys if o.merged else o.vocab - o.vocab // 2
    key_tokens = 0 if o.merged else o.key_tokens
    return Shape(o.pairs, o.reassign, key_tokens, grid, n_keys, n_values, 1 + n_keys, o.vocab, FILLERS.index(o.fillers))


def slots(o: MQAROptions) -> int:
    """The number of places for questions after the pairs, each as long as a pair."""
    size = shape(o).key_tokens + 1
    return o.length // size - o.pairs - o.reassign


@TASKS.register("mqar")
class MQAR(Task):
    """Multi-query associative recall: `k1 v1 k2 v2 _ _ k2 _ _ _ k1 _`; the model answers at each key, in place."""

    name = "mqar"
    Options = MQAROptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"length": 512, "pairs": 64},
        "paper_64": {},
        "paper_128": {"length": 128, "pairs": 8},
        "paper_256": {"length": 256, "pairs": 16},
        "paper_512": {"length": 512, "pairs": 64},
        "laptop": {"length": 32, "pairs": 4, "vocab": 128},
    }
    roles = ("key", "value", "next_key", "old_value", "query")
    facts = ("pairs", "gap")
    meaning = Meaning(places=("next_key",))
    options: MQAROptions

    def __init__(self, options: TaskOptions) -> None:
        super().__init__(options)
        self.corruptions = ("key", "query") if self.options.merged else ("key", "value", "query", "swap")

    @cached_property
    def shape(self) -> Shape:
        return shape(self.options)

    @property
    def vocab_size(self) -> int:
        return self.options.vocab

    @property
    def max_tokens(self) -> int:
        return self.options.length

    @property
    def bytes_each(self) -> int:
        return super().bytes_each + 4 * self.max_tokens + 4 * (len(self.roles) + 2) * self.options.pairs

    def symbol(self, token: int) -> str:
        """The blank is _, then come k0, k1, ..., v0, v1, ... and, if key and value are merged, k0v0, k0v1, ..."""
        s, key, value = self.shape, token - 1, token - self.shape.first_value
        if token == BLANK:
            return "_"
        if key < s.n_keys:
            return f"k{key}"
        return f"v{value}" if value < s.n_values else f"k{value // s.n_values - 1}v{value % s.n_values}"

    def substitutes(self, tokens: NDArray[np.int64], position: int) -> NDArray[np.int64]:
        """Keys or values that are not in the document; for a merged token, its value with another key."""
        s, token = self.shape, int(tokens[position])
        combined = s.first_value + s.n_values
        if token >= combined and self.options.merged:
            there = {int(each - combined) // s.n_values for each in tokens if each >= combined}
            others = [key for key in range(s.n_keys) if key not in there]
            return np.array([combined + key * s.n_values + (token - combined) % s.n_values for key in others])
        low, size = (1, s.n_keys) if token < s.first_value else (s.first_value, s.n_values)
        return np.setdiff1d(np.arange(low, low + size), tokens)

    def swappable(self, batch: Batch, row: int) -> list[int]:
        """The values of all other pairs; of a key that is written twice, the last one."""
        return [place for place in batch.asked["value"][row].tolist() if place != int(batch.roles["value"][row])]

    def chance(self, batch: Batch) -> Tensor:
        """The best guess is the pair that is most often asked at that place; earlier pairs tend to be asked sooner."""
        import torch

        return torch.from_numpy(self._guess).expand(batch.targets.shape)

    @cached_property
    def _guess(self) -> NDArray[np.float64]:
        pairs, weights = self.options.pairs, slot_weights(slots(self.options), self.options.power)
        state, scratch = rng.generator(rng.key(0, "train")), np.empty((2, len(weights)), np.int64)
        drawn = np.empty((GUESSES, pairs), np.int64)
        for row in drawn:
            draw_slots(state, weights, scratch[0], scratch[1], row)
        order = np.argsort(drawn, axis=1)
        return np.array([np.bincount(order[:, place]).max() / GUESSES for place in range(pairs)])

    def document(self, random: random.Random, split: Split) -> Document:
        """One document: pairs, then questions, in slots that are drawn for one pair after the other."""
        o, s = self.options, self.shape
        keys: list[tuple[int, ...]] = [(1 + key,) for key in random.sample(range(s.n_keys), s.grid or o.pairs)]
        if s.grid:
            cells = random.sample(range(s.grid**2), o.pairs)
            keys = [keys[cell // s.grid] + keys[cell % s.grid] for cell in cells]
        written = random.sample([*keys, *random.sample(keys, o.reassign)], o.pairs + o.reassign)
        tokens: list[int] = []
        places: dict[tuple[int, ...], list[int]] = {key: [] for key in keys}  # positions of the values of each key
        values = {}
        for key, value in zip(written, random.sample(range(s.n_values), len(written)), strict=True):
            values[key] = s.first_value + value
            tokens += [s.first_value + key[0] * s.n_values + value] if o.merged else [*key, values[key]]
            places[key].append(len(tokens) - 1)
        size, body = s.key_tokens + 1, len(tokens)
        tokens += [BLANK] * (o.length - body)
        weights = [(slot + 1) ** (o.power - 1) for slot in range(slots(o))]
        questions, gaps, free = [], {}, set(range(body, o.length))
        for key in sorted(keys, key=lambda key: places[key][-1]):
            slot = random.choices(range(len(weights)), weights)[0]
            weights[slot] = 0
            start, value_at = body + slot * size, places[key][-1]
            stop, key_at = start + len(key), value_at - s.key_tokens
            tokens[start:stop] = key
            free -= set(range(start, stop))
            where: dict[str, int | tuple[int, int]] = {
                "key": (key_at, key_at + len(key)), "value": value_at, "next_key": value_at + 1, "query": (start, stop),
            }  # fmt: skip
            if len(places[key]) > 1:
                where["old_value"] = places[key][0]
            questions.append(Question(stop - 1, values[key], where))
            gaps[stop - 1] = stop - 1 - value_at
        if o.fillers != "blank":
            used = {token for key in keys for token in key} if o.fillers == "distinct" else set()
            for place in sorted(free):
                while (token := random.randrange(o.vocab)) in used:
                    pass
                tokens[place] = token
        questions.sort(key=lambda question: question.at)
        return Document(tokens, questions, {"pairs": o.pairs, "gap": gaps[questions[0].at]})

    def _fill(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        o, s = self.options, self.shape
        tokens = np.empty((n, o.length), small_ints(o.vocab))
        columns = empty_columns(n, o.pairs, len(self.roles), len(self.facts))
        fill(rng.key(seed, split), start, s, slot_weights(slots(o), o.power), tokens, *columns)
        spans = np.array([2, 1, 1, 1, 2], np.int32) if s.key_tokens == 2 else None
        return Corpus(
            tokens.ravel(), np.arange(n + 1, dtype=np.int64) * o.length, *columns, first=start,
            spans=None if spans is None else np.broadcast_to(spans, columns[0].shape),
        )  # fmt: skip
