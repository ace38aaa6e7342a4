from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from mecheval.errors import UserError
from mecheval.tasks import build_task
from mecheval.tasks.lengths import expected_length, length_range
from mecheval.tasks.pcfg import Grammar
from tasks.statistics import length_distribution

SMALL = {
    "head": "right",
    "terminals": ["a", "b"],
    "start": ["S"],
    "nonterminals": {
        "S": {
            "heads": {"a": 3, "b": 1},
            "rules": [{"weight": 1, "children": ["X", "b"]}, {"weight": 3, "children": ["a"]}],
        },
        "X": {"rules": [["b", "b"], []]},
    },
}
# Lengths: X is "bb" + head = 3 or head alone = 1, evenly. S is X + b + head (1/4) or a + head (3/4).
# So S has 2 terminals with 3/4, 3 with 1/8, 5 with 1/8.
RECURSIVE = {
    "terminals": 2,
    "nonterminals": {"S": {"rules": [{"weight": 1, "children": ["S", "S"]}, {"weight": 3, "children": []}]}},
}


def test_lengths_of_a_hand_worked_grammar() -> None:
    grammar = Grammar.from_dict(SMALL)
    assert length_distribution(grammar, 6) == pytest.approx([0, 0, 3 / 4, 1 / 8, 0, 1 / 8, 0])
    assert expected_length(grammar) == pytest.approx(2 * 3 / 4 + 3 / 8 + 5 / 8)
    assert length_range(grammar) == (2, 5)


def test_lengths_of_a_recursive_grammar_are_a_branching_process() -> None:
    grammar = Grammar.from_dict(RECURSIVE)
    # P(n = 2k + 1) = Catalan(k) (1/4)^k (3/4)^(k + 1); the mean number of expansions is 1 / (1 - 2/4) = 2.
    expected = np.zeros(10)
    for k in range(5):
        expected[2 * k + 1] = math.comb(2 * k, k) / (k + 1) * 0.25**k * 0.75 ** (k + 1)
    assert length_distribution(grammar, 9) == pytest.approx(expected)
    assert expected_length(grammar) == pytest.approx(2)
    assert length_range(grammar) == (1, math.inf)


def test_recursion_that_feeds_itself_has_no_mean_length() -> None:
    rules = [{"weight": 1, "children": ["S", "S"]}, {"weight": 1, "children": []}]
    assert expected_length(Grammar.from_dict({"terminals": 1, "nonterminals": {"S": {"rules": rules}}})) == math.inf


def test_saved_and_loaded_grammars_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    drawn = Grammar.draw(3, terminals=7, nonterminals=9)
    drawn.save(tmp_path / "g.json")
    assert Grammar.load(tmp_path / "g.json") == drawn
    assert Grammar.draw(3, terminals=7, nonterminals=9) == drawn
    assert Grammar.draw(4, terminals=7, nonterminals=9) != drawn


def test_a_grammar_can_be_written_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("terminals: [a, b]\nnonterminals:\n  S: {rules: [[X, a], [b]]}\n  X: {rules: [[a, b]]}\n")
    grammar = Grammar.load(path)
    assert grammar.head == "right"
    assert grammar.start == ("S", "X")
    assert grammar.rules["S"][0].children == ("X", "a")
    assert grammar.rules["S"][0].probability == 0.5
    assert grammar.heads["X"] == (0.5, 0.5)


def test_a_drawn_grammar_obeys_its_parameters() -> None:
    deepest, widths, counts, nonterminal_children, children = [], set(), set(), 0, 0
    for seed in range(30):
        grammar = Grammar.draw(
            seed, terminals=6, nonterminals=12, max_depth=4, max_rhs=4, max_rules=3, terminal_weight=5
        )
        assert len(grammar.rules) == 12
        depth: dict[str, int] = {}

        def height(name: str, grammar: Grammar = grammar, depth: dict[str, int] = depth) -> int:
            """Levels below a nonterminal; ends because there is no recursion."""
            if name not in depth:
                below = [c for rule in grammar.rules[name] for c in rule.children if c in grammar.rules]
                depth[name] = 1 + max((height(c) for c in below), default=0)
            return depth[name]

        deepest.append(max(height(name) for name in grammar.rules))
        for name, rules in grammar.rules.items():
            assert sum(rule.probability for rule in rules) == 1
            assert sum(grammar.heads[name]) == 1
            counts.add(len(rules))
            widths |= {len(rule.children) for rule in rules}
            children += sum(len(rule.children) for rule in rules)
            nonterminal_children += sum(c in grammar.rules for rule in rules for c in rule.children)
    assert max(deepest) == 4
    assert widths == {1, 2, 3}
    assert counts == {1, 2, 3}
    # A nonterminal on level d of 4 sees on average 12 (4 - d) / 4 deeper ones against a weight of 5.
    expected = np.mean([12 * (4 - d) / 4 / (12 * (4 - d) / 4 + 5) for d in range(1, 5)])
    assert nonterminal_children / children == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "it is empty"),
        ({"terminals": ["a"], "nonterminals": {}}, "it is empty"),
        ([1, 2], "must map names to values"),
        ({"terminals": ["a"], "nonterminals": {"S": {"rules": []}}}, "nonterminal 'S' has no rules"),
        (
            {"terminals": ["a"], "nonterminals": {"S": {"rules": [["b"]]}}},
            "unknown symbol in a rule of 'S' 'b'",
        ),
        (
            {"terminals": ["S"], "nonterminals": {"S": {"rules": [["S"]]}}},
            "both a terminal and a nonterminal",
        ),
        ({"terminals": ["a", "a"], "nonterminals": {"S": {"rules": [["a"]]}}}, "listed twice"),
        (
            {"terminals": ["a"], "nonterminals": {"S": {"rules": [["a"]]}}, "head": "up"},
            "choices: left, right",
        ),
        ({"terminals": ["a"], "nonterminals": {"S": {"rules": [["a"]]}}, "start": ["T"]}, "start symbol 'T'"),
        ({"terminals": ["a"], "nonterminals": {"S": {"rule": [["a"]]}}}, "Did you mean 'rules'?"),
        (
            {"terminals": ["a"], "nonterminals": {"S": {"rules": [["a"]], "heads": {"b": 1}}}},
            "head terminal of 'S' 'b'",
        ),
        (
            {"terminals": ["a"], "nonterminals": {"S": {"rules": [{"children": ["a"], "weight": -1}]}}},
            "not negative",
        ),
        (
            {"terminals": ["a"], "nonterminals": {"S": {"rules": [{"children": ["a"], "weight": "x"}]}}},
            "must be numbers",
        ),
        ({"terminals": ["a"], "nonterminals": {"S": {"rules": 3}}}, "rules of 'S' must be a list"),
        ({"terminals": {"a": 1}, "nonterminals": {"S": {"rules": [["a"]]}}}, "terminals must be a list"),
        (
            {"terminals": ["a"], "nonterminals": {"S": {"rules": ["aa"]}}},
            "children of a rule of 'S' must be a list",
        ),
    ],
)
def test_a_bad_grammar_is_one_clear_line(data: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError) as error:
        build_task("atr", grammar=str(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none\.json: No such file"):
        Grammar.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match=r"bad\.json is not JSON"):
        Grammar.load(tmp_path / "bad.json")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"bad\.yaml is not YAML"):
        Grammar.load(tmp_path / "bad.yaml")
