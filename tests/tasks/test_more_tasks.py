"""Hand-worked documents of the tasks beyond pairs, from both samplers, with exact roles."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mecheval.errors import UserError
from mecheval.tasks import Task, Track, build_task
from mecheval.types import Batch


def both(name: str, n: int, split: Any = "train", **options: Any) -> tuple[Task, list[Batch]]:
    """The task, and documents of the fast and of the readable sampler."""
    task = build_task(name, **options)
    return task, [task.corpus(n, split).batch(), task.reference(n, split).batch()]


def said(task: Task, batch: Batch, row: int) -> list[str]:
    return [task.symbol(token) for token in batch.tokens[row, : int(batch.lengths[row])].tolist()]


def roles(batch: Batch, row: int = 0) -> dict[str, Any]:
    return {role: at[row].tolist() for role, at in batch.roles.items()}


def test_parity_is_the_sum_of_the_bits() -> None:
    task, batches = both("track", 200, length=7)
    for batch in batches:
        bits = batch.tokens[:, 1:] - 3
        assert set(bits.unique().tolist()) == {0, 1}
        assert batch.tokens[:, 0].unique().tolist() == [1]
        assert torch.equal(batch.targets.flip(1) - 3, bits.cumsum(1) % 2)
        assert batch.predict_at.tolist() == [[7, 6, 5, 4, 3, 2, 1]] * 200
        assert set(batch.roles["item"].tolist()) == set(range(1, 8))
        flipped = task.corrupt(batch).tokens[:, 1:] - 3
        assert torch.equal(flipped.sum(1) % 2, 1 - bits.sum(1) % 2)
    assert batches[0].facts["ago"].tolist() == (7 - batches[0].roles["item"]).tolist()


def test_permutations_are_applied_in_the_order_of_reading() -> None:
    task = build_task("track", group="S3")
    assert isinstance(task, Track)
    assert task.elements == ["123", "132", "213", "231", "312", "321"]
    # 213 swaps the first two, then 132 the last two: 1 goes to 2 and on to 3, 2 to 1, 3 to 2.
    assert task.elements[task.products[2, 1]] == "312"
    assert task.elements[task.products[1, 2]] == "231"
    five = build_task("track", group="S5")
    assert isinstance(five, Track)
    assert five.products.shape == (120, 120)
    assert all(len(set(row)) == 120 for row in (*five.products.tolist(), *five.products.T.tolist()))
    for batch in (five.corpus(50).batch(), five.reference(50, "train").batch()):
        for row in range(50):
            state = "12345"
            for j, at in reversed(list(enumerate(batch.predict_at[row].tolist()))):
                element = five.symbol(int(batch.tokens[row, at]))
                state = "".join(element[int(point) - 1] for point in state)
                assert five.symbol(int(batch.targets[row, j])) == state


def test_longer_test_documents_are_asked_only_where_training_never_was() -> None:
    task = build_task("track", length=4, test_length=7)
    assert task.max_tokens == 8
    assert task.sample(2, "dev").predict_at.tolist() == [[4, 3, 2, 1]] * 2
    assert task.sample(2, "test").predict_at.tolist() == [[7, 6, 5]] * 2
    end = build_task("track", length=4, test_length=7, labels="end")
    assert end.sample(2, "train").predict_at.tolist() == [[4]] * 2
    assert end.sample(2, "test").predict_at.tolist() == [[7]] * 2


def test_joint_recall_needs_context_and_key() -> None:
    task, batches = both("joint", 40, contexts=2, keys=2, context_symbols=2, key_symbols=2, value_symbols=4, queries=4)
    for batch in batches:
        for row in range(40):
            text = said(task, batch, row)
            assert (text[0], text[11], text[-1]) == ("BOS", "EOS", "EOS")
            assert {text[1], text[6]} == {"c0", "c1"}
            value = {}
            for block in (1, 6):
                for key in (block + 1, block + 3):
                    value[text[block], text[key]] = text[key + 1]
            assert len(value) == len(set(value.values())) == 4
            asked = [tuple(text[at : at + 2]) for at in (12, 15, 18, 21)]
            assert {pair: text[14 + 3 * i] for i, pair in enumerate(asked)} == value
        assert batch.asked["query"][0].tolist() == [[12, 13], [15, 16], [18, 19], [21, 22]]
        assert batch.predict_at[0].tolist() == [13, 16, 19, 22]
        keys = batch.roles["key"]
        assert torch.equal(batch.roles["context"], torch.where(keys < 6, 1, 6))
        assert torch.equal(batch.roles["value"], keys + 1)
        assert torch.equal(batch.roles["next_key"], keys + 2)
        chance = task.chance(batch)
        assert chance[:, 0].unique().tolist() == [0.5]
        assert chance[:, 3].unique().tolist() == [1]  # only one value is left


def test_induction_answers_what_followed() -> None:
    task, batches = both("induction", 100, length=3, symbols=2)
    for batch in batches:
        seen = set()
        for row in range(100):
            text, where = said(task, batch, row), roles(batch, row)
            key = where["key"]
            assert key in (1, 2)
            assert [at for at, symbol in enumerate(text) if symbol == "S"] == [key, 4]
            assert where == {"bos": 0, "key": key, "value": key + 1, "next_key": key + 2, "query": 4}
            assert task.symbol(int(batch.answers[row])) == text[key + 1]
            rest = [symbol for symbol in text[1:4] if symbol != "S"]
            assert float(task.chance(batch)[row, 0]) == max(map(rest.count, rest)) / 2
            seen.add(tuple(text))
        assert len(seen) == 2 * 2 * 2


def test_copying_is_in_order() -> None:
    task, batches = both("copy", 100, length=4, content=2, symbols=3)
    for batch in batches:
        for row in range(100):
            text = said(task, batch, row)
            content = [(at, symbol) for at, symbol in enumerate(text) if symbol.startswith("s")]
            assert (text[0], *text[5:]) == ("BOS", "EOS", "?", "?")
            assert text[1:5].count("_") == 2
            assert [task.symbol(token) for token in batch.targets[row].tolist()] == [symbol for _, symbol in content]
            assert batch.asked["content"][row].tolist() == [at for at, _ in content]
            assert batch.asked["before"][row].tolist() == [-1, content[0][0]]
        assert batch.predict_at[0].tolist() == [6, 7]
        assert batch.asked["divider"][0].tolist() == [5, 5]


def test_hops_follow_the_edges() -> None:
    task, batches = both("khop", 60, nodes=5, hops=3, symbols=40, shortest=1, longest=3, queries=2)
    assert task.roles == ("bos", "key", "hop_1", "hop_2", "value", "divider", "query")
    lengths = set()
    for batch in batches:
        for row in range(60):
            text = said(task, batch, row)
            place = {role: at[row] for role, at in batch.asked.items()}
            for j in range(2):
                where = {role: [p for p in at[j].reshape(-1).tolist() if p >= 0] for role, at in place.items()}
                word = {role: [text[p] for p in at] for role, at in where.items()}
                hops = int(word["query"][0][1:])
                assert word["query"][1:] == word["key"]
                path = ["key", *(f"hop_{i}" for i in range(1, hops)), "value"]
                assert all(not where[f"hop_{i}"] for i in range(hops, 3))
                before = word["key"]
                for role in path[1:]:  # the word before stands at the beginning of the edge that leads here
                    start = where[role][0]
                    assert text[start - len(before) : start] == before
                    before = word[role]
                assert where["value"][-1] < where["divider"][0] < where["query"][0]
                assert task.symbol(int(batch.targets[row, j])) == word["value"][0]
                lengths.add(len(word["key"]))
            assert text[int(batch.predict_at[row, 0]) + 1] == task.symbol(int(batch.answers[row]))
    assert lengths == {1, 2, 3}


def test_words_of_a_cycle_are_visited_once() -> None:
    task, batches = both("khop", 30, nodes=6, hops=1, symbols=6, queries=6)
    for batch in batches:
        for row in range(30):
            text = said(task, batch, row)
            after = dict(zip(text[1:13:2], text[2:13:2], strict=True))
            node, seen = text[1], []
            while node not in seen:
                seen.append(node)
                node = after[node]
            assert len(seen) == 6
            asked = {text[15 + 3 * j]: text[16 + 3 * j] for j in range(6)}
            assert asked == after


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("track", {"length": 8, "test_length": 8}, "test_length=8 must be more than length=8"),
        ("track", {"group": "S4"}, "group"),
        ("joint", {"value_symbols": 15}, "value_symbols must be at least 16"),
        ("joint", {"queries": 17}, "queries=17 cannot exceed contexts * keys = 16"),
        ("copy", {"length": 3, "content": 4}, "content=4 cannot exceed length=3"),
        ("khop", {"nodes": 4, "hops": 4}, "hops=4 must be less than nodes=4"),
        ("khop", {"hops": 17}, "hops"),
        ("khop", {"shortest": 2}, "shortest=2 cannot exceed longest=1"),
        ("khop", {"symbols": 70}, "nodes=75 words with different first letters need at least as many symbols"),
        ("khop", {"nodes": 3, "hops": 1, "queries": 4}, "queries=4 exceeds the number of different questions"),
        ("induction", {"length": 1}, "length"),
        ("words", {"statements": 40}, "statements"),
        ("words", {"tokenizer": "nowhere/at/all"}, "there is no folder 'nowhere/at/all'"),
    ],
)
def test_options_that_do_not_fit_are_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        build_task(name, **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
