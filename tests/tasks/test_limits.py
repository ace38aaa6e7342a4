"""Grammars and tasks that someone wrote to hang the sampler: each has an answer, or one line, in a moment."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from mecheval.errors import UserError
from mecheval.tasks import build_task
from mecheval.tasks.lengths import expected_length, length_range, reachable
from mecheval.tasks.pcfg import Grammar
from tasks.statistics import length_distribution


def chain(size: int, times: int = 1) -> dict[str, Any]:
    """N0 -> N1 -> ... -> a, each `times` over."""
    rules = {f"N{i}": {"rules": [[f"N{i + 1}"] * times]} for i in range(size)}
    return {"terminals": ["a", "b"], "start": ["N0"], "nonterminals": {**rules, f"N{size}": {"rules": [["a"]]}}}


def one(**rules: Any) -> dict[str, Any]:
    return {"terminals": ["a", "b"], "nonterminals": {name: {"rules": listed} for name, listed in rules.items()}}


def lengths_by_rounds(grammar: Grammar) -> tuple[float, float]:
    """The plain twin of `length_range`: as many rounds over all rules as a derivation without recursion can be deep."""
    names = reachable(grammar)
    shortest: dict[str, float] = dict.fromkeys(names, math.inf)
    longest: dict[str, float] = dict.fromkeys(names, 0.0)
    for _ in range(len(names) + 1):
        before = dict(longest)
        for name in names:
            rules = [rule.children for rule in grammar.rules[name] if rule.probability > 0]
            shortest[name] = min(1 + sum(shortest.get(child, 1) for child in children) for children in rules)
            longest[name] = max(1 + sum(longest.get(child, 1) for child in children) for children in rules)
    grew = longest != before
    return min(shortest[s] for s in grammar.start), math.inf if grew else max(longest[s] for s in grammar.start)


@pytest.mark.parametrize("recursive", [False, True])
def test_lengths_are_those_of_the_plain_way(recursive: bool) -> None:
    draw = random.Random(4)
    for _ in range(50):
        names = [f"N{i}" for i in range(6)]
        rules = {}
        for i, name in enumerate(names):
            pool = ["a", "b", *(names if recursive else names[i + 1 :])]
            rules[name] = [
                {"weight": draw.choice([0, 1, 2]), "children": draw.choices(pool, k=draw.randrange(4))}
                for _ in range(3)
            ] + [{"weight": 1, "children": draw.choices(pool[:3], k=2)}]
        grammar = Grammar.from_dict(one(**rules) | {"start": draw.sample(names, 2)})
        low, high = length_range(grammar)
        assert (low, high) == lengths_by_rounds(grammar)
        if math.isfinite(high):
            exact = length_distribution(grammar, int(high))
            assert exact.sum() == pytest.approx(1)
            assert exact.nonzero()[0][0] == low
            assert exact @ range(len(exact)) == pytest.approx(expected_length(grammar))


def test_long_chains_and_doubling_take_no_time() -> None:
    assert length_range(Grammar.from_dict(chain(1999))) == (2001, 2001)
    assert expected_length(Grammar.from_dict(chain(1999))) == 2001
    doubling = Grammar.from_dict(chain(60, times=2))
    assert length_range(doubling) == (2.0**61 + 2.0**60, 2.0**61 + 2.0**60)  # less 1, which a float cannot say
    with pytest.raises(UserError, match=r"only generates documents of 3458764513820540928 or more terminals"):
        build_task("atr", grammar=chain(60, times=2))
    with pytest.raises(UserError, match="no derivation of this grammar ends"):
        build_task("atr", grammar=chain(1500, times=2))  # of 2^1500 terminals


def test_nonterminals_that_all_use_each_other() -> None:
    size = 300
    rules = {
        f"N{i}": [{"weight": 3, "children": ["a"]}, [f"N{(i + 1) % size}", f"N{7 * i % size}"]] for i in range(size)
    }
    grammar = Grammar.from_dict(one(**rules))
    assert length_range(grammar) == (2, math.inf)
    assert expected_length(grammar) == pytest.approx((2 * 0.75 + 0.25) / (1 - 2 * 0.25))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (chain(2000), "at most 2,000 nonterminals (got 2,001)"),
        (one(S=[["a", "b"]] * 100_000), "at most 10,000 rules (got 100,000)"),
        (one(S=[["a"] * 200_001]), "at most 200,000 children in its rules (got 200,001)"),
        (one(S=[["a"]]) | {"terminals": 10**9}, "at most 1,048,576 probabilities of heads"),
        (one(S=[["a"]]) | {"terminals": True}, "terminals must be a list (got True)"),
        (one(S=[["a"]]) | {"terminals": ["a", ["b"]]}, "terminals must be names (got ['b'])"),
        (one(S=[["a"]]) | {"terminals": ["a", "\x1b[31m"]}, r"1 to 100 printable characters (got '\x1b[31m')"),
        (one(S=[["a"]]) | {"terminals": ["a", "\ud800"]}, r"1 to 100 printable characters (got '\ud800')"),
        (one(S=[["a"]]) | {"terminals": ["a", "\u202eb"]}, r"1 to 100 printable characters (got '\u202eb')"),
        (one(S=[["a"]]) | {"terminals": ["a", "b" * 10**6]}, "1 to 100 printable characters (got 'bbb"),
        (one(S=[["a"]]) | {"start": ["S"] * 20_000}, "start can have at most 10,000 names"),
        (one(S=[{"weight": "1", "children": ["a"]}]), "must be numbers (got '1')"),
        (one(S=[{"weight": True, "children": ["a"]}]), "must be numbers (got True)"),
        (one(S=[{"weight": None, "children": ["a"]}]), "must be numbers (got None)"),
        (one(S=[{"weight": 10**400, "children": ["a"]}]), "must be finite, not negative and not all 0"),
        (one(S=[{"weight": 0, "children": ["a"]}]), "must be finite, not negative and not all 0"),
    ],
)
def test_grammars_beyond_the_limits_are_one_line(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        Grammar.from_dict(data)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 250


def test_huge_weights_keep_their_shares() -> None:
    huge = Grammar.from_dict(one(S=[{"weight": w, "children": ["a"]} for w in (1e308, 1e308, 1.5e308, 5e307)]))
    assert [rule.probability for rule in huge.rules["S"]] == pytest.approx([0.25, 0.25, 0.375, 0.125])
    tiny = Grammar.from_dict(one(S=[{"weight": 5e-324, "children": ["a"]}] * 2))
    assert [rule.probability for rule in tiny.rules["S"]] == [0.5, 0.5]


def test_a_rule_of_weight_0_may_name_what_is_never_reached() -> None:
    data = one(S=[{"weight": 0, "children": ["X"]}, ["a", "b"]], X=[["X"]]) | {"start": ["S"]}
    assert length_distribution(Grammar.from_dict(data), 4).tolist() == pytest.approx([0, 0, 0, 1, 0])


def test_sampling_that_nearly_never_succeeds_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft grows to the limit nearly always: 10,000 of them for one document would take minutes."""
    monkeypatch.setattr("mecheval.tasks.atr.MAX_WORK", 10**6)
    data = one(S=[{"weight": 10**12, "children": ["S"]}, ["a", "b"]])
    task = build_task("atr", grammar=data, max_length=1 << 20)
    with pytest.raises(UserError, match=r"atr: gave up after \d+ drafts of one document: .* longer than max_length"):
        task.corpus(3, "train")


