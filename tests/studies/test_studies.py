from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mecheval.config import RunConfig
from mecheval.errors import UserError
from mecheval.figures import study_charts
from mecheval.figures.points import largest
from mecheval.mixers.options import BUILT_IN
from mecheval.model import LM
from mecheval.store import Store
from mecheval.studies import PAPER, SCALES, STUDIES, get_study, study_points, study_table
from mecheval.studies.scales import MIXERS
from mecheval.sweep.job import Point

NAMES = [
    "ar", "ar_mamba_conv", "ar_based_conv", "ar_mamba_inside", "atr", "atr_mamba_conv", "position", "atr_holdout",
    "one_layer", "depth", "sibling",
]  # fmt: skip
BEYOND = ["mqar", "capacity", "hops", "tracking", "grandparent", "convergence", "inside", "landscape"]
FIGURES = ["3", "4a", "4b", "5", "7", "8", "9", "10", "11", "12", "13"]
PAPER_RUNS = {
    "ar": 7 * 5 * 7, "ar_mamba_conv": 5 * 5 * 7, "ar_based_conv": 5 * 5 * 7, "ar_mamba_inside": 6 * 5,
    "atr": 7 * 5 * 5, "atr_mamba_conv": 5 * 5 * 5, "position": 2 * 7 * 5 * (7 + 5), "atr_holdout": 7 * 5 * 5,
    "one_layer": 2 * 7 * 5 * (7 + 5), "depth": 3 * 7 * 5 * 7, "sibling": 3 * 7 * 5 * 5,
}  # fmt: skip
RECIPE = {(False, False): "published", (True, False): "clipped", (False, True): "shuffled", (True, True): "both"}
"""Whether gradients are clipped, and whether the order is new in every epoch -> name."""


@cache
def points_of(name: str, scale: str) -> list[Point]:
    return study_points(STUDIES[name], scale)


def test_every_study_of_the_paper_is_there() -> None:
    assert list(STUDIES) == [*NAMES, "quickstart", "newer", "canon", "hybrids", "recipes", *BEYOND]
    assert PAPER == NAMES
    assert [STUDIES[name].figure for name in PAPER] == FIGURES
    with pytest.raises(UserError, match=r"unknown study 'arr'.*ar"):
        get_study("arr")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", STUDIES)
def test_runs_of_a_study_are_all_different(name: str, scale: str) -> None:
    points = points_of(name, scale)
    assert len({point.config.id for point in points}) == len(points)
    assert len({tuple(point.axes.items()) for point in points}) == len(points)


@pytest.mark.parametrize("name", NAMES)
def test_scale_paper_is_the_paper(name: str) -> None:
    points = points_of(name, "paper")
    assert len(points) == PAPER_RUNS[name]
    assert {point.config.model.d_model for point in points} == {16, 32, 64, 128, 256}
    for point in points:
        config = point.config
        atr = config.task.name == "atr"
        rates = {3e-5, 1e-4, 3e-4, 1e-3, 3e-3} if atr else {3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2}
        assert config.optimiser.lr in rates
        assert (config.data.documents, config.data.batch_size) == (100_032, 32)
        assert config.data.steps == (100_032 if atr else 50_016)
        assert not config.data.shuffle
        assert (config.optimiser.betas, config.optimiser.eps, config.optimiser.weight_decay) == ((0.9, 0.999), 1e-8, 0)
        assert (config.schedule.warmup, config.schedule.decay, config.optimiser.clip) == (0.1, "cosine", None)
        assert config.evaluate.documents == 320
        assert config.evaluate.stop_at is None
        assert config.evaluate.patience is None
        task = config.task.options
        assert task["queries"] == 1
        if atr:
            grammar = ("terminals", "nonterminals", "max_depth", "max_rhs", "max_rules", "head", "terminal_weight")
            assert [task[option] for option in grammar] == [20, 40, 10, 5, 5, "right", 20.0]
            assert (task["min_length"], task["max_length"]) == (3, 1024)
        else:
            assert (task["pairs"], task["keys"], task["values"]) == (16, 4096, 4096)


def has_short_conv(config: RunConfig) -> bool:
    """Whether the mixer has a short convolution of its own that mixes tokens."""
    options = config.mixer.options
    kernel = options.get("kernel_size", -1) != -1
    taps = max(options.get(name, 0) for name in ("d_conv", "conv1d_width", "short_filter_order")) > 1
    shift = options.get("use_short_conv", False) or options.get("token_shift", False)
    return bool(kernel or taps or shift or config.mixer.name == "h3")


