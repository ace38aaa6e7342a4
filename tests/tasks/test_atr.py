from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mecheval import rng
from mecheval.config import RunConfig, run_config
from mecheval.errors import UserError
from mecheval.tasks import ATR, Corpus, build_task
from mecheval.tasks.atr import eligible_queries
from mecheval.tasks.atr_kernel import KINDS, draw_query, find_queries
from mecheval.tasks.holdout import holdout
from mecheval.tasks.pcfg import Grammar
from mecheval.types import Split
from tasks.statistics import follows, length_distribution, same_distribution

ENOUGH = 1e-3  # seeds are fixed: a p-value below this would mean a real difference
ALL = holdout(0, 0, "train", 9, 9)


def atr(**options: Any) -> ATR:
    task = build_task("atr", **options)
    assert isinstance(task, ATR)
    return task


def by_kernel(
    kind: str, symbols: list[int], parents: list[int], root_sibling: bool = False
) -> list[tuple[int, int, int]]:
    n = len(symbols)
    seen, scratch = np.zeros(99, np.int64), np.empty((4, n), np.int64)
    answer, group = scratch[2], scratch[3]
    count = find_queries(
        KINDS.index(kind), n, np.array(symbols), np.array(parents), *ALL, root_sibling, False, seen, 1, *scratch
    )
    found = [(int(group[i]), i, int(answer[i])) for i in range(n) if answer[i] >= 0]
    assert count == len(found)
    return found


#                a  b  c  a  d   c heads a b; d heads c a. The first a is not the rightmost a.
RIGHT = ([0, 1, 2, 0, 3], [2, 2, 4, 4, -1])
#                d  c  a  b  a   the same tree with heads on the left
LEFT = ([3, 2, 0, 1, 0], [-1, 0, 1, 1, 0])
#                x  a  p  a  r   x's rightmost sibling is an a that is not the rightmost a
SHADOWED = ([0, 1, 2, 1, 3], [2, 2, 4, 4, -1])
#                a  b  c         single children all the way: c heads b heads a
CHAIN = ([0, 1, 2], [1, 2, -1])
SAME = ([0, 0, 0], [2, 2, -1])  # one symbol only: its rightmost occurrence is the root


