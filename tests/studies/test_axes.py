from __future__ import annotations

import math

import pandas as pd
import pytest

from mecheval.figures.cells import percent
from mecheval.studies.axes import named, ordered, plain, say


@pytest.mark.parametrize(
    ("axis", "values", "expected"),
    [
        ("d_model", [256, 16, 128, 16], [16, 128, 256]),
        ("d_conv", [0, 4, 1, 3, 2], [4, 3, 2, 1, 0]),
        ("kernel_size", [-1, 4, 1, 3, 2], [1, 2, 3, 4, -1]),
        ("lr", [3e-5, 1e-2, 1e-3], [1e-2, 1e-3, 3e-5]),
        ("n_layers", [3, 1, 2], [1, 2, 3]),
        ("positions", ["learned", "none"], ["none", "learned"]),
        ("task", ["mine", "atr", "ar"], ["ar", "atr", "mine"]),
        ("mixer", ["z", "mamba", "a", "attention", "based"], ["attention", "based", "mamba", "z", "a"]),
        ("mixer", ["z", "h3", "h3+Mine@3f", "Mine@3f"], ["h3+Mine@3f", "Mine@3f", "h3", "z"]),
        ("mixer", ["mamba+h3", "a", "2*h3+a", "h3"], ["h3", "a", "mamba+h3", "2*h3+a"]),
        ("short_conv", ["B", "own", "A", "none"], ["none", "own", "A", "B"]),
        ("other", ["b", "a", "b"], ["b", "a"]),
    ],
)
def test_values_stand_in_the_order_of_the_paper(axis: str, values: list[object], expected: list[object]) -> None:
    assert ordered(axis, values) == expected
    assert ordered(axis, pd.Series(values)) == expected


def test_values_as_people_read_them() -> None:
    rates = [3e-5, 1e-4, 3e-4, 1e-3, 1e-2, 3e-2, 2.5e-3, 1.0]
    texts = ["3e-5", "1e-4", "3e-4", "1e-3", "1e-2", "3e-2", "2.5e-3", "1e0"]
    assert [say("lr", rate) for rate in rates] == texts
    assert [say("d_conv", value) for value in (4, 0)] == ["4", "none"]
    assert [say("kernel_size", value) for value in (3, -1)] == ["3", "long"]
    assert [say("n_layers", value) for value in (1, 2)] == ["1 layer", "2 layers"]
    assert [say("positions", value) for value in ("none", "learned", "other")] == [
        "without positions", "with positions", "other"
    ]  # fmt: skip
    assert say("d_model", 64.0) == "64"
    assert say("d_model", None) == "–"
    assert (named("d_model", "64"), named("mixer", "h3")) == ("d_model 64", "h3")


def test_missing_values_of_any_kind_are_none() -> None:
    assert [plain(value) for value in (math.nan, pd.NA, None, pd.NaT)] == [None] * 4
    assert plain(pd.Series([3], dtype="Int64")[0]) == 3


def test_percent_has_one_decimal_and_zero_no_sign() -> None:
    assert [percent(value) for value in (0.9891, 1.0, -0.0004, -0.02)] == ["98.9", "100.0", "0.0", "-2.0"]
