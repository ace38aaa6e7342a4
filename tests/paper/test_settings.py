from __future__ import annotations

import math

import pytest

from mecheval.config import run_config
from mecheval.paper import Setting, settings_of


@pytest.mark.parametrize(
    ("pairs", "queries", "guessing"), [(16, 1, 1 / 16), (4, 1, 1 / 4), (4, 4, 25 / 48), (3, 2, 5 / 12), (1, 1, 1)]
)
def test_guessing_among_the_values_that_are_left(pairs: int, queries: int, guessing: float) -> None:
    config = run_config("ar", pairs=pairs, queries=queries, keys=32, values=32)
    assert Setting.of(config).guessing == pytest.approx(guessing)


def test_guessing_on_trees_depends_on_what_was_memorised() -> None:
    assert math.isnan(Setting.paper("atr").guessing)


def test_in_words() -> None:
    assert Setting.paper("ar").describe() == "16 pairs of 4,096 keys, 50,016 steps of 32 documents"
    assert Setting.paper("atr").describe() == "trees of up to 1,024 of 20 terminals, 100,032 steps of 32 documents"
    small = run_config("ar", pairs=4, keys=32, values=32, queries=4, steps=1500, batch_size=64, stop_at=0.99)
    assert Setting.of(small).describe() == "4 pairs of 32 keys with 4 queries, up to 1,500 steps of 64 documents"


def test_a_setting_for_each_task() -> None:
    configs = [run_config("ar", pairs=4), run_config("atr"), run_config("ar", pairs=4, lr=3e-3)]
    assert settings_of(configs) == {"ar": Setting.of(configs[0]), "atr": Setting.of(configs[1])}
