from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from mecheval.config import RunConfig, run_config
from mecheval.training.state import DRAW, EVAL_TOKENS, TrainingData, evaluation_set

SMALL = {"pairs": 3, "keys": 8, "values": 8, "batch_size": 4, "steps": 10}


def data(config: RunConfig) -> TrainingData:
    return TrainingData(config, config.build_task())


def small(documents: int | None, **options: Any) -> RunConfig:
    return run_config("ar", **{**SMALL, "data.documents": documents, **options})


def test_a_fixed_set_is_walked_through_again_and_again() -> None:
    config = small(10)
    documents = config.build_task().sample(10, "train", config.seed)
    order = list(itertools.chain(range(10), range(10)))
    for step, rows in enumerate(np.array(order).reshape(5, 4)):  # the third batch crosses from one epoch to the next
        batch = data(config).batch(step)
        assert torch.equal(batch.tokens, documents.tokens[rows, :9])
        assert torch.equal(batch.targets, documents.targets[rows])


def test_shuffled_epochs_hold_every_document_once_and_differ() -> None:
    config = small(40, shuffle=True, pairs=8)
    source = data(config)
    epochs = [torch.cat([source.batch(10 * epoch + i).tokens for i in range(10)]) for epoch in range(2)]
    documents = config.build_task().sample(40, "train", config.seed).tokens[:, :19]
    as_sets = [sorted(map(tuple, tokens.tolist())) for tokens in (documents, *epochs)]
    assert as_sets[0] == as_sets[1] == as_sets[2]
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], documents)


@pytest.mark.parametrize("documents", [None, 10, 1000])
def test_a_step_is_the_same_wherever_one_starts(documents: int | None) -> None:
    config = small(documents, shuffle=documents == 1000)
    walked = data(config)
    for step in range(DRAW + 2):
        batch = walked.batch(step)
        if step in (0, 3, DRAW - 1, DRAW, DRAW + 1):
            fresh = data(config).batch(step)
            assert all(torch.equal(a, b) for a, b in zip(batch, fresh, strict=True))


def test_a_stream_never_repeats_and_begins_like_the_fixed_set() -> None:
    stream, fixed = data(small(None)), data(small(4 * (DRAW + 1)))
    for step in range(DRAW + 1):
        assert torch.equal(stream.batch(step).tokens, fixed.batch(step).tokens)
    assert not torch.equal(stream.batch(DRAW + 1).tokens, fixed.batch(DRAW + 1).tokens)


def test_documents_are_cut_after_the_last_prediction() -> None:
    config = run_config("ar", pairs=3, keys=8, values=8, queries=2)
    batch = data(config).batch(0)
    assert batch.tokens.shape == (32, 11)  # BOS, 6, EOS, query, answer, query
    assert (batch.at.max(dim=1).values == 10).all()


def test_evaluation_pieces_hold_every_document_once_and_little_padding() -> None:
    documents: dict[str, Any] = {"evaluate.documents": 200}
    config = run_config("atr", **documents)
    task = config.build_task()
    pieces = evaluation_set(config, task, "dev")
    whole = task.sample(200, "dev", config.evaluate.seed)
    lengths = whole.predict_at[:, 0] + 1
    found = [
        row[: int(at) + 1].tolist() for piece in pieces for row, at in zip(piece.tokens, piece.at[:, 0], strict=True)
    ]
    wanted = [row[:length].tolist() for row, length in zip(whole.tokens, lengths.tolist(), strict=True)]
    assert sorted(found) == sorted(wanted)
    assert all(piece.tokens.numel() <= EVAL_TOKENS or len(piece.tokens) == 1 for piece in pieces)
    assert sum(piece.tokens.numel() for piece in pieces) < 2 * int(lengths.sum())
