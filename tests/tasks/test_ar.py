from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import mecheval as me
from mecheval.errors import UserError
from mecheval.tasks import AR, build_task
from mecheval.tasks.holdout import allowed, holdout
from mecheval.types import SPLITS, Batch, Split
from tasks.statistics import follows, same_distribution

ENOUGH = 1e-3  # seeds are fixed: a p-value below this would mean a real difference


def ar(**options: Any) -> AR:
    task = build_task("ar", **options)
    assert isinstance(task, AR)
    return task


def asked_pair(batch: Batch) -> torch.Tensor:
    return (batch.roles["next_key"] - 3) // 2


def test_the_paper_preset_is_the_papers_task() -> None:
    task = me.build_task("ar", preset="paper", pairs=16)
    batch = task.sample(64, split="test", seed=0)
    assert task.vocab_size == 8195
    assert batch.tokens.shape == (64, 37)
    assert batch.tokens[:, [0, 33, 36]].tolist() == [[1, 2, 2]] * 64
    body = batch.tokens[:, 1:33].reshape(64, 16, 2)
    assert ((body[..., 0] >= 3) & (body[..., 0] < 4099)).all()
    assert ((body[..., 1] >= 4099) & (body[..., 1] < 8195)).all()
    assert batch.facts["distance"].tolist() == [1] * 64
    assert batch.facts["eligible"].tolist() == [16] * 64


def test_the_only_pair_has_exact_roles() -> None:
    # One pair of one key and one value: nothing is left to chance.
    batch = ar(pairs=1, keys=1, values=1).sample(1)
    assert batch.tokens.tolist() == [[1, 3, 4, 2, 3, 4, 2]]
    places = {role: int(at) for role, at in batch.roles.items()}
    assert places == {"bos": 0, "key": 1, "value": 2, "next_key": 3, "divider": 3, "query": 4}


def test_reverse_recall_swaps_key_and_value_but_not_the_next_key() -> None:
    batch = ar(pairs=1, keys=1, values=1, query="value").sample(1)
    assert batch.tokens.tolist() == [[1, 3, 4, 2, 4, 3, 2]]
    places = {role: int(at) for role, at in batch.roles.items()}
    assert places == {"bos": 0, "key": 2, "value": 1, "next_key": 3, "divider": 3, "query": 4}
    assert batch.facts["distance"].tolist() == [-1]


@pytest.mark.parametrize("query", ["key", "value"])
def test_the_next_key_is_the_following_pair_or_the_divider(query: str) -> None:
    batch = ar(pairs=4, keys=9, values=9, query=query).sample(200)
    pair = asked_pair(batch)
    assert set(pair.tolist()) == {0, 1, 2, 3}
    last = pair == 3
    assert torch.equal(batch.roles["next_key"][last], batch.roles["divider"][last])
    following = batch.tokens.gather(1, batch.roles["next_key"][:, None])[~last]
    assert ((following >= 3) & (following < 12)).all()  # a key symbol, in both directions


def test_multi_query_documents_ask_different_pairs() -> None:
    batch = ar(pairs=5, keys=50, values=50, queries=3).sample(100)
    assert batch.tokens.shape == (100, 1 + 10 + 1 + 6 + 1)
    for i in range(100):
        tokens = batch.tokens[i].tolist()
        pairs = dict(zip(tokens[1:11:2], tokens[2:11:2], strict=True))
        asked = [tokens[p] for p in batch.predict_at[i].tolist()]
        assert len(set(asked)) == 3
        assert batch.targets[i].tolist() == [pairs[k] for k in asked]
        assert [tokens[p + 1] for p in batch.predict_at[i].tolist()] == batch.targets[i].tolist()
        assert int(batch.answers[i]) == int(batch.targets[i, 0])


@pytest.mark.parametrize(
    "options", [{}, {"query": "value"}, {"queries": 2}, {"holdout": 0.4}, {"keys": 6, "values": 6}]
)
def test_fast_and_reference_have_one_distribution(options: dict[str, object]) -> None:
    task = ar(**{"pairs": 6, "keys": 12, "values": 10, **options})
    for split in SPLITS if "holdout" in options else SPLITS[:1]:  # otherwise the splits differ in their seeds alone
        fast = task.corpus(12_000, split, seed=1).batch()
        slow = task.reference(4_000, split, seed=2).batch()
        for column in (1, 2, 11, 12):
            assert same_distribution(fast.tokens[:, column], slow.tokens[:, column]) > ENOUGH
        for name in ("key", "value", "next_key"):
            assert same_distribution(fast.roles[name], slow.roles[name]) > ENOUGH
        assert same_distribution(fast.answers, slow.answers) > ENOUGH
        assert same_distribution(fast.facts["eligible"], slow.facts["eligible"]) > ENOUGH
        pair_of = [b.tokens[:, 1] * 100 + b.tokens[:, 3] for b in (fast, slow)]  # two keys together
        assert same_distribution(*pair_of) > ENOUGH


