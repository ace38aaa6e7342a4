from __future__ import annotations

import csv
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import mecheval as me
from mecheval.errors import UserError
from mecheval.tasks import MQAR, build_task
from mecheval.types import Batch
from tasks.statistics import same_distribution

ENOUGH = 1e-3


def mqar(**options: Any) -> MQAR:
    task = build_task("mqar", **options)
    assert isinstance(task, MQAR)
    return task


def zoology() -> dict[tuple[int, int], dict[str, list[float]]]:
    """Statistics of zoology's own generator: see data/README.md."""
    found: dict[tuple[int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (Path(__file__).parent / "data/mqar_slots.csv").open() as file:
        for row in csv.DictReader(file):
            found[int(row["length"]), int(row["pairs"])][row["statistic"]].append(float(row["value"]))
    return found


def slots_by_pair(batch: Batch, pairs: int) -> np.ndarray[Any, Any]:
    """(n, pairs) the slot in which each pair is asked."""
    pair, slot = batch.asked["key"] // 2, (batch.predict_at - 2 * pairs) // 2
    return torch.empty_like(slot).scatter(1, pair, slot).numpy()


@pytest.mark.parametrize(("length", "pairs"), [(64, 4), (128, 8), (256, 16)])
def test_questions_stand_where_zoology_puts_them(length: int, pairs: int) -> None:
    known, n = zoology()[length, pairs], 20_000
    slots = slots_by_pair(mqar(length=length, pairs=pairs).corpus(n, "train", 1).batch(), pairs)
    counts = np.bincount(slots.ravel(), minlength=length // 2 - pairs)
    assert len(counts) == len(known["slot"])
    assert stats.chi2_contingency([counts, known["slot"]]).pvalue > ENOUGH
    for name, values in (("first", slots.min(1)), ("last", slots.max(1))):
        error = values.std() * np.sqrt(2 / n)
        assert values.mean() == pytest.approx(known[f"mean_{name}_slot"][0], abs=4 * error)
    errors = slots.std(0) * np.sqrt(2 / n)
    assert np.all(np.abs(slots.mean(0) - known["mean_slot_of_pair"]) < 4.5 * errors)


@pytest.mark.parametrize("fillers", ["blank", "random", "distinct"])
def test_slots_and_fillers_of_the_readable_sampler(fillers: str) -> None:
    task = mqar(length=20, pairs=3, vocab=16, fillers=fillers)
    fast, slow = task.corpus(3000, "train", 1).batch(), task.reference(3000, "train", 2).batch()
    for pair in range(3):
        assert same_distribution(slots_by_pair(fast, 3)[:, pair], slots_by_pair(slow, 3)[:, pair]) > ENOUGH
    for place in (6, 7, 12, 13, 19):
        assert same_distribution(fast.tokens[:, place], slow.tokens[:, place]) > ENOUGH
    for batch in (fast, slow):
        asked = torch.zeros_like(batch.tokens, dtype=torch.bool).scatter(1, batch.predict_at, True)
        rest = torch.where(asked, -1, batch.tokens)[:, 6:]
        if fillers == "blank":
            assert set(rest.unique().tolist()) == {-1, 0}
        else:
            assert set(rest.unique().tolist()) == set(range(-1, 16))
            keys = batch.tokens[:, 0:6:2]
            repeated = (rest[:, :, None] == keys[:, None]).any()
            assert bool(repeated) == (fillers == "random")


def test_the_vocabulary_is_zoologys() -> None:
    task = me.build_task("mqar", preset="paper")
    batch = task.sample(200, "test")
    assert (task.vocab_size, batch.tokens.shape) == (8192, (200, 512))
    keys, values = batch.tokens[:, 0:128:2], batch.tokens[:, 1:128:2]
    assert (int(keys.min()) >= 1, int(keys.max()) <= 4095) == (True, True)
    assert (int(values.min()) >= 4096, int(values.max()) <= 8191) == (True, True)
    assert all(len(set(row.tolist())) == 64 for part in (keys, values) for row in part)
    assert torch.equal(batch.predict_at, batch.predict_at.sort(1).values)
    assert all(row.tolist() != sorted(row.tolist()) for row in batch.asked["key"])
    cells = [(64, 4), (128, 8), (256, 16), (512, 64)]
    made = [mqar(**MQAR.presets[f"paper_{length}"]).options for length, _ in cells]
    assert [(o.length, o.pairs) for o in made] == cells


def test_one_pair_leaves_nothing_to_chance() -> None:
    batch = mqar(length=4, pairs=1, vocab=4).sample(1)  # one key, two values
    value = int(batch.answers[0])
    assert value in (2, 3)
    assert batch.tokens.tolist() == [[1, value, 1, 0]]
    places = {role: at.tolist() for role, at in batch.roles.items()}
    assert places == {"key": [0], "value": [1], "next_key": [2], "old_value": [-1], "query": [2]}
    assert batch.predict_at.tolist() == [[2]]
    assert batch.facts["gap"].tolist() == [1]


def test_a_key_of_two_tokens_that_is_written_twice() -> None:
    # One key of the tokens 1 and 2 in some order: a value that is forgotten, the one that counts, the question.
    task = mqar(length=9, pairs=1, vocab=6, key_tokens=2, reassign=1)
    for batch in (task.sample(20), task.reference(20, "train").batch()):
        for row in batch.tokens.tolist():
            a, b, old, a2, b2, value, a3, b3, blank = row
            assert (a, b) == (a2, b2) == (a3, b3)
            assert {a, b} <= {1, 2}
            assert {old, value} <= {3, 4, 5}
            assert old != value
            assert blank == 0
        assert batch.answers.tolist() == batch.tokens[:, 5].tolist()
        places = {role: at[0].tolist() for role, at in batch.roles.items()}
        assert places == {"key": [3, 4], "value": 5, "next_key": 6, "old_value": 2, "query": [6, 7]}
        assert batch.predict_at[0].tolist() == [7]


def test_key_and_value_in_one_token() -> None:
    # 16 tokens: blank, 3 keys, 3 values, 9 combinations.
    task = mqar(length=6, pairs=2, vocab=16, merged=True)
    names = [task.symbol(token) for token in range(16)]
    assert names[:8] == ["_", "k0", "k1", "k2", "v0", "v1", "v2", "k0v0"]
    assert names[-1] == "k2v2"
    for batch in (task.sample(50), task.reference(50, "train").batch()):
        for i in range(50):
            for j in range(2):
                text = [names[token] for token in batch.tokens[i].tolist()]
                key, value = int(batch.asked["key"][i, j]), int(batch.asked["value"][i, j])
                assert key == value < 2
                assert text[key] == text[int(batch.predict_at[i, j])] + names[int(batch.targets[i, j])]
        changed = task.corrupt(batch).tokens
        before, after = (
            tokens.gather(1, batch.roles["key"][:, None])[:, 0].tolist() for tokens in (batch.tokens, changed)
        )
        assert all(names[a][2:] == names[b][2:] and names[a] != names[b] for a, b in zip(before, after, strict=True))
    with pytest.raises(UserError, match="corruption of mqar 'value'"):
        task.corrupt(task.sample(1), kind="value")


def test_swapped_values_make_another_answer_right() -> None:
    task = mqar(length=20, pairs=3)
    batch = task.about(task.sample(30), torch.arange(30) % 3)
    other = task.corrupt(batch, kind="swap")
    assert other.counterfactual is not None
    assert torch.equal(other.tokens.gather(1, batch.roles["value"][:, None])[:, 0], other.counterfactual)
    assert ((batch.tokens != other.tokens).sum(1) == 2).all()


def test_the_best_guess_is_the_pair_that_is_asked_there_most() -> None:
    task = mqar()
    batch = task.sample(5000, "dev", 3)
    first = (batch.asked["key"][:, 0] == 0).double().mean()  # the first question tends to be about the first pair
    assert batch.chance is not None
    assert float(batch.chance[0, 0]) == pytest.approx(float(first), abs=0.03)
    assert ((batch.chance >= 0.25) & (batch.chance < 0.4)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 15, "pairs": 4}, "length=15 has too few slots for questions; it must be at least 16"),
        ({"merged": True, "key_tokens": 2}, "cannot be combined with key_tokens=2"),
        ({"reassign": 5}, "reassign=5 cannot exceed pairs=4"),
        ({"vocab": 8}, "4 distinct keys cannot be drawn from the 3 that vocab=8 has"),
        ({"fillers": "some"}, "fillers"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        mqar(**options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("preset", "wanted"), [("paper_64", 200_000), ("paper_512", 50_000)])
def test_documents_per_second(preset: str, wanted: int) -> None:
    task, n = build_task("mqar", preset=preset), wanted // 10
    task.corpus(10)
    seconds = []
    for _ in range(3):
        began = time.process_time()
        task.corpus(n)
        seconds.append(time.process_time() - began)
    assert n / min(seconds) > wanted
