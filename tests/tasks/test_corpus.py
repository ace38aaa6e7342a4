from __future__ import annotations

import numpy as np
import torch

from mecheval.tasks.corpus import Document, Query, frame

# A body with a tree: 5 and 6 are children of 7 (the root); the query asks 5's parent.
SHORT = Document([5, 6, 7], [Query(5, 7, 0, 2, 3, eligible=2)], parents=[2, 2, -1], rules=[-1, -1, 0], pairs=2, depth=1)
LONG = Document([8, 5, 6, 7], [Query(8, 7, 0, 3, 4)], parents=[3, 3, 3, -1], rules=[-1, -1, -1, 0])


def test_frame_places_everything_where_the_specification_says() -> None:
    corpus = frame([SHORT], vocab_size=10)
    batch = corpus.batch()
    assert batch.tokens.tolist() == [[1, 5, 6, 7, 2, 5, 7, 2]]
    assert {role: int(at) for role, at in batch.roles.items()} == {
        "bos": 0, "key": 1, "value": 3, "next_key": 4, "divider": 4, "query": 5,
    }  # fmt: skip
    assert batch.answers.tolist() == [7]
    assert batch.predict_at.tolist() == [[5]]
    assert batch.parents is not None
    assert batch.parents.tolist() == [[-1, 3, 3, -1, -1, -1, -1, -1]]
    assert {name: int(v) for name, v in batch.facts.items()} == {
        "pairs": 2,
        "distance": 2,
        "depth": 1,
        "eligible": 2,
    }


def test_several_queries_follow_one_divider_and_types_are_predicted_from() -> None:
    queries = [Query(5, 7, 0, 2, 3, kind=90), Query(6, 7, 1, 2, 3, kind=91)]
    batch = frame([Document([5, 6, 7], queries)], vocab_size=100).batch()
    assert batch.tokens.tolist() == [[1, 5, 6, 7, 2, 5, 90, 7, 6, 91, 7, 2]]
    assert batch.predict_at.tolist() == [[6, 9]]
    assert batch.targets.tolist() == [[7, 7]]
    assert batch.roles["query"].tolist() == [5]
    assert batch.parents is None


def test_a_batch_is_padded_to_its_own_longest_document_only() -> None:
    corpus = frame([SHORT, LONG, SHORT], vocab_size=10)
    assert corpus.tokens.dtype == np.int16
    assert corpus.batch().tokens.shape == (3, 9)
    assert corpus.batch([0, 2]).tokens.shape == (2, 8)
    batch = corpus.batch([1, 0])
    assert batch.tokens[1].tolist() == [1, 5, 6, 7, 2, 5, 7, 2, 0]
    assert batch.index.tolist() == [1, 0]
    assert batch.tokens.dtype == torch.int64
    assert batch.lengths.tolist() == [9, 8]


def test_rows_of_a_batch_can_be_taken() -> None:
    batch = frame([SHORT, LONG], vocab_size=10).batch()
    part = batch[1:]
    assert len(part) == 1
    assert torch.equal(part.tokens, batch.tokens[1:])
    assert part.roles["value"].tolist() == [4]
    assert part.parents is not None
    assert torch.equal(part.to("cpu").tokens, part.tokens)