def test_recall_with_nothing_to_ask_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mecheval.tasks.ar.MAX_WORK", 10**6)
    task = build_task("ar", pairs=50_000, keys=50_000, values=50_000, holdout=1 - 1e-12, queries=50_000)
    with pytest.raises(UserError, match="ar: up to 10000 drafts of a train document"):
        task.corpus(1, "train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nonterminals": 2000, "max_rules": 1000}, "at most 10,000 rules (got 2,000,000)"),
        ({"nonterminals": 2000, "max_rhs": 1000}, "at most 200,000 children in its rules"),
        ({"terminals": (1 << 24) - 1}, "at most 1,048,576 probabilities of heads"),
    ],
)
def test_drawn_grammars_too(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        build_task("atr", **options)
    assert message in str(raised.value)


def test_a_grammar_that_a_config_could_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps({"terminals": 50_000, "nonterminals": {f"N{i}": {"rules": [["t0"]]} for i in range(9)}}))
    with pytest.raises(UserError, match="at most 400,000 heads can have a probability"):
        build_task("atr", grammar=str(path))


def test_symbols_that_wait_to_be_expanded_count_as_work(tmp_path: Path) -> None:
    """A rule with 900 children makes a draft too long after a few terminals; ten thousand of those took 13 seconds."""
    wide = {"terminals": ["a", "b"], "nonterminals": {"S": {"rules": [["S"] * 900, ["b"]]}}}
    (tmp_path / "wide.json").write_text(json.dumps(wide))
    task = build_task("atr", grammar=str(tmp_path / "wide.json"), min_length=500, max_length=1 << 20)
    with pytest.raises(UserError, match=r"gave up after \d{1,3} drafts of one document"):
        task.sample(1)
