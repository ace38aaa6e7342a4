from __future__ import annotations

import pytest

from mecheval.mixers.pattern import fill, pattern_name, read_pattern, split_options


@pytest.mark.parametrize(
    ("text", "layers", "name"),
    [
        ("a+b", "ab", "a+b"),
        ("a,b", "ab", "a+b"),
        (" 3 * a + b ", "aaab", "3*a+b"),
        ("a+a+b", "aab", "2*a+b"),
        ("2*a", "aa", "a"),
        ("a+b+a+b", "abab", "a+b"),
        ("a+b+a", "aba", "a+b+a"),
        ("M@3f9a2c1b+b", ["M@3f9a2c1b", "b"], "M@3f9a2c1b+b"),
    ],
)
def test_a_pattern_is_read_and_has_one_name(text: str, layers: str | list[str], name: str) -> None:
    assert read_pattern(text) == list(layers)
    assert pattern_name(list(layers)) == name
    assert fill(read_pattern(text), 2 * len(layers)) == [*layers, *layers]


def test_an_option_is_for_all_that_have_it_and_one_with_a_name_for_that_mixer() -> None:
    known = {"a": {"x", "y"}, "M@3f9a2c1b": {"x", "z"}}
    for options in ({"a.x": 1, "x": 2, "M.z": 3}, {"x": 2, "M@3f9a2c1b.z": 3, "a.x": 1}):
        assert split_options(known, options) == {"a": {"x": 1}, "M@3f9a2c1b": {"x": 2, "z": 3}}
    assert split_options({"a": {"x"}}, {"a.x": 1, "any": 2}) == {"a": {"x": 1, "any": 2}}
