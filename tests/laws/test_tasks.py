"""Laws of every task, over random options."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from mecheval.errors import UserError
from mecheval.tasks import ATR, TASKS, Corpus, Task, build_task
from mecheval.types import SPLITS

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 2**64 - 1)


@st.composite
def ar_tasks(draw: st.DrawFn) -> Task:
    pairs = draw(st.integers(1, 12))
    return build_task(
        "ar",
        pairs=pairs,
        keys=pairs + draw(st.integers(1, 40)),
        values=pairs + draw(st.integers(1, 40)),
        queries=draw(st.integers(1, pairs)),
        query=draw(st.sampled_from(["key", "value"])),
    )


@st.composite
def atr_tasks(draw: st.DrawFn, kinds: tuple[str, ...] = ("parent", "sibling", "child", "grandparent")) -> ATR:
    task = build_task(
        "atr",
        terminals=draw(st.integers(4, 60)),
        nonterminals=draw(st.integers(10, 60)),
        max_depth=draw(st.integers(3, 12)),
        max_rhs=draw(st.integers(3, 8)),
        max_rules=draw(st.integers(2, 6)),
        head=draw(st.sampled_from(["left", "right"])),
        terminal_weight=draw(st.floats(0, 30)),
        grammar_seed=draw(SEEDS),
        query=draw(st.lists(st.sampled_from(kinds), min_size=1, unique=True)),
        max_length=draw(st.integers(8, 200)),
    )
    assert isinstance(task, ATR)
    return task


def documents(task: Task, corpus: Corpus) -> Iterator[tuple[list[int], dict[str, int], list[int]]]:
    """(tokens, roles, positions of predictions) of each document."""
    batch = corpus.batch()
    for i in range(len(batch)):
        tokens = batch.tokens[i, : int(batch.lengths[i])].tolist()
        yield tokens, {role: int(at[i]) for role, at in batch.roles.items()}, batch.predict_at[i].tolist()


def check_frame(task: Task, corpus: Corpus) -> None:
    batch = corpus.batch()
    for i, (tokens, role, predict_at) in enumerate(documents(task, corpus)):
        assert min(tokens) > 0
        assert max(tokens) < task.vocab_size
        assert len(tokens) <= task.max_tokens
        assert tokens[0] == 1
        assert tokens[-1] == 2
        assert role["bos"] == 0
        assert tokens[role["divider"]] == 2
        assert tokens.count(1) == 1
        assert tokens.count(2) == 2
        assert role["query"] == role["divider"] + 1
        assert 1 <= role["key"] < role["divider"]
        assert 1 <= role["value"] < role["divider"]
        assert role["next_key"] <= role["divider"]
        assert tokens[role["query"]] == tokens[role["key"]]
        assert int(batch.answers[i]) == tokens[role["value"]]
        assert [tokens[p + 1] for p in predict_at] == batch.targets[i].tolist()
        assert int(batch.targets[i, 0]) == int(batch.answers[i])
        assert int(batch.facts["distance"][i]) == role["value"] - role["key"]
    assert not batch.tokens[torch.arange(batch.tokens.shape[1]) >= batch.lengths[:, None]].any()


def check_corruption(task: Task, corpus: Corpus, seed: int) -> None:
    batch = corpus.batch()
    other = task.corrupt(batch, seed)
    changed = batch.tokens != other.tokens
    assert (changed.sum(1) == 1).all()
    assert torch.equal(changed.int().argmax(1), batch.roles["key"])
    assert torch.equal(other.answers, batch.answers)


@SETTINGS
@given(task=ar_tasks(), seed=SEEDS, split=st.sampled_from(SPLITS))
def test_ar_documents_are_what_their_roles_say(task: Task, seed: int, split: str) -> None:
    corpus = task.corpus(16, split, seed)
    check_frame(task, corpus)
    check_corruption(task, corpus, seed)
    options: Any = task.options
    for tokens, role, _ in documents(task, corpus):
        body = tokens[1 : role["divider"]]
        keys, values = body[::2], body[1::2]
        assert len(keys) == options.pairs
        assert len(set(keys)) == len(keys)
        assert len(set(values)) == len(values)
        assert max(keys) < 3 + options.keys <= min(values)
        assert abs(role["key"] - role["value"]) == 1
        assert (role["key"] - role["value"] == 1) == (options.query == "value")
        assert role["next_key"] == max(role["key"], role["value"]) + 1


def check_derivation(task: ATR, corpus: Corpus) -> None:
    """Every tree is one that the grammar derives, with parents and rules where they belong."""
    assert corpus.parents is not None
    assert corpus.rules is not None
    numbered = [(name, rule) for name in task.grammar.nonterminals for rule in task.grammar.rules[name]]
    for i in range(len(corpus)):
        span = slice(corpus.starts[i], corpus.starts[i + 1])
        tokens, parents, rules = (
            corpus.tokens[span],
            corpus.parents[span].tolist(),
            corpus.rules[span].tolist(),
        )
        n = int(corpus.roles[i, 0, 4]) - 1
        assert task.options.min_length <= n <= task.options.max_length
        positions = range(1, n + 1)
        roots = [p for p in positions if parents[p] < 0]
        assert roots == ([n] if task.grammar.head == "right" else [1])
        assert sum(parents[p] >= 0 for p in positions) == n - 1
        assert {*parents[n + 1 :], *rules[n + 1 :], parents[0], rules[0]} == {-1}
        if rules[roots[0]] >= 0:
            assert numbered[rules[roots[0]]][0] in task.grammar.start
        for p in positions:
            children = [c for c in positions if parents[c] == p]
            if rules[p] < 0:
                assert not children
                continue
            name, rule = numbered[rules[p]]
            assert task.grammar.heads[name][tokens[p] - 3] > 0
            assert all((c < p) == (task.grammar.head == "right") for c in children)
            written = [task.symbol(int(tokens[c])) if rules[c] < 0 else numbered[rules[c]][0] for c in children]
            assert tuple(written) == rule.children


@SETTINGS
@given(task=atr_tasks(), seed=SEEDS, split=st.sampled_from(SPLITS))
def test_atr_documents_are_derivations_asked_rightly(task: ATR, seed: int, split: str) -> None:
    try:
        corpus = task.corpus(8, split, seed)
    except UserError:  # some random grammars have nothing to ask, e.g. no grandparents
        reject()
    check_frame(task, corpus)
    check_corruption(task, corpus, seed)
    check_derivation(task, corpus)
    parents = corpus.batch().parents
    assert parents is not None
    for i, (tokens, role, [at]) in enumerate(documents(task, corpus)):
        kind = task.options.query[0] if len(task.options.query) == 1 else task.symbol(tokens[at])[1:]
        up, key, value = parents[i].tolist(), role["key"], role["value"]
        assert tokens[key] not in tokens[key + 1 : role["divider"]]
        assert role["next_key"] == value + 1
        if kind == "parent":
            assert up[key] == value
        elif kind == "grandparent":
            assert up[up[key]] == value
        elif kind == "child":
            assert up[value] == key
            assert key not in up[value + 1 :]
        else:
            assert up[value] == up[key]
            assert up[key] not in up[value + 1 :]
            assert tokens[value] not in tokens[value + 1 : role["divider"]]


def digest(task: Task, n: int = 200, split: str = "train", seed: int = 5) -> str:
    corpus = task.corpus(n, split, seed)
    flat = [
        corpus.tokens,
        corpus.roles[:, 0],
        corpus.predict_at,
        corpus.targets,
        corpus.facts,
        corpus.parents,
        corpus.rules,
        corpus.spans,
    ]
    data = b"".join(np.ascontiguousarray(a, dtype="<i8").tobytes() for a in flat if a is not None)
    return hashlib.sha256(data + task.corrupt(corpus.batch(), seed).tokens.numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("ar", {}, "b69ea0abc43e9a9a"),
        ("ar", {"pairs": 4, "queries": 2, "query": "value", "holdout": 0.2}, "49630f31451f061a"),
        ("atr", {}, "c78ec86431254491"),
        ("atr", {"head": "left", "query": "parent,grandparent", "holdout": 0.2}, "3f3749e26c5687cb"),
        ("copy", {}, "ec89566a1e60f39d"),
        ("induction", {}, "810d1b00ac17729f"),
        ("joint", {}, "d9f1414388e47991"),
        ("khop", {}, "c9376f1554708112"),
        ("mqar", {}, "1812ec5cbaa1b879"),
        ("track", {}, "a6b0add2880e1399"),
        ("words", {}, "552f3c9ec3b2157d"),
    ],
)
def test_a_seed_gives_the_same_bytes_on_every_machine(name: str, options: dict[str, Any], expected: str) -> None:
    assert digest(build_task(name, **options)) == expected


@pytest.mark.parametrize("name", TASKS.names())
def test_documents_do_not_depend_on_who_draws_them(name: str) -> None:
    task = build_task(name)
    whole = task.corpus(1000, "train", seed=9).batch()
    for first, last in ((0, 1), (1, 400), (400, 1000)):
        part = build_task(name).corpus(last - first, "train", seed=9, start=first).batch()
        width = part.tokens.shape[1]
        assert torch.equal(part.tokens, whole.tokens[first:last, :width])
        assert torch.equal(part.index, torch.arange(first, last))
        assert all(torch.equal(part.roles[r], whole.roles[r][first:last]) for r in part.roles)


def test_another_process_draws_the_same_documents() -> None:
    program = """