@pytest.mark.parametrize(
    ("tree", "kind", "expected"),  # (group, query, answer)
    [
        (RIGHT, "parent", {(2, 1, 2), (4, 2, 4), (4, 3, 4)}),
        (RIGHT, "sibling", {(2, 1, 1), (4, 2, 3), (4, 3, 3)}),  # b and the last a are their own answers
        (RIGHT, "child", {(2, 2, 1), (4, 4, 3)}),
        (RIGHT, "grandparent", {(4, 1, 4)}),
        (LEFT, "parent", {(0, 1, 0), (1, 3, 1), (0, 4, 0)}),
        (LEFT, "sibling", {(1, 3, 3), (0, 1, 4), (0, 4, 4)}),
        (LEFT, "child", {(0, 0, 4), (1, 1, 3)}),
        (LEFT, "grandparent", {(0, 3, 0)}),
        (SHADOWED, "sibling", {(4, 2, 3), (4, 3, 3)}),
        (SHADOWED, "parent", {(2, 0, 2), (4, 2, 4), (4, 3, 4)}),
        (CHAIN, "parent", {(1, 0, 1), (2, 1, 2)}),
        (CHAIN, "sibling", {(1, 0, 0), (2, 1, 1)}),
        (CHAIN, "child", {(1, 1, 0), (2, 2, 1)}),
        (CHAIN, "grandparent", {(2, 0, 2)}),
        (SAME, "parent", set()),
        (SAME, "sibling", set()),
        (SAME, "child", {(2, 2, 1)}),
    ],
)
def test_queries_of_hand_worked_trees(
    tree: tuple[list[int], list[int]], kind: str, expected: set[tuple[int, int, int]]
) -> None:
    assert set(eligible_queries(kind, *tree, ALL)) == expected
    assert set(by_kernel(kind, *tree)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_reference_and_kernel_find_the_same_queries_in_random_trees(kind: str) -> None:
    draw = random.Random(0)
    for _ in range(300):
        n = draw.randint(1, 12)
        parents = [draw.randint(i + 1, n - 1) for i in range(n - 1)] + [-1]
        symbols = [draw.randrange(5) for _ in range(n)]
        if draw.random() < 0.5:
            parents = [-1 if p < 0 else n - 1 - p for p in parents[::-1]]
        assert sorted(by_kernel(kind, symbols, parents)) == sorted(eligible_queries(kind, symbols, parents, ALL))


def test_a_query_is_drawn_by_parent_first() -> None:
    # Parents 4 (two eligible children) and 2 (one): each parent gets 1/2, so the queries get 1/2, 1/4, 1/4.
    answer, group = np.array([-1, 2, 4, 4, -1]), np.array([0, 2, 4, 4, 0])
    state = rng.generator(rng.key(0, "train"))
    drawn = [draw_query(state, 5, answer, group, np.empty(5, np.int64)) for _ in range(20_000)]
    assert follows(drawn, np.array([0, 1 / 2, 1 / 4, 1 / 4])) > ENOUGH
    assert follows(drawn, np.array([0, 1 / 3, 1 / 3, 1 / 3])) < 1e-9  # the check tells the two apart


def test_a_document_of_a_deterministic_grammar_is_exact() -> None:
    grammar = {
        "terminals": ["a", "b", "c", "d"],
        "start": ["S"],
        "nonterminals": {
            "S": {"heads": {"d": 1}, "rules": [["X", "a"]]},
            "X": {"heads": {"c": 1}, "rules": [["a", "b"]]},
        },
    }
    for head, body, tree in (("right", "abcad", [3, 3, 5, 5, -1]), ("left", "dcaba", [-1, 1, 2, 2, 1])):
        task = atr(grammar={**grammar, "head": head})
        for corpus in (task.corpus(200), task.reference(200, "train")):
            batch = corpus.batch()
            assert batch.parents is not None
            asked = set()
            for i in range(200):
                words = [task.symbol(t) for t in batch.tokens[i].tolist()]
                assert words[:7] == ["BOS", *body, "EOS"]
                assert batch.parents[i].tolist() == [-1, *tree, -1, -1, -1, -1]
                place = {role: int(at[i]) for role, at in batch.roles.items()}
                assert place["next_key"] == place["value"] + 1
                assert (place["bos"], place["divider"], place["query"]) == (0, 6, 7)
                asked.add((words[7], words[8], place["key"], place["value"]))
            if head == "right":
                assert asked == {("b", "c", 2, 3), ("c", "d", 3, 5), ("a", "d", 4, 5)}
            else:
                assert asked == {("b", "c", 4, 2), ("c", "d", 2, 1), ("a", "d", 5, 1)}


def features(task: ATR, corpus: Corpus) -> dict[str, np.ndarray]:
    assert corpus.parents is not None
    assert corpus.rules is not None
    batch = corpus.batch()
    inner = corpus.rules >= 0
    owner = np.concatenate([[x] * len(task.grammar.rules[name]) for x, name in enumerate(task.grammar.nonterminals)])
    heads = owner[corpus.rules[inner]] * 1000 + corpus.tokens[inner]
    return {
        "rules": corpus.rules[inner],
        "heads": heads,
        "lengths": batch.lengths.numpy(),
        "queries": batch.targets.numpy()[:, 0] * 1000
        + batch.tokens.gather(1, batch.roles["query"][:, None]).numpy()[:, 0],
        "distances": batch.facts["distance"].numpy(),
        "keys": batch.roles["key"].numpy(),
        "depths": batch.facts["depth"].numpy(),
        "eligible": batch.facts["eligible"].numpy(),
        "kinds": batch.tokens.gather(1, batch.predict_at[:, :1]).numpy()[:, 0],
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head": "left", "query": "sibling"},
        {"query": "child", "max_length": 12},
        {"query": "grandparent", "terminals": 6},
        {"query": "parent,sibling,child,grandparent", "queries": 2},
        {"holdout": 0.3, "nonterminals": 10},
        {"query": "sibling", "root_sibling": True},
        {"query": "child", "any_child": True, "holdout": 0.3},
        {
            "grammar": {
                "terminals": 5,
                "nonterminals": {"S": {"rules": [["S", "t0", "S"], ["t1", "S"], ["t2"], []]}},
            }
        },
    ],
    ids=str,
)
def test_fast_and_reference_have_one_distribution(options: dict[str, object]) -> None:
    task = atr(**options)
    split: Split = "test" if "holdout" in options else "train"
    fast, slow = (
        features(task, task.corpus(12_000, split, seed=1)),
        features(task, task.reference(4_000, split, seed=2)),
    )
    for name in fast:
        assert same_distribution(fast[name], slow[name]) > ENOUGH, name


