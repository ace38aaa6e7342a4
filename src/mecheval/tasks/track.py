"""State tracking: the product of the group elements read so far, such as the parity of bits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from mecheval import rng
from mecheval.kernels import kernel
from mecheval.tasks.base import TASKS, Task, TaskOptions
from mecheval.tasks.corpus import I32, Corpus, Document, Ints, Question, empty_columns, small_ints
from mecheval.types import BOS, FIRST_SYMBOL, Batch, Meaning, Split

if TYPE_CHECKING:  # slow to import
    from torch import Tensor

Group = Literal["parity", "S3", "S5"]


class TrackOptions(TaskOptions):
    """Options of state tracking."""

    group: Group = Field("parity", description="parity of bits, or permutations of 3 or 5")
    length: int = Field(32, ge=1, le=1 << 16, description="elements in a document")
    test_length: int | None = Field(
        None, ge=1, le=1 << 16, description="elements in a test document, which is asked only beyond `length`"
    )
    labels: Literal["every", "end"] = Field("every", description="ask after every element, or after the last")

    @model_validator(mode="after")
    def _longer(self) -> Self:
        if self.test_length is not None and self.test_length <= self.length:
            raise ValueError(f"test_length={self.test_length} must be more than length={self.length}, or left out")
        return self


@TASKS.register("track")
class Track(Task):
    """State tracking: `BOS g1 g2 g3 ...`; after each element, the model predicts the product of all so far.

    The product is in reading order: of two permutations, the earlier one is applied first. Nothing is recalled, so
    there is no verdict. A corruption replaces `item`, one of the elements read.
    """

    name = "track"
    Options = TrackOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"test_length": 128}, "laptop": {"length": 16}}
    roles = ("bos", "item", "query")
    meaning = Meaning(key="item", value=None, places=())
    corruptions = ("key",)
    facts = ("elements", "ago")
    options: TrackOptions

    @cached_property
    def elements(self) -> list[str]:
        """The names of the group's elements; a permutation is written as the images of 1, 2, ..."""
        if self.options.group == "parity":
            return ["0", "1"]
        points = "12345"[: int(self.options.group[1:])]
        return ["".join(images) for images in itertools.permutations(points)]

    @cached_property
    def products(self) -> NDArray[np.int64]:
        """(G, G) numbers of the products of two elements; the row is the element that is read first."""
        if self.options.group == "parity":
            return np.array([[0, 1], [1, 0]])
        number = {name: i for i, name in enumerate(self.elements)}
        names = itertools.product(self.elements, repeat=2)
        numbers = [number["".join(second[int(image) - 1] for image in first)] for first, second in names]
        return np.array(numbers).reshape(len(number), -1)

    @property
    def vocab_size(self) -> int:
        """The number of token ids, including the frame; elements and products share theirs."""
        return FIRST_SYMBOL + len(self.elements)

    @property
    def max_tokens(self) -> int:
        """The length of the longest document; test documents can be longer than others."""
        return 1 + (self.options.test_length or self.options.length)

    @property
    def bytes_each(self) -> int:
        return super().bytes_each + 22 * self.max_tokens

    def symbol(self, token: int) -> str:
        """The elements are 0 and 1, or permutations such as 213."""
        return self.elements[token - FIRST_SYMBOL] if token >= FIRST_SYMBOL else super().symbol(token)

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """All other elements, each of which changes the product."""
        return np.setdiff1d(np.arange(FIRST_SYMBOL, self.vocab_size), tokens[key])

    def chance(self, batch: Batch) -> Tensor:
        import torch

        return torch.full(batch.targets.shape, 1 / len(self.elements), dtype=torch.float64)

    def document(self, random: random.Random, split: Split) -> Document:
        """One document; its first question is about all elements, the next one about all but the last, and so on."""
        length, asked = self._sizes(split)
        elements = [random.randrange(len(self.elements)) for _ in range(length)]
        states = list(itertools.accumulate(elements, lambda state, element: int(self.products[state, element])))
        places = range(length, length - asked, -1)
        items = [random.randint(1, at) for at in places]
        questions = [
            Question(at, FIRST_SYMBOL + states[at - 1], {"bos": 0, "item": item, "query": at})
            for at, item in zip(places, items, strict=True)
        ]
        facts = {"elements": length, "ago": length - items[0]}
        return Document([BOS, *(FIRST_SYMBOL + element for element in elements)], questions, facts)

    def _fill(self, n: int, split: Split, seed: int = 0, start: int = 0) -> Corpus:
        length, asked = self._sizes(split)
        tokens = np.empty((n, 1 + length), small_ints(self.vocab_size))
        columns = empty_columns(n, asked, len(self.roles), len(self.facts))
        fill(rng.key(seed, split), start, self.products, tokens, *columns)
        return Corpus(tokens.ravel(), np.arange(n + 1, dtype=np.int64) * (1 + length), *columns, first=start)

    def _sizes(self, split: Split) -> tuple[int, int]:
        """The numbers of elements and of questions of a document."""
        o = self.options
        length = o.test_length if split == "test" and o.test_length is not None else o.length
        return length, 1 if o.labels == "end" else length - o.length or length


@kernel
def fill(
    stream: np.uint64, start: int, products: NDArray[np.int64],
    tokens: Ints, roles: I32, predict_at: I32, targets: I32, facts: I32,
) -> None:  # fmt: skip
    """`Track.document` for many documents."""
    length, asked = tokens.shape[1] - 1, targets.shape[1]
    random = np.empty(1, np.uint64)
    for row in range(len(tokens)):
        random[0] = rng.fold(stream, np.uint64(start + row))
        tokens[row, 0] = BOS
        state = 0  # the group's neutral element
        for at in range(1, length + 1):
            element = int(rng.below(random, len(products)))
            state = products[state, element]
            tokens[row, at] = FIRST_SYMBOL + element
            question = length - at
            if question < asked:
                predict_at[row, question], targets[row, question] = at, FIRST_SYMBOL + state
                place = roles[row, question]
                place[0], place[1], place[2] = 0, 1 + rng.below(random, at), at
        facts[row, 0], facts[row, 1] = length, length - roles[row, 0, 1]