import sys, hashlib, mecheval as me
for name in sys.argv[1:]:
    drawn = me.build_task(name).corpus(50, "dev", 3).tokens
    print(hashlib.sha256(drawn.tobytes()).hexdigest())
"""
    words = [sys.executable, "-c", program, *TASKS.names()]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    here = [build_task(name).corpus(50, "dev", 3).tokens for name in TASKS.names()]
    assert printed.split() == [hashlib.sha256(tokens.tobytes()).hexdigest() for tokens in here]


@pytest.mark.parametrize("name", TASKS.names())
def test_streams_go_on_without_repeating(name: str) -> None:
    task = build_task(name)
    stream = task.stream(8, "train", seed=1)
    batches = [next(stream) for _ in range(3)]
    assert [b.index.tolist() for b in batches] == [list(range(8 * i, 8 * i + 8)) for i in range(3)]
    resumed = next(task.stream(8, "train", seed=1, start=16))
    assert torch.equal(resumed.tokens, batches[2].tokens)


@pytest.mark.parametrize("name", TASKS.names())
def test_splits_and_seeds_are_disjoint_streams(name: str) -> None:
    task = build_task(name)
    drawn = [task.corpus(200, split, seed) for split in SPLITS for seed in (0, 1)]
    texts = [tuple(text) for corpus in drawn for text in np.split(corpus.tokens, corpus.starts[1:-1])]
    long = [text for text in texts if len(text) >= 24]  # short trees repeat by chance
    assert len(set(long)) == len(long) > 200


@pytest.mark.parametrize("name", TASKS.names())
def test_sizes_must_be_positive(name: str) -> None:
    bad: list[tuple[Any, ...]] = [(0,), (-3,), (3, "train", 0, -1)]
    for arguments in bad:
        with pytest.raises(UserError, match="must be positive"):
            build_task(name).corpus(*arguments)
    with pytest.raises(UserError, match="unknown split 'eval'"):
        build_task(name).corpus(3, "eval")