@pytest.mark.parametrize("scale", SCALES)
def test_axes_are_what_the_runs_have(scale: str) -> None:
    for study in STUDIES.values():
        for point in points_of(study.name, scale):
            config = point.config
            task = config.task.options
            negative = config.mixer.options.get("allow_neg_eigval", False)
            where = {
                "pairs": task.get("pairs"), "hops": task.get("hops"), "query": "".join(task.get("query", ())),
                "group": f"{task.get('group')}{' (beta to 2)' if negative else ''}",
                "task": config.task.name, "mixer": config.mixer.name, "lr": config.optimiser.lr, "seed": config.seed,
                "d_model": config.model.d_model, "n_layers": config.model.n_layers, "positions": config.model.positions,
                "d_conv": config.mixer.options.get("d_conv"), "kernel_size": config.mixer.options.get("kernel_size"),
                "short_conv": config.model.canon or ("own" if has_short_conv(config) else "none"),
                "recipe": RECIPE[config.optimiser.clip is not None, config.data.shuffle],
            }  # fmt: skip
            assert point.axes == {axis: where[axis] for axis in point.axes}


def test_recipes_differ_from_figure_3_in_clipping_and_order_alone() -> None:
    """A quarter of the runs are those of study `ar`, so nothing is trained twice."""
    published = {point.config.id for point in points_of("ar", "paper")}
    for name, clip, shuffle in (
        ("published", None, False), ("clipped", 1.0, False), ("shuffled", None, True), ("both", 1.0, True),
    ):  # fmt: skip
        made = [point.config for point in points_of("recipes", "paper") if point.axes["recipe"] == name]
        assert {(config.optimiser.clip, config.data.shuffle) for config in made} == {(clip, shuffle)}
        as_published = [
            replace(
                config, optimiser=config.optimiser.model_copy(update={"clip": None}),
                data=config.data.model_copy(update={"shuffle": False}),
            )
            for config in made
        ]  # fmt: skip
        assert {config.id for config in as_published} == published


@pytest.mark.parametrize("scale", SCALES)
def test_what_varies_is_what_the_paper_varies(scale: str) -> None:
    def values(name: str, axis: str) -> set[object]:
        return {point.axes[axis] for point in points_of(name, scale)}

    for name in ("ar", "atr", "position", "atr_holdout", "one_layer", "depth", "sibling"):
        assert values(name, "mixer") == set(MIXERS)
    for name in ("ar_mamba_conv", "atr_mamba_conv"):
        assert values(name, "d_conv") == {4, 3, 2, 1, 0}
    assert values("ar_based_conv", "kernel_size") == {1, 2, 3, 4, -1}
    assert values("position", "positions") == {"none", "learned"}
    assert values("position", "task") == values("one_layer", "task") == {"ar", "atr"}
    assert values("one_layer", "n_layers") == {1, 2}
    assert values("depth", "n_layers") == values("sibling", "n_layers") == {1, 2, 3}
    held_out = {point.config.task.options["holdout"] for point in points_of("atr_holdout", scale)}
    assert held_out == {0.2}
    asked = {tuple(point.config.task.options["query"]) for point in points_of("sibling", scale)}
    assert asked == {("sibling",)}


@pytest.mark.parametrize("scale", SCALES)
def test_studies_share_the_runs_that_they_have_in_common(scale: str) -> None:
    def ids(name: str) -> set[str]:
        return {point.config.id for point in points_of(name, scale)}

    for name in ("ar_mamba_conv", "ar_based_conv", "ar_mamba_inside", "position", "one_layer", "depth"):
        assert ids("ar") & ids(name), name
    for name in ("atr_mamba_conv", "position", "one_layer"):
        assert ids("atr") & ids(name), name


def test_the_study_of_canon_has_every_mixer_with_and_without_a_short_convolution() -> None:
    points = points_of("canon", "laptop")
    found: dict[str, dict[str, RunConfig]] = {}
    for point in points:
        found.setdefault(point.axes["mixer"], {})[point.axes["short_conv"]] = point.config
    assert list(found) == list(BUILT_IN)
    assert all(len(each) >= 2 and "A" in each for each in found.values())
    assert [mixer for mixer, each in found.items() if "none" not in each] == ["h3"]
    for mixer, each in found.items():  # the Canon convolution takes the place of the mixer's own
        assert mixer == "h3" or not has_short_conv(each["A"])
    ids = {point.config.id for point in points}
    assert {point.config.id for point in points_of("quickstart", "laptop")} <= ids


def test_the_study_of_hybrids_has_every_ordered_pair() -> None:
    points = points_of("hybrids", "laptop")
    pairs = {point.config.mixer.name for point in points}
    assert len(pairs) == 6
    assert {"+".join(reversed(pair.split("+"))) for pair in pairs} == pairs
    assert {point.config.model.n_layers for point in points} == {2}


