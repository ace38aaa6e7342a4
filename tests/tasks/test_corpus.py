from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mecheval.errors import UserError
from mecheval.tasks import Corpus, Document, Query, Question, Task, TaskOptions, framed
from mecheval.tasks.corpus import pack
from mecheval.types import Batch, Meaning, Split, first_of, has_role, last_of

# A body with a tree: 5 and 6 are children of 7 (the root); the query asks 5's parent.
SHORT = framed([5, 6, 7], [Query(5, 7, 0, 2, 3, eligible=2)], parents=[2, 2, -1], rules=[-1, -1, 0], pairs=2, depth=1)
LONG = framed([8, 5, 6, 7], [Query(8, 7, 0, 3, 4)], parents=[3, 3, 3, -1], rules=[-1, -1, -1, 0])


def test_frame_places_everything_where_the_specification_says() -> None:
    corpus = pack([SHORT], vocab_size=10)
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
    batch = pack([framed([5, 6, 7], queries)], vocab_size=100).batch()
    assert batch.tokens.tolist() == [[1, 5, 6, 7, 2, 5, 90, 7, 6, 91, 7, 2]]
    assert batch.predict_at.tolist() == [[6, 9]]
    assert batch.targets.tolist() == [[7, 7]]
    assert batch.roles["query"].tolist() == [5]
    assert batch.parents is None


def test_a_batch_is_padded_to_its_own_longest_document_only() -> None:
    corpus = pack([SHORT, LONG, SHORT], vocab_size=10)
    assert corpus.tokens.dtype == np.int16
    assert corpus.batch().tokens.shape == (3, 9)
    assert corpus.batch([0, 2]).tokens.shape == (2, 8)
    batch = corpus.batch([1, 0])
    assert batch.tokens[1].tolist() == [1, 5, 6, 7, 2, 5, 7, 2, 0]
    assert batch.index.tolist() == [1, 0]
    assert batch.tokens.dtype == torch.int64
    assert batch.lengths.tolist() == [9, 8]


def test_rows_of_a_batch_can_be_taken() -> None:
    batch = pack([SHORT, LONG], vocab_size=10).batch()
    part = batch[1:]
    assert len(part) == 1
    assert torch.equal(part.tokens, batch.tokens[1:])
    assert part.roles["value"].tolist() == [4]
    assert part.parents is not None
    assert torch.equal(part.to("cpu").tokens, part.tokens)


# Two facts, each an address of two tokens and what is there; each is asked, the second before the first one's question.
ASKED = Document(
    [3, 4, 9, 5, 6, 8, 5, 6, 3, 4],
    [
        Question(9, 9, {"address": (0, 2), "content": 2, "ask": (8, 10)}),
        Question(7, 8, {"address": (3, 5), "content": 5, "ask": (6, 8)}),
    ],
    {"pairs": 2},
)
ONE_WORD = Document(
    [3, 9, 8, 7, 3, 3, 9],
    [Question(4, 9, {"address": 0, "content": 1, "ask": 4}), Question(5, 9, {"address": 0, "ask": 5})],
    {"pairs": 1},
)
ABOUT = Meaning("address", "content", "ask", places=())


def stored(*documents: Document) -> Corpus:
    return pack(documents, 12, roles=("address", "content", "ask"), facts=("pairs",), meaning=ABOUT)


def test_roles_are_spans_of_every_question_and_may_be_absent() -> None:
    batch = stored(ASKED, ONE_WORD).batch()
    assert batch.meaning == ABOUT
    assert batch.tokens[0].tolist() == ASKED.tokens
    assert batch.predict_at.tolist() == [[9, 7], [4, 5]]
    assert {role: where.tolist() for role, where in batch.roles.items()} == {
        "address": [[0, 1], [0, -1]], "content": [2, 1], "ask": [[8, 9], [4, -1]],
    }  # fmt: skip
    assert batch.asked["content"].tolist() == [[2, 5], [1, -1]]
    assert batch.asked["ask"].tolist() == [[[8, 9], [6, 7]], [[4, -1], [5, -1]]]
    address, content = batch.roles["address"], batch.asked["content"][:, 1]
    assert first_of(address).tolist() == [0, 0]
    assert last_of(address).tolist() == [1, 0]
    assert has_role(address).tolist() == [True, True]
    assert has_role(content).tolist() == [True, False]
    assert stored(ASKED, ONE_WORD).batch([1]).roles["address"].tolist() == [0]  # no span in this batch


def test_what_a_task_did_not_declare_is_one_line() -> None:
    with pytest.raises(UserError, match=r"unknown role of a question 'asked'.* Choices: address, ask, content"):
        stored(Document([3, 9, 3], [Question(2, 9, {"asked": 2})], {"pairs": 1}))
    with pytest.raises(UserError, match="all documents of a task must have the same number"):
        stored(ASKED, Document([3, 9, 3], [Question(2, 9, {"ask": 2})], {"pairs": 1}))


class Addresses(Task):
    """The documents above."""

    name, Options = "addresses", TaskOptions
    vocab_size, max_tokens = 12, 10
    roles: tuple[str, ...] = ("address", "content", "ask")
    facts, meaning, corruptions = ("pairs",), ABOUT, ("key", "value", "swap")

    def document(self, random: random.Random, split: Split) -> Document:
        return ASKED

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        return np.array([10, 11])

    def swappable(self, batch: Batch, row: int) -> list[int]:
        return [2 if int(batch.roles["content"][row]) == 5 else 5]


def test_a_corruption_replaces_a_whole_span_of_the_asked_question() -> None:
    task = Addresses(TaskOptions())
    batch = task.sample(4)
    lost = task.corrupt(batch)
    assert ((lost.tokens != batch.tokens).nonzero()[:, 1].view(4, 2) == torch.tensor([0, 1])).all()
    assert set(lost.tokens[:, :2].ravel().tolist()) == {10, 11}
    second = task.about(batch, torch.tensor([0, 1, 0, 1]))
    assert second.roles["address"].tolist() == [[0, 1], [3, 4], [0, 1], [3, 4]]
    assert second.answers.tolist() == [9, 8, 9, 8]
    assert second.predict_at.tolist() == [[9], [7], [9], [7]]
    assert ((task.corrupt(second).tokens != batch.tokens).nonzero()[:, 1].tolist()) == [0, 1, 3, 4, 0, 1, 3, 4]
    swapped = task.corrupt(second, kind="swap")
    assert swapped.tokens[1].tolist() == [3, 4, 8, 5, 6, 9, 5, 6, 3, 4]
    assert swapped.counterfactual is not None
    assert swapped.counterfactual.tolist() == [8, 9, 8, 9]
    with pytest.raises(UserError, match=r"unknown corruption of addresses 'query'.* Choices: key, swap, value"):
        task.corrupt(batch, kind="query")


def test_roles_are_declared_consistently() -> None:
    class Taken(Addresses):
        roles = ("address", "content", "ask", "question")

    class Unknown(Addresses):
        meaning = Meaning()

    with pytest.raises(UserError, match="addresses: a role cannot be called question; these names are taken: between"):
        Taken(TaskOptions()).sample(1)
    with pytest.raises(UserError, match=r"unknown role in the meaning of addresses 'key'.* Choices: address, ask"):
        Unknown(TaskOptions()).sample(1)