def test_lengths_follow_the_exact_distribution() -> None:
    # A child query can always be asked (of the root), so documents are rejected for their length alone.
    task = atr(query="child", max_length=60)
    exact = length_distribution(task.grammar, 60)
    exact[:3] = 0
    body = task.sample(60_000).roles["divider"].numpy() - 1
    assert follows(body, exact / exact.sum()) > ENOUGH


def test_siblings_as_published() -> None:
    """The root asks about itself in 33 % of the published queries, and 70 % of the answers are the query itself."""
    assert set(eligible_queries("sibling", *RIGHT, ALL, root_sibling=True)) == {
        (2, 1, 1),
        (4, 2, 3),
        (4, 3, 3),
        (5, 4, 4),
    }
    assert sorted(by_kernel("sibling", *RIGHT, root_sibling=True))[-1] == (5, 4, 4)
    for task, root, itself in ((atr(query="sibling", root_sibling=True), 0.33, 0.70), (atr(query="sibling"), 0, 0.55)):
        roles = task.sample(20_000).roles
        assert float((roles["key"] == roles["divider"] - 1).double().mean()) == pytest.approx(root, abs=0.01)
        assert float((roles["key"] == roles["value"]).double().mean()) == pytest.approx(itself, abs=0.01)


def test_many_terminals_as_published() -> None:
    """Without the terminal factor, documents are short: the mean of the published ones is 4.1, and grammars differ."""
    body = [
        float((atr(preset="paper_vocab", grammar_seed=seed).sample(1000).roles["divider"] - 1).double().mean())
        for seed in (0, 4)
    ]
    assert body == pytest.approx([4.1, 4.1], abs=0.3)
    assert body[0] < 4.1 < body[1]
    factor = atr(preset="paper_vocab", terminal_weight=20.0).sample(1000).roles["divider"] - 1
    assert float(factor.double().mean()) > 8


def test_any_child_as_published() -> None:
    assert set(eligible_queries("child", *RIGHT, ALL, any_child=True)) == {(2, 2, 0), (2, 2, 1), (4, 4, 2), (4, 4, 3)}
    task = atr(query="child", any_child=True, grammar=ONE_RULE)
    value = task.sample(6000).roles["value"].numpy() - 1
    assert follows(value, np.array([1 / 3, 1 / 3, 1 / 3])) > ENOUGH


def test_options_that_came_later_do_not_change_ids() -> None:
    plain = run_config("atr", preset="paper")
    assert plain.id == "9b6dd95a9197" == run_config("atr", preset="paper", any_child=False).id
    other = run_config("atr", preset="paper", root_sibling=True)
    assert other.id != plain.id
    assert RunConfig.read(other.to_dict()) == other


@pytest.mark.parametrize("preset", ["paper", "paper_long", "paper_vocab", "laptop"])
def test_presets_build_and_sample(preset: str) -> None:
    task = atr(preset=preset)
    batch = task.sample(64, "test")
    assert int(batch.tokens.max()) < task.vocab_size
    assert int(batch.lengths.max()) <= task.max_tokens
    expected = {"paper": (20, 5), "paper_long": (20, 10), "paper_vocab": (8192, 5), "laptop": (20, 5)}[preset]
    assert (task.options.terminals, task.options.max_rhs) == expected