def test_the_study_of_mqar_is_zoologys_figure_2() -> None:
    points = points_of("mqar", "paper")
    cells = {(p.axes["pairs"], p.config.task.options["length"], p.config.data.batch_size) for p in points}
    assert cells == {(4, 64, 512), (8, 128, 512), (16, 256, 256), (64, 512, 128)}
    assert {p.config.model.d_model for p in points} == {64, 128, 256, 512}
    assert sorted({p.config.optimiser.lr for p in points}) == pytest.approx(np.logspace(-4, -2, 4).tolist(), rel=2e-3)
    for point in points:
        config = point.config
        assert config.task.options["vocab"] == 8192
        assert (config.data.documents, config.data.steps) == (100_000, round(64 * 100_000 / config.data.batch_size))
        assert (config.evaluate.stop_at, config.evaluate.documents, config.optimiser.weight_decay) == (0.99, 3000, 0.1)
        assert config.evaluate.every == 100_000 // config.data.batch_size


def test_on_a_laptop_attention_has_the_slow_rate_in_the_study_of_mqar() -> None:
    """At 2e-3 it stays at a guess among the pairs."""
    points = points_of("mqar", "laptop")
    assert {p.axes["pairs"]: (p.config.task.options["length"], p.config.task.options["vocab"]) for p in points} == {
        4: (64, 8192),
        8: (128, 8192),
    }
    assert {(p.config.model.d_model, p.config.model.n_layers, p.config.model.mlp) for p in points} == {(64, 2, False)}
    rates = {p.config.mixer.name: p.config.optimiser.lr for p in points}
    assert {name for name, rate in rates.items() if rate == 1e-3} == {"attention"}
    assert set(rates.values()) == {1e-3, 2e-3}


def test_the_study_of_capacity_counts_pairs_from_below(tmp_path: Path) -> None:
    study = STUDIES["capacity"]
    points = study_points(study, "laptop", wanted={"mixer": ["attention", "mamba"]})
    assert {point.axes["mixer"] for point in study_points(study, "laptop")} == set(BUILT_IN)
    table = study_table(study, points, Store(tmp_path))
    assert largest(table) == []
    recalled = {"attention": [2, 4, 8, 32], "mamba": [4]}  # 32 does not count without 16, nor 4 without 2
    scores = [
        0.9 if p in recalled[m] else 0.89 for m, p in zip(table.frame["mixer"], table.frame["pairs"], strict=True)
    ]
    found = largest(replace(table, frame=table.frame.assign(status="done", test_accuracy=scores)))
    assert [(point["mixer"], point["pairs"]) for point in found] == [("attention", 8)]
    assert found[0]["state"] == LM(1, 64, mixer="attention").state_size(19)
    chart = study_charts(table, Store(tmp_path), "laptop")["capacity-laptop"]
    assert "No results" in chart.description


def test_seeds_rates_and_choices() -> None:
    study = STUDIES["ar"]
    few = study_points(study, "laptop", seeds=3, wanted={"mixer": ["mamba"], "d_model": [128]}, rates=[1e-4])
    assert [(p.axes["mixer"], p.axes["d_model"], p.axes["lr"], p.axes["seed"]) for p in few] == [
        ("mamba", 128, 1e-4, seed) for seed in range(3)
    ]
    assert [p.config.seed for p in few] == [0, 1, 2]
    one = study_points(study, "laptop")
    three = study_points(study, "laptop", seeds=3)
    assert {p.config.id for p in one} == {p.config.id for p in three if p.axes["seed"] == 0}
    with pytest.raises(UserError, match=r"unknown scale 'huge'"):
        study_points(study, "huge")
    with pytest.raises(UserError, match="at least 1"):
        study_points(study, "laptop", seeds=0)


def test_the_example_of_a_new_study_works(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    block = re.search(r"## Adding a study.*?```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {}
    exec(block[1], names)
    [study], store = names["STUDIES"], Store(tmp_path)
    for scale in SCALES:
        points = study_points(study, scale)
        assert {point.axes["num_heads"] for point in points} == {1, 2, 4}
        table = study_table(study, points, store)
        assert list(study_charts(table, store, scale)) == [f"heads-{scale}"]
        assert table.frame["at_value"].isna().all()
        assert table.titles["at_value"] == "share at value"


def test_a_study_can_be_named_by_its_figure() -> None:
    assert [get_study(word).name for word in ("fig3", "figure4a", "Fig10")] == ["ar", "ar_mamba_conv", "atr_holdout"]
    with pytest.raises(UserError, match="unknown study 'fig99'"):
        get_study("fig99")
