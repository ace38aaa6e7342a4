"""What a model sees: documents cut after the last prediction, the positions to predict at, and the answers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from mecheval import rng
from mecheval.config import RunConfig
from mecheval.tasks import Corpus, Task
from mecheval.types import Questions

DRAW = 64
"""Batches of a stream that are drawn together; a document depends on its number alone, so this changes no number."""

EVAL_TOKENS = 1 << 12
"""Tokens in one evaluation pass: what fits the cache is faster than one big pass."""


def questions(corpus: Corpus, rows: NDArray[np.int64], device: str) -> Questions:
    """The documents of these rows as tensors, each padded after its last prediction."""
    return Questions(*(torch.from_numpy(array).to(device) for array in corpus.questions(rows)))


class TrainingData:
    """The batch of every step, as a function of the step alone: to continue a run is to ask for a later step.

    A fixed set is walked through end to end, again and again; an epoch need not be a whole number of batches.
    """

    def __init__(self, config: RunConfig, task: Task) -> None:
        self.task, self.seed, self.size = task, config.seed, config.data.batch_size
        self.documents, self.shuffle = config.data.documents, config.data.shuffle
        self.device = config.machine.device
        self._corpus = None if self.documents is None else task.corpus(self.documents, "train", self.seed)
        self._order = lru_cache(2)(self._drawn_order)
        self._chunk = lru_cache(1)(self._drawn_chunk)

    def batch(self, step: int) -> Questions:
        """What step number `step` (from 0) is trained on."""
        if self._corpus is None or self.documents is None:
            chunk, place = divmod(step, DRAW)
            return questions(self._chunk(chunk), np.arange(place * self.size, (place + 1) * self.size), self.device)
        epochs, rows = np.divmod(np.arange(step * self.size, (step + 1) * self.size), self.documents)
        if self.shuffle:
            for epoch in np.unique(epochs):
                rows = np.where(epochs == epoch, self._order(int(epoch))[rows], rows)
        return questions(self._corpus, rows, self.device)

    def _drawn_chunk(self, chunk: int) -> Corpus:
        n = DRAW * self.size
        return self.task.corpus(n, "train", self.seed, start=chunk * n)

    def _drawn_order(self, epoch: int) -> NDArray[np.int64]:
        """The order of the documents in one epoch; it depends on (seed, epoch) alone."""
        return rng.permutation(rng.derived(rng.key(self.seed, "shuffle"), epoch), self.documents or 0)


def evaluation_set(config: RunConfig, task: Task, split: str) -> list[Questions]:
    """The documents of a split in pieces of similar length, so that short ones are not padded to the longest."""
    documents = config.evaluate.documents
    corpus = task.corpus(documents, split, config.evaluate.seed)
    lengths = corpus.predict_at.max(axis=1).astype(np.int64) + 1
    order = np.argsort(lengths, kind="stable")
    pieces, first = [], 0
    while first < documents:
        last = first + 1
        while last < documents and (last + 1 - first) * lengths[order[last]] <= EVAL_TOKENS:
            last += 1
        pieces.append(questions(corpus, order[first:last], config.machine.device))
        first = last
    return pieces
