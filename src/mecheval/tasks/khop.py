"""Recall over several hops: the edges of one cycle of words, in any order; which word is k steps after x?"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from mecheval import rng
from mecheval.kernels import copy_row, kernel
from mecheval.tasks.ar import draw_distinct
from mecheval.tasks.base import TASKS, Task, TaskOptions
from mecheval.tasks.corpus import I32, Corpus, Document, Ints, Question, empty_columns, small_ints
from mecheval.types import BOS, EOS, FIRST_SYMBOL, NOWHERE, Batch, Meaning, Split

if TYPE_CHECKING:  # slow to import
    from torch import Tensor

MOST_HOPS = 16
"""Largest number of hops."""


class KHopOptions(TaskOptions):
    """Options of recall over several hops."""

    nodes: int = Field(75, ge=2, le=1 << 12, description="words in a document, which form one cycle")
    hops: int = Field(8, ge=1, le=MOST_HOPS, description="largest number of steps that is asked for")
    fewest: int = Field(1, ge=1, le=MOST_HOPS, description="smallest number of steps that is asked for")
    symbols: int = Field(128, ge=2, le=1 << 20, description="letters; the words of a document differ in the first one")
    shortest: int = Field(1, ge=1, le=64, description="smallest number of letters in a word")
    longest: int = Field(1, ge=1, le=64, description="largest number of letters in a word")
    queries: int = Field(1, ge=1, le=1 << 10, description="questions in a document, all different")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.hops >= self.nodes:
            raise ValueError(f"hops={self.hops} must be less than nodes={self.nodes}: more would go round the cycle")
        for low, high in (("fewest", "hops"), ("shortest", "longest")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low}={getattr(self, low)} cannot exceed {high}={getattr(self, high)}")
        if self.nodes > self.symbols:
            raise ValueError(f"nodes={self.nodes} words with different first letters need at least as many symbols")
        if self.queries > self.nodes * (self.hops - self.fewest + 1):
            raise ValueError(f"queries={self.queries} exceeds the number of different questions that can be asked")
        return self


@TASKS.register("khop")
class KHop(Task):
    """Recall over several hops: `BOS b c a b c a EOS 2 a c EOS`; two steps after a comes c, by the edges a b and b c.

    Words have one or several letters and differ in the first, which the model predicts. Role `hop_i` is the word after
    i steps, at the end of its edge, for each i below the number of steps that is asked for.
    """

    name = "khop"
    Options = KHopOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "paper_words": {"shortest": 5, "longest": 7},
        "laptop": {"nodes": 8, "hops": 2, "symbols": 16, "queries": 4},
    }
    corruptions = ("key", "value", "query")
    facts = ("nodes", "hops", "distance")
    options: KHopOptions

    def __init__(self, options: TaskOptions) -> None:
        super().__init__(options)
        between = tuple(f"hop_{i}" for i in range(1, self.options.hops))
        self.roles = ("bos", "key", *between, "value", "divider", "query")
        self.meaning = Meaning(places=(*between, "divider"))

    @property
    def vocab_size(self) -> int:
        """The number of token ids: the frame, the numbers of hops and the letters."""
        return FIRST_SYMBOL + self.options.hops + self.options.symbols

    @property
    def max_tokens(self) -> int:
        o = self.options
        return 2 * o.nodes * o.longest + o.queries * (1 + 2 * o.longest) + 3

    @property
    def bytes_each(self) -> int:
        o = self.options
        return super().bytes_each + 4 * self.max_tokens + 4 * (2 * len(self.roles) + 2) * o.queries

    def symbol(self, token: int) -> str:
        """The numbers of hops are +1, +2, ... and the letters s0, s1, ..."""
        number = token - FIRST_SYMBOL
        if number < 0:
            return super().symbol(token)
        return f"+{number + 1}" if number < self.options.hops else f"s{number - self.options.hops}"

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Letters that are not in the document, or any others if it has all; the number of hops never changes."""
        first = FIRST_SYMBOL + self.options.hops
        if tokens[key] < first:
            return tokens[key : key + 1]
        letters = np.arange(first, self.vocab_size)
        free = np.setdiff1d(letters, tokens)
        return free if len(free) else letters[letters != tokens[key]]

    def chance(self, batch: Batch) -> Tensor:
        """The best guess is any word except the one in the question."""
        import torch

        return torch.full(batch.targets.shape, 1 / (self.options.nodes - 1), dtype=torch.float64)

    def document(self, random: random.Random, split: Split) -> Document:
        """One document; word i + 1 follows word i, and the first follows the last."""
        o = self.options
        letters = range(FIRST_SYMBOL + o.hops, self.vocab_size)
        words = [
            [first, *random.choices(letters, k=random.randint(o.shortest, o.longest) - 1)]
            for first in random.sample(letters, o.nodes)
        ]
        text, source, target = [BOS], {}, {}
        for node in random.sample(range(o.nodes), o.nodes):
            after = (node + 1) % o.nodes
            source[node] = (len(text), len(text) + len(words[node]))
            target[after] = (source[node][1], source[node][1] + len(words[after]))
            text += words[node] + words[after]
        divider = len(text)
        text.append(EOS)
        questions = []
        for number in random.sample(range(o.nodes * (o.hops - o.fewest + 1)), o.queries):
            hops, node = o.fewest + number // o.nodes, number % o.nodes
            start = len(text)
            text += [FIRST_SYMBOL + hops - 1, *words[node]]
            roles: dict[str, int | tuple[int, int]] = {"bos": 0, "key": source[node], "divider": divider}
            roles |= {f"hop_{i}": target[(node + i) % o.nodes] for i in range(1, hops)}
            answer = (node + hops) % o.nodes
            roles |= {"value": target[answer], "query": (start, len(text))}
            questions.append(Question(len(text) - 1, words[answer][0], roles))
            text += words[answer]
            if len(questions) == 1:
                facts = {"nodes": o.nodes, "hops": hops, "distance": target[answer][0] - source[node][0]}
        return Document([*text, EOS], questions, facts)

    def _fill(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        o = self.options
        tokens, lengths = np.empty((n, self.max_tokens), small_ints(self.vocab_size)), np.empty(n, np.int64)
        columns = empty_columns(n, o.queries, len(self.roles), len(self.facts))
        spans = np.empty_like(columns[0])
        sizes = (o.nodes, o.hops, o.fewest, o.symbols, o.shortest, o.longest)
        fill(rng.key(seed, split), start, *sizes, tokens, lengths, spans, *columns)
        flat = tokens[np.arange(self.max_tokens) < lengths[:, None]]
        return Corpus(flat, np.concatenate([[0], np.cumsum(lengths)]), *columns, first=start, spans=spans)


@kernel
def fill(
    stream: np.uint64, start: int, nodes: int, hops: int, fewest: int, symbols: int, shortest: int, longest: int,
    tokens: Ints, lengths: NDArray[np.int64], spans: I32,
    roles: I32, predict_at: I32, targets: I32, facts: I32,
) -> None:  # fmt: skip
    """`KHop.document` for many documents."""
    queries, first_letter, value = targets.shape[1], FIRST_SYMBOL + hops, 1 + hops
    letter_pool, node_pool = np.arange(symbols), np.arange(nodes)
    question_pool = np.arange(nodes * (hops - fewest + 1))
    swaps, firsts, order = np.empty(max(nodes, queries), np.int64), np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    words, size, asked = np.empty((nodes, longest), np.int64), np.empty(nodes, np.int64), np.empty(queries, np.int64)
    source, target = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    state = np.empty(1, np.uint64)
    for row in range(len(tokens)):
        state[0] = rng.fold(stream, np.uint64(start + row))
        draw_distinct(state, letter_pool, swaps, firsts)
        draw_distinct(state, node_pool, swaps, order)
        draw_distinct(state, question_pool, swaps, asked)
        for node in range(nodes):
            size[node] = shortest + rng.below(state, longest - shortest + 1)
            words[node, 0] = first_letter + firsts[node]
            for i in range(1, size[node]):
                words[node, i] = first_letter + rng.below(state, symbols)
        text = tokens[row]
        text[0], at = BOS, 1
        for i in range(nodes):
            node = int(order[i])
            after = (node + 1) % nodes
            source[node], target[after] = at, at + size[node]
            for word in (node, after):
                copy_row(words[word, : size[word]], text[at:])
                at += size[word]
        divider = at
        text[divider] = EOS
        at += 1
        for j in range(queries):
            steps, node = fewest + int(asked[j]) // nodes, int(asked[j]) % nodes
            answer = (node + steps) % nodes
            place, span = roles[row, j], spans[row, j]
            place[:], span[:] = NOWHERE, 1
            place[0], place[1], place[value + 1], place[value + 2] = 0, source[node], divider, at
            span[1], span[value + 2] = size[node], 1 + size[node]
            for i in range(1, steps):
                place[1 + i], span[1 + i] = target[(node + i) % nodes], size[(node + i) % nodes]
            place[value], span[value] = target[answer], size[answer]
            text[at] = FIRST_SYMBOL + steps - 1
            at += 1
            copy_row(words[node, : size[node]], text[at:])
            at += size[node]
            predict_at[row, j], targets[row, j] = at - 1, words[answer, 0]
            copy_row(words[answer, : size[answer]], text[at:])
            at += size[answer]
            if j == 0:
                facts[row, 0], facts[row, 1], facts[row, 2] = nodes, steps, target[answer] - source[node]
        text[at], lengths[row] = EOS, at + 1