def test_draws_are_uniform() -> None:
    task = ar(pairs=4, keys=8, values=5)
    batch = task.sample(40_000)
    assert follows(asked_pair(batch), np.full(4, 1 / 4)) > ENOUGH
    for place in (1, 7):
        assert follows(batch.tokens[:, place] - 3, np.full(8, 1 / 8)) > ENOUGH
    assert follows(batch.tokens[:, 8] - 11, np.full(5, 1 / 5)) > ENOUGH
    ordered = [tuple(row) for row in (batch.tokens[:, [1, 3]] - 3).tolist()]
    assert len(Counter(ordered)) == 8 * 7
    assert follows([a * 7 + b - (b > a) for a, b in ordered], np.full(56, 1 / 56)) > ENOUGH


def test_held_out_pairs_are_asked_in_test_only() -> None:
    task = ar(pairs=6, keys=20, values=20, holdout=0.2)
    asked = {}
    for split in ("train", "dev", "test"):
        batch = task.sample(20_000, split)
        asked[split] = set(zip((batch.tokens[:, -3]).tolist(), batch.answers.tolist(), strict=True))
    assert not asked["test"] & (asked["train"] | asked["dev"])
    assert len(asked["test"]) == 80  # exactly 20 % of 400, and in 20,000 documents each was asked
    assert len(asked["train"]) == 320


def test_hold_out_is_the_same_in_both_directions_and_for_every_sampling_seed() -> None:
    forward, backward = (
        ar(pairs=3, keys=9, values=9, holdout=0.3),
        ar(pairs=3, keys=9, values=9, holdout=0.3, query="value"),
    )
    a, b = forward.sample(3000, "test", seed=5), backward.sample(3000, "test", seed=6)
    pairs = set(zip(a.tokens[:, -3].tolist(), a.answers.tolist(), strict=True))
    assert pairs == set(zip(b.answers.tolist(), b.tokens[:, -3].tolist(), strict=True))


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("split", SPLITS)
def test_kernels_know_the_hold_out_as_plain_python_does(share: float, split: Split) -> None:
    side = holdout(share, 5, split, 9, 11)
    every = [(key, value) for key in range(9) for value in range(11)]
    assert [side.allows(*each) for each in every] == [allowed(*side, *each) for each in every]
    wanted = {0.0: 99}.get(share, 30 if split == "test" else 69)
    assert sum(side.allows(*each) for each in every) == wanted


def test_hold_out_share_is_right_where_combinations_are_too_many_to_count() -> None:
    side = holdout(0.2, 0, "test", 4096, 4096)
    held = np.mean([side.allows(k, v) for k in range(0, 4096, 41) for v in range(0, 4096, 41)])
    assert abs(held - 0.2) < 0.015


def test_an_impossible_hold_out_is_explained() -> None:
    with pytest.raises(UserError, match="10000 drafts of a test document had fewer than queries=2 pairs"):
        ar(pairs=2, keys=2, values=1 + 1, queries=2, holdout=0.01).sample(1, "test")


def test_corruption_takes_a_symbol_that_is_not_in_the_document() -> None:
    task = ar(pairs=4, keys=6, values=6)
    batch = task.sample(3000, "test")
    other = task.corrupt(batch, seed=1)
    changed = batch.tokens != other.tokens
    assert changed.sum(1).tolist() == [1] * 3000
    new = other.tokens.gather(1, batch.roles["key"][:, None])
    assert not (batch.tokens[:, :9] == new).any()
    assert follows(new[:, 0] - 3, np.full(6, 1 / 6)) > ENOUGH
    assert torch.equal(task.corrupt(batch[100:200], seed=1).tokens, other.tokens[100:200])
    assert not torch.equal(task.corrupt(batch, seed=2).tokens, other.tokens)


def test_corruption_falls_back_to_any_other_key_when_all_are_used() -> None:
    task = ar(pairs=3, keys=3, values=3)
    batch = task.sample(50)
    assert ((batch.tokens != task.corrupt(batch).tokens).sum(1) == 1).all()
    with pytest.raises(UserError, match="vocabulary is too small"):
        ar(pairs=1, keys=1, values=1).corrupt(ar(pairs=1, keys=1, values=1).sample(1))