def test_held_out_combinations_are_asked_in_test_only() -> None:
    task = atr(holdout=0.2)
    asked = {}
    for split in ("train", "dev", "test"):
        batch = task.sample(30_000, split)
        query = batch.tokens.gather(1, batch.roles["query"][:, None])[:, 0]
        asked[split] = set(zip(query.tolist(), batch.answers.tolist(), strict=True))
    assert not asked["test"] & (asked["train"] | asked["dev"])
    sides = [holdout(0.2, 0, "test", 20, 20).allows(q, a) for q in range(20) for a in range(20)]
    assert sum(sides) == 80


def test_query_types_have_tokens_and_are_equally_frequent() -> None:
    task = atr(query=["sibling", "parent"])
    batch = task.sample(20_000)
    assert task.vocab_size == 23 + len(KINDS)
    kind = batch.tokens.gather(1, batch.predict_at)[:, 0]
    assert follows(kind - 23, np.array([0.5, 0.5])) > ENOUGH
    assert (batch.predict_at[:, 0] == batch.roles["query"] + 1).all()
    assert {task.symbol(t) for t in set(kind.tolist())} == {"?parent", "?sibling"}


def test_several_queries_are_different_questions() -> None:
    task = atr(query="parent", queries=3)
    batch = task.sample(500)
    asked = batch.tokens.gather(1, batch.predict_at)
    assert all(len(set(row)) == 3 for row in asked.tolist())


def test_corruption_takes_any_other_terminal() -> None:
    task = atr(terminals=4)
    batch = task.sample(6000, "test")
    other = task.corrupt(batch, seed=3)
    key = batch.roles["key"][:, None]
    assert ((batch.tokens != other.tokens).sum(1) == 1).all()
    old, new = batch.tokens.gather(1, key)[:, 0], other.tokens.gather(1, key)[:, 0]
    assert follows((new - old) % 4, np.array([0, 1 / 3, 1 / 3, 1 / 3])) > ENOUGH


ONE_RULE = {"terminals": 3, "nonterminals": {"S": {"rules": [["t0", "t1", "t2"]]}}}
ENDLESS = {"terminals": 3, "nonterminals": {"S": {"rules": [["S"]]}}}
RARE = {
    "terminals": 3,
    "nonterminals": {"S": {"rules": [{"weight": 1, "children": ["t0", "t1"]}, {"weight": 1e9, "children": []}]}},
}
MUTE = {"terminals": 1, "nonterminals": {"S": {"rules": [["t0", "t0"]]}}}


@pytest.mark.parametrize(
    ("grammar", "options", "message"),
    [
        (ONE_RULE, {"max_length": 3}, "only generates documents of 4 or more terminals, but max_length=3"),
        (ONE_RULE, {"min_length": 5}, "only generates documents of at most 4 terminals, but min_length=5"),
        (ENDLESS, {}, "no derivation of this grammar ends"),
        (RARE, {}, "gave up after 10000 drafts of one document: 10000 were shorter than min_length=3"),
        (MUTE, {}, "10000 did not allow 1 parent question"),
    ],
)
def test_hopeless_grammars_are_explained(grammar: object, options: dict[str, object], message: str) -> None:
    for draw in ("corpus", "reference"):
        with pytest.raises(UserError) as error:
            getattr(atr(grammar=grammar, **options), draw)(5, "train")
        assert message in str(error.value)


def test_the_papers_grammar_is_drawn_from_its_seed() -> None:
    assert atr(grammar_seed=7).grammar == Grammar.draw(7)
    assert (
        atr(grammar=Grammar.draw(7).to_dict()).sample(20).tokens.tolist()
        == atr(grammar_seed=7).sample(20).tokens.tolist()
    )
