"""Laws of the documents of every task, over random options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from mecheval.errors import UserError
from mecheval.tasks import TASKS, Task, build_task
from mecheval.types import NOWHERE, SPLITS, Batch, has_role, last_of
from tasks.statistics import same_distribution

SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**64 - 1)
small = st.integers(1, 5)
OPTIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "ar": st.fixed_dictionaries({
        "pairs": small, "keys": st.integers(6, 20), "values": st.integers(6, 20), "queries": st.integers(1, 3),
        "query": st.sampled_from(["key", "value"]),
    }),
    "atr": st.fixed_dictionaries({
        "terminals": st.integers(4, 40), "nonterminals": st.integers(10, 40), "max_depth": st.integers(3, 8),
        "head": st.sampled_from(["left", "right"]), "query": st.sampled_from(["parent", "sibling", "child"]),
        "max_length": st.integers(8, 60),
    }),
    "mqar": st.fixed_dictionaries({
        "length": st.integers(10, 60), "pairs": small, "vocab": st.integers(100, 200), "power": st.floats(0, 2),
        "fillers": st.sampled_from(["blank", "random", "distinct"]), "key_tokens": st.integers(1, 2),
        "reassign": st.integers(0, 3), "merged": st.booleans(),
    }),
    "track": st.fixed_dictionaries({
        "group": st.sampled_from(["parity", "S3", "S5"]), "length": small, "labels": st.sampled_from(["every", "end"]),
        "test_length": st.one_of(st.none(), st.integers(3, 12)),
    }),
    "joint": st.fixed_dictionaries({
        "contexts": small, "keys": small, "queries": small, "context_symbols": st.integers(6, 20),
        "key_symbols": st.integers(6, 20), "value_symbols": st.integers(26, 40),
    }),
    "induction": st.fixed_dictionaries({"length": st.integers(2, 30), "symbols": st.integers(2, 20)}),
    "copy": st.fixed_dictionaries({"length": st.integers(1, 30), "content": small, "symbols": st.integers(2, 9)}),
    "khop": st.fixed_dictionaries({
        "nodes": st.integers(2, 8), "hops": st.integers(1, 4), "fewest": st.integers(1, 2), "queries": small,
        "symbols": st.integers(30, 60), "shortest": st.integers(1, 2), "longest": st.integers(1, 3),
    }),
    "words": st.fixed_dictionaries({
        "statements": small, "distractors": st.integers(0, 4), "ask": st.sampled_from(["thing", "person"]),
    }),
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "ar": {"pairs": 3, "keys": 6, "values": 6, "queries": 2},
    "atr": {"terminals": 6, "nonterminals": 10, "max_depth": 3, "max_length": 16},
    "mqar": {"length": 30, "pairs": 3, "vocab": 24, "fillers": "distinct", "key_tokens": 2, "reassign": 1},
    "track": {"group": "S3", "length": 4},
    "joint": {"contexts": 2, "keys": 3, "context_symbols": 3, "key_symbols": 4, "value_symbols": 8, "queries": 2},
    "induction": {"length": 6, "symbols": 3},
    "copy": {"length": 6, "content": 3, "symbols": 3},
    "khop": {"nodes": 4, "hops": 3, "symbols": 6, "shortest": 1, "longest": 3, "queries": 2},
    "words": {"statements": 3, "distractors": 2},
}
"""Options with which few documents show the whole distribution."""


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    name = draw(st.sampled_from(sorted(OPTIONS)))
    try:
        return build_task(name, **draw(OPTIONS[name]))
    except UserError:  # options that do not fit together
        reject()


def test_there_are_options_for_every_task() -> None:
    assert set(OPTIONS) == set(SMALL) == set(TASKS.names())


def spans(batch: Batch, role: str) -> list[list[list[int]]]:
    """The positions of a role, by document and question."""
    where = batch.asked[role]
    listed = where.reshape(*where.shape[:2], -1).tolist()
    return [[[place for place in places if place != NOWHERE] for places in row] for row in listed]


@SETTINGS
@given(task=tasks(), seed=SEEDS, split=st.sampled_from(SPLITS), fast=st.booleans())
def test_documents_are_what_their_roles_say(task: Task, seed: int, split: Any, fast: bool) -> None:
    corpus = task.corpus(6, split, seed) if fast else task.reference(6, split, seed)
    batch, meaning = corpus.batch(), task.meaning
    assert int(batch.tokens.max()) < task.vocab_size
    assert int(batch.tokens.min()) >= 0
    assert int(batch.lengths.max()) <= task.max_tokens
    assert tuple(batch.asked) == task.roles
    assert tuple(batch.facts) == task.facts
    where = {role: spans(batch, role) for role in task.roles}
    for row in range(len(batch)):
        text = batch.tokens[row, : int(batch.lengths[row])].tolist()
        for j, (at, answer) in enumerate(zip(batch.predict_at[row].tolist(), batch.targets[row].tolist(), strict=True)):
            there = {role: where[role][row][j] for role in task.roles}
            assert there[meaning.query][-1] == at
            assert there[meaning.key]
            for places in there.values():
                assert places == list(range(places[0], places[0] + len(places))) if places else True
                assert all(0 <= place <= at < len(text) for place in places)
            if meaning.value is not None and not getattr(task.options, "merged", False):
                assert text[there[meaning.value][0]] == answer
                asked, key = ([text[place] for place in there[role]] for role in (meaning.query, meaning.key))
                assert any(asked[i : i + len(key)] == key for i in range(len(asked)))
    chance = task.chance(batch)
    assert chance.shape == batch.targets.shape
    assert chance.dtype == torch.float64
    assert ((chance > 0) & (chance <= 1)).all()


@SETTINGS
@given(task=tasks(), seed=SEEDS)
def test_a_corruption_changes_its_role_and_nothing_else(task: Task, seed: int) -> None:
    batch = task.sample(6, "test", seed)
    question = torch.arange(6) % batch.targets.shape[1]
    batch = task.about(batch, question)
    for kind in (kind for kind in task.corruptions if kind != "swap"):
        role = batch.roles[task.meaning.role(kind)].reshape(6, -1)
        changed = batch.tokens != task.corrupt(batch, seed, kind).tokens
        inside = torch.zeros_like(changed).scatter(1, role.clamp(min=0), True)
        assert not (changed & ~inside).any()
        assert changed.any(1).all()


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_the_fast_sampler_has_the_distribution_of_the_readable_one(name: str) -> None:
    task, n = build_task(name, **SMALL[name]), 1500
    fast, slow = (corpus.batch() for corpus in (task.corpus(n, "train", 3), task.reference(n, "train", 4)))
    numbers: dict[str, tuple[Any, Any]] = {fact: (fast.facts[fact], slow.facts[fact]) for fact in task.facts}
    for role in task.roles:
        a, b = fast.roles[role], slow.roles[role]
        numbers[role] = last_of(a), last_of(b)
        numbers[f"tokens of {role}"] = (
            batch.tokens.gather(1, last_of(batch.roles[role]).clamp(min=0)[:, None])[:, 0] for batch in (fast, slow)
        )  # type: ignore[assignment]
        numbers[f"length of {role}"] = tuple((at.reshape(n, -1) != NOWHERE).sum(1) for at in (a, b))  # type: ignore[assignment]
    numbers["answers"] = fast.targets[:, -1], slow.targets[:, -1]
    numbers["places"] = fast.predict_at[:, -1], slow.predict_at[:, -1]
    numbers["tokens"] = fast.tokens.reshape(-1)[::7], slow.tokens.reshape(-1)[::7]
    for what, (a, b) in numbers.items():
        assert same_distribution(a, b) > 1e-3, what


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_presets_are_there_and_run(name: str) -> None:
    assert {"paper", "laptop"} <= set(TASKS.get(name).presets)
    for preset in TASKS.get(name).presets:
        batch = build_task(name, preset=preset).sample(4)
        assert bool(has_role(batch.roles[batch.meaning.query]).all())
        assert np.isfinite(batch.chance.numpy()).all()  # type: ignore[union-attr]
