from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mecheval.figures.by_mechanism import mixer_names, setting_of, task_names
from mecheval.figures.vegalite import text_of
from mecheval.report.page import levels, tidy
from mecheval.report.runs import best_runs, flat, packed, speaking
from training.runs import tiny

CONFIG = {
    "task": {"name": "ar", "pairs": 4},
    "mixer": {"name": "mamba", "d_conv": 4},
    "model": {"positions": "none"},
    "optimiser": {"lr": 1e-3, "clip": None},
    "data": {"shuffle": False},
    "seed": 0,
}


def changed(part: str, **values: Any) -> dict[str, Any]:
    return {**CONFIG, part: {**CONFIG[part], **values}}  # type: ignore[dict-item]


@pytest.mark.parametrize(("value", "short"), [
    (0.12345678, 0.123457), (3e-05, 3e-05), (2.0, 2), (12345678.0, 12345700), (math.nan, None), (math.inf, None),
    (np.float32(0.5), 0.5), (np.int64(7), 7), (True, True), ("1.23456", "1.23456"), ([0.1, (math.nan,)], [0.1, [None]]),
])  # fmt: skip
def test_numbers_are_short_and_finite(value: Any, short: Any) -> None:
    assert tidy(value) == short
    assert type(tidy(value)) is type(short)


@pytest.mark.parametrize("text", ["</script>", "<!--", "a & b", "\u2028\u2029", '‘ü’ \\ "', "]]>", "\ud800"])
def test_no_text_can_leave_its_script_element(text: str) -> None:
    written = text_of({text: [text]})
    assert not set(written) & set("<>&\u2028\u2029")
    whole = text.encode("utf-8", "replace").decode()
    assert json.loads(written) == {whole: [whole]}


def test_numbers_of_configs_are_exact() -> None:
    assert json.loads(text_of([0.1234567890123456])) == [0.1234567890123456]


def test_levels_are_ordered_as_in_charts() -> None:
    assert levels("lr", [1e-3, 3e-3, 1e-3]) == {"levels": ["3e-3", "1e-3"], "codes": [1, 0, 1]}
    assert levels("mixer", ["attention", "own", "mamba"]) == {
        "levels": ["attention", "mamba", "own"],
        "codes": [0, 2, 1],
    }


def test_configs_are_written_as_differences_and_come_back_whole() -> None:
    configs = [CONFIG, changed("mixer", d_conv=2), CONFIG, {**CONFIG, "seed": 1}, {"odd": 1}, {}]
    small = packed(configs)
    assert small["runs"][0][1] == {}
    assert small["runs"][1][1] == {"mixer.d_conv": 2}
    again = [{**small["bases"][base], **apart} for base, apart in small["runs"]]
    assert again == [flat(config) for config in configs]


def test_names_say_in_what_a_run_differs_from_most() -> None:
    configs = [
        CONFIG,
        CONFIG,
        changed("mixer", d_conv=2),
        changed("model", positions="learned"),
        changed("task", pairs=8),
        changed("optimiser", lr=3e-3),
        {**changed("optimiser", clip=1.0), "data": {"shuffle": True}},
    ]
    mixers, tasks = ["mamba"] * len(configs), ["ar"] * len(configs)
    assert mixer_names(mixers, configs) == [
        "mamba", "mamba", "mamba · d_conv 2", "mamba · positions learned", "mamba", "mamba",
        "mamba · clip 1.0 · shuffle true",
    ]  # fmt: skip
    assert task_names(tasks, configs) == ["ar", "ar", "ar", "ar", "ar · pairs 8", "ar", "ar"]


def test_names_can_say_all_that_is_not_the_same_in_every_run() -> None:
    configs = [CONFIG, CONFIG, changed("mixer", d_conv=2), changed("model", positions="learned")]
    assert mixer_names(["mamba"] * 4, configs, all_same=True) == [
        "mamba · d_conv 4 · positions none", "mamba · d_conv 4 · positions none", "mamba · d_conv 2 · positions none",
        "mamba · d_conv 4 · positions learned",
    ]  # fmt: skip
    clipped = [CONFIG, changed("optimiser", clip=1.0)]
    assert mixer_names(["mamba"] * 2, clipped, all_same=True) == ["mamba · clip none", "mamba · clip 1.0"]
    assert mixer_names(["mamba", None], [CONFIG, {}], all_same=True) == ["mamba", "?"]


def test_only_the_learning_rate_is_chosen() -> None:
    """A run that was trained in another way is no better run of the same setting."""
    rows = {"fast": changed("optimiser", lr=3e-3), "slow": CONFIG, "clipped": changed("optimiser", clip=1.0)}
    assert len({setting_of(run, config) for run, config in rows.items()}) == 2
    frame = pd.DataFrame({
        "run": list(rows), "config": list(rows.values()), "task": "ar", "mixer": "mamba", "status": "done",
        "label": "induction", "mixer_name": mixer_names(["mamba"] * 3, list(rows.values())), "task_name": "ar",
        "n_layers": 2, "d_model": 32, "seed": 0, "dev_accuracy": [0.4, 0.2, 0.7], "dev_likelihood": [0.4, 0.2, 0.7],
    })  # fmt: skip
    best = best_runs(frame)
    assert dict(zip(best["run"], best["mixer_name"], strict=True)) == {"fast": "mamba", "clipped": "mamba · clip 1.0"}
    assert list(speaking(frame)["run"]) == ["fast"]
    assert list(speaking(frame[frame["run"] == "clipped"])["run"]) == ["clipped"]


def test_thousands_of_configs_stay_small() -> None:
    data = tiny().to_dict()
    many = [{**data, "seed": seed} for seed in range(2000)]
    assert len(text_of(packed(many))) < 50_000 < len(text_of(many)) / 20
