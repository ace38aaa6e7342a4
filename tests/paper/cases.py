"""For each claim a table that bears it out, and changes after which it is contradicted or untested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from paper.tables import (
    INDUCTION,
    LAPTOP,
    LEARNT,
    PAPER,
    UNLEARNT,
    above_trees,
    bare,
    convs,
    depths,
    heldout,
    hyena_layers,
    inside,
    kernels,
    layers,
    places,
    positions,
    put,
    recall,
    siblings,
    succeeding,
    trees,
)

GONE = {"status": "missing"}
FLAT = {"original": 0.5, "corrupted": 0.495}
ONLY_3 = {"n_layers": 3}  # with two layers, the last one is layer 1


@dataclass
class Edit:
    """Other numbers in some rows."""

    numbers: dict[str, Any]
    where: dict[str, Any] = field(default_factory=dict)


@dataclass
class Case:
    """A table that bears a claim out, and edits of it that do not: each contradicts, or leaves it untested.

    `others` are tables of other studies that it is about. `seeds` is how many alike are enough to reproduce the claim:
    many, where the paper's number is far from 0 and 1.
    """

    claim: str
    good: pd.DataFrame
    bad: list[Edit]
    untested: list[Edit]
    seeds: int = 3
    others: Mapping[str, pd.DataFrame] = field(default_factory=dict)


ATTENTION_256 = {"mixer": "attention", "d_model": 256}
AT_PAPER = [
    Case(
        "ar_who_succeeds", succeeding(PAPER),
        [
            Edit({"test_accuracy": 1.0}, {"mixer": "delta_net", "d_model": 64}),
            Edit({"test_accuracy": 0.6}, {"mixer": "based", "d_model": 256}),
            Edit({"test_accuracy": 0.8}, {"mixer": "hyena", "d_model": 256}),
        ],
        [Edit(GONE, {"mixer": "based"}), Edit(GONE, {"mixer": ("h3", "hyena")})],
    ),
    Case(
        "ar_clearly_better", succeeding(PAPER), [Edit({"test_accuracy": 0.95}, {"mixer": "hyena", "d_model": 64})],
        [Edit(GONE, {"mixer": "mamba"}), Edit(UNLEARNT, {"mixer": ("mamba", "delta_net")})],
    ),
    Case(
        "ar_attention_acc", recall(PAPER),
        [Edit({name: 0.6}, {"mixer": "attention", "d_model": 32}) for name in ("test_accuracy", "original")],
        [Edit(GONE, {"mixer": "attention"}), Edit({"status": "diverged"}, {"mixer": "attention"})],
    ),
    Case(
        "ar_where_value", places(PAPER), [Edit({"restored_value": 0.2}, {"mixer": "based", "d_model": 64})],
        [Edit(UNLEARNT, {"mixer": "based"}), Edit(GONE, {"mixer": "attention"})],
    ),
    Case(
        "ar_where_query", put(places(PAPER), {"restored_query": 0.2, "restored_key": 0.9}, mixer="mamba", d_model=32),
        [
            Edit({"restored_query": 0.2}, {"mixer": "delta_net", "d_model": 256}),
            Edit({"restored_key": 0.2}, {"mixer": "mamba", "d_model": 32}),
        ],
        [Edit(UNLEARNT, {"mixer": "delta_net"}), Edit(GONE, {"mixer": "mamba", "d_model": 32})],
    ),
    Case(
        "ar_where_hyena", places(PAPER), [Edit({"restored_query": 0.2}, {"mixer": "hyena", "d_model": 256})],
        [Edit(UNLEARNT, {"mixer": "hyena"}), Edit(GONE, {"mixer": "hyena"})],
    ),
    Case(
        "ar_based_best", put(recall(PAPER), {"original": 0.98}, mixer="based", d_model=128),
        [Edit({"original": 0.7}, {"mixer": "based"})], [Edit(GONE, {"mixer": "based", "d_model": 128})],
    ),
    Case(
        "ar_mamba_256", put(recall(PAPER), {"original": 0.903}, mixer="mamba", d_model=256),
        [Edit({"original": 0.5}, {"mixer": "mamba"})], [Edit(GONE, {"mixer": "mamba", "d_model": 256})],
    ),
    Case(
        "ar_mamba_dconv_step", convs(PAPER),
        [
            Edit({"test_accuracy": 0.4}, {"d_conv": 1, "d_model": 64}),
            Edit({"test_accuracy": 0.4}, {"d_conv": 0, "d_model": 64}),
            Edit({"test_accuracy": 0.15}, {"d_conv": 2, "d_model": 64}),
        ],
        [Edit({"test_accuracy": 0.2}, {"d_conv": 4}), Edit(GONE, {"d_conv": 1})],
    ),
    Case(
        "ar_mamba_no_value", convs(PAPER), [Edit({"restored_value": 0.7}, {"d_conv": 3, "d_model": 32})],
        [Edit(UNLEARNT), Edit(GONE, {"d_conv": 0})],
    ),
    Case(
        "ar_based_conv", kernels(PAPER),
        [Edit({"test_accuracy": 0.4}, {"kernel_size": size, "d_model": 256}) for size in (1, -1)],
        [Edit({"test_accuracy": 0.2}, {"kernel_size": 3}), Edit(GONE, {"kernel_size": 1})],
    ),
    Case(
        "ar_mamba_conv1", inside(PAPER), [Edit({"conv1_at_value": 0.2}, {"lr": 1e-2, "d_model": 32})],
        [Edit(UNLEARNT, {"lr": 1e-2, "d_model": 32}), Edit(GONE, {"lr": 1e-2})],
    ),
    Case(
        "ar_mamba_next_key", inside(PAPER),
        [Edit({"conv0_at_next_key": 0.2})], [Edit(UNLEARNT), Edit({"status": "diverged"}), Edit(GONE)],
    ),
    Case(
        "atr_mamba_best", trees(PAPER), [Edit({"original": 0.999}, {"mixer": "based", "d_model": 32})],
        [Edit(FLAT), Edit(GONE, {"mixer": "mamba"}), Edit(GONE, {"mixer": "h3"})],
    ),
    Case(
        "atr_where_value", put(places(PAPER), {"restored_value": 0.9}, mixer="base_conv"),
        [Edit({"restored_value": 0.2}, {"mixer": "base_conv", "d_model": 64})],
        [Edit(UNLEARNT, {"mixer": "base_conv"})],
    ),
    Case(
        "atr_where_direct",
        put(put(places(PAPER), LEARNT, mixer="h3"), {"restored_query": 0.2, "restored_key": 0.9}, mixer="mamba"),
        [Edit({"restored_query": 0.2}, {"mixer": "hyena", "d_model": 64})], [Edit(UNLEARNT, {"mixer": "mamba"})],
    ),
    Case(
        "atr_same_mechanism", places(PAPER),
        [
            Edit({"restored_value": 0.2}, {"mixer": "attention", "d_model": 64}),
            Edit({"restored_query": 0.2, "restored_value": 0.9}, {"mixer": "mamba", "d_model": 64}),
        ],
        [Edit(UNLEARNT, {"mixer": "mamba"})], others={"ar": places(PAPER)},
    ),
    Case(
        "atr_corrupted_floor", trees(PAPER), [Edit({"corrupted": 0.01}, {"mixer": "h3", "d_model": 16})],
        [Edit(GONE, {"mixer": "h3"}), Edit({"status": "diverged", "corrupted": float("nan")})],
    ),
    Case(
        "atr_mamba_needs_less", bare(PAPER), [Edit({"original": 0.6}, {"d_conv": 4, "d_model": 64})],
        [Edit(GONE, {"d_conv": 0}), Edit(FLAT, {"d_conv": 0})],
    ),
    Case(
        "atr_mamba_short_value", bare(PAPER),
        [Edit({"restored_value": 0.4}, {"d_conv": d_conv, "d_model": 256}) for d_conv in (0, 1)],
        [Edit(GONE, {"d_conv": 0}), Edit(FLAT, {"d_conv": 1})],
    ),
    Case(
        "atr_mamba_noconv_256", bare(PAPER), [Edit({"original": 0.5}, {"d_conv": 0, "d_model": 256})],
        [Edit(GONE, {"d_conv": 0, "d_model": 256})], others={"atr": above_trees()},
    ),
    Case(
        "atr_based_256", put(trees(PAPER), {"original": 0.922}, mixer="based"),
        [Edit({"original": 0.5}, {"mixer": "based", "d_model": 256})], [Edit(GONE, {"mixer": "based"})],
    ),
    Case(
        "atr_baseconv_256", put(trees(PAPER), {"original": 0.9}, mixer="base_conv"),
        [Edit({"original": 0.5}, {"mixer": "base_conv", "d_model": 256})], [Edit(GONE, {"mixer": "base_conv"})],
    ),
    Case(
        "ar_attention_nope", positions(PAPER),
        [
            Edit({"test_accuracy": 0.5}, {**ATTENTION_256, "positions": "none", "task": "ar"}),
            Edit({"test_accuracy": 0.6}, {**ATTENTION_256, "positions": "learned", "task": "ar"}),
        ],
        [Edit(GONE, {**ATTENTION_256, "positions": "none", "task": "ar"})],
    ),
    Case(
        "atr_attention_nope",
        put(positions(PAPER), {"test_accuracy": 0.95}, mixer="attention", task="atr", positions="none").assign(
            test_accuracy=lambda frame: frame["test_accuracy"].where(frame["positions"] == "none", 0.7)
        ),
        [Edit({"test_accuracy": 0.4}, {"mixer": "attention", "task": "atr", "positions": "none", "d_model": 16})],
        [Edit(GONE, {"positions": "none", "task": "atr"})],
    ),
    Case(
        "pe_hurts_ssm", positions(PAPER),
        [
            Edit({"test_accuracy": 0.95}, {"positions": "learned", "mixer": ("mamba", "h3", "hyena", "based")}),
            Edit({"test_accuracy": 0.9}),
        ],
        [Edit(GONE, {"positions": "none"})],
    ),
    Case(
        "split_all_worse", heldout(PAPER), [Edit({"test_accuracy": 0.99}, {"mixer": "mamba", "d_model": 64})],
        [Edit({"dev_attribution_key": 0.005, "dev_attribution_value": 0.005}), Edit(GONE)],
    ),
    Case(
        "split_attention_best", heldout(PAPER), [Edit({"dev_accuracy": 0.1}, {"mixer": "attention", "d_model": 128})],
        [Edit(GONE, {"mixer": "attention"}), Edit(GONE, {"mixer": "based"})],
    ),
    Case(
        "split_same_mechanism", heldout(PAPER), [Edit({"attribution_query": 0.9})],
        [Edit({"dev_attribution_key": 0.005, "dev_attribution_value": 0.005}), Edit(GONE)],
    ),
    Case(
        "split_base_conv_brittle", heldout(PAPER),
        [
            Edit({"attribution_value": 0.3}, {"mixer": "base_conv"}),
            Edit({"attribution_value": 0.1}, {"mixer": "attention"}),
        ],
        [Edit(GONE, {"mixer": "base_conv"}), Edit(GONE, {"mixer": "based"})],
    ),
    Case(
        "split_attention_256", heldout(PAPER),
        [Edit({"test_accuracy": 0.98}, ATTENTION_256), Edit({"dev_accuracy": 0.6}, ATTENTION_256)],
        [Edit(GONE, ATTENTION_256)], seeds=40,
    ),
    Case(
        "split_mamba_128", heldout(PAPER),
        [Edit({"dev_accuracy": 0.1}, {"mixer": "mamba"}), Edit({"dev_accuracy": 0.97}, {"mixer": "h3", "d_model": 16})],
        [Edit(GONE, {"mixer": "mamba"}), Edit(GONE, {"mixer": "h3", "d_model": 16})], seeds=60,
    ),
    Case(
        "split_h3", heldout(PAPER), [Edit({"test_accuracy": 0.1}, {"mixer": "h3"})], [Edit(GONE, {"mixer": "h3"})],
    ),
    Case(
        "ar_1layer_direct", put(layers(PAPER), {"test_accuracy": 0.92}, mixer="mamba"),
        [Edit({"test_accuracy": 0.5}, {"mixer": "hyena", "n_layers": 1, "task": "ar", "d_model": 64})],
        [Edit(GONE, {"n_layers": 1}), Edit(GONE, {"mixer": ("mamba", "delta_net", "hyena")})],
    ),
    Case(
        "atr_1layer_worst", put(layers(PAPER), {"test_accuracy": 0.5}, mixer=INDUCTION, n_layers=1),
        [Edit({"test_accuracy": 0.1}, {"mixer": "h3", "n_layers": 1, "task": "atr", "d_model": 64})],
        [Edit(GONE, {"mixer": "h3"}), Edit(GONE, {"n_layers": 1})],
    ),
    Case(
        "ar_1layer_mamba_256", layers(PAPER),
        [
            Edit({"test_accuracy": 0.5}, {"mixer": "mamba", "n_layers": 1, "task": "ar"}),
            Edit({"test_accuracy": 0.5}, {"mixer": "mamba", "n_layers": 2, "task": "ar"}),
        ],
        [Edit(GONE, {"mixer": "mamba", "n_layers": 2, "task": "ar", "d_model": 256})],
    ),
    Case(
        "ar_1layer_hyena_256", hyena_layers(PAPER),
        [Edit({"test_accuracy": 0.95}, {"mixer": "hyena", "n_layers": 1, "task": "ar"})],
        [Edit(GONE, {"mixer": "hyena", "n_layers": 1, "task": "ar", "d_model": 256})], seeds=40,
    ),
    Case(
        "ar_1layer_induction_fail", layers(PAPER),
        [
            Edit({"test_accuracy": 0.4}, {"mixer": mixer, "n_layers": 1, "task": "ar", "d_model": 32})
            for mixer in ("attention", "based", "base_conv")
        ],
        [
            Edit({"test_accuracy": 0.2}, {"mixer": "attention", "n_layers": 2, "task": "ar"}),
            Edit(GONE, {"mixer": "base_conv", "n_layers": 1, "task": "ar"}),
        ],
    ),
    Case(
        "atr_1layer_attention_256", layers(PAPER),
        [Edit({"test_accuracy": 0.99}, {"mixer": "attention", "n_layers": 1, "task": "atr"})],
        [Edit(GONE, {"mixer": "attention", "n_layers": 1, "task": "atr", "d_model": 256})], seeds=40,
    ),
    Case(
        "layers_alike", depths(PAPER),
        [Edit({"test_accuracy": 0.4}, {"mixer": "hyena", "d_model": 64, "n_layers": 3})],
        [Edit(GONE, {"n_layers": 3}), Edit(GONE, {"n_layers": 2})],
    ),
    Case(
        "layers_mamba_32", put(depths(PAPER), {"test_accuracy": 0.4}, mixer="mamba", d_model=32, n_layers=3),
        [Edit({"test_accuracy": 0.9}, {"mixer": "mamba", "n_layers": 3})], [Edit(GONE, {"n_layers": 3})],
    ),
    Case(
        "layers_hyena_mamba", put(depths(PAPER), {"mixer2_at_query": 0.8}, mixer="mamba", n_layers=3, d_model=16),
        [
            Edit({"mixer1_at_query": 0.8}, {"mixer": "hyena"}),
            Edit({"mixer1_at_query": 0.8, **ONLY_3}, {"mixer": "mamba"}),
        ],
        [Edit(UNLEARNT, {"mixer": "hyena", "n_layers": (2, 3)}), Edit(GONE, {"mixer": "mamba"})],
    ),
    Case(
        "layers_attention_based",
        put(depths(PAPER), {"mixer2_at_query": 0.8}, mixer="attention", n_layers=3, d_model=(16, 32)),
        [
            Edit({"mixer0_at_query": 0.8}, {"mixer": "based"}),
            Edit({"mixer0_at_query": 0.8, **LEARNT}, {"mixer": "base_conv"}),
        ],
        [Edit(UNLEARNT, {"mixer": "based"}), Edit(GONE, {"mixer": "attention"})],
    ),
    Case(
        "sibling", siblings(PAPER),
        [
            Edit({"test_accuracy": 0.3}, {"mixer": "h3", "n_layers": 3, "d_model": 16}),
            Edit({"status": "diverged", "test_accuracy": float("nan")}, {"mixer": "h3", "n_layers": 3, "d_model": 16}),
        ],
        [Edit(GONE, {"mixer": "h3"}), Edit(GONE)],
    ),
]  # fmt: skip
FLOOR = {"test_accuracy": 0.45}  # guessing gives 0.52 where all 4 of 4 pairs are asked for
LOCAL_1 = {"mixer": ("based", "base_conv"), "n_layers": 1}
AT_LAPTOP = [
    Case(
        "ar_attention_acc", recall(LAPTOP), [Edit({"test_accuracy": 0.1}, {"mixer": "attention", "d_model": 64})],
        [Edit(UNLEARNT), Edit(GONE, {"mixer": "attention"}), Edit(GONE, {"mixer": "h3"})],
    ),
    Case(
        "ar_where_query", places(LAPTOP), [Edit({"restored_query": 0.2}, {"mixer": "mamba", "d_model": 64})],
        [Edit(UNLEARNT, {"mixer": "mamba"})],
    ),
    Case(
        "ar_where_hyena", places(LAPTOP), [Edit({"restored_query": 0.2}, {"mixer": "hyena", "d_model": 64})],
        [Edit(UNLEARNT, {"mixer": "hyena"})],
    ),
    Case(
        "ar_mamba_dconv_step", put(convs(LAPTOP), FLOOR, d_conv=(0, 1)),
        [Edit({"test_accuracy": 0.85}, {"d_conv": 1, "d_model": 64}), Edit({"test_accuracy": 0.3}, {"d_conv": 2})],
        [Edit({"test_accuracy": 0.7}, {"d_conv": 4})],
    ),
    Case("ar_mamba_no_value", convs(LAPTOP), [Edit({"restored_value": 0.8})], [Edit(UNLEARNT)]),
    Case(
        "ar_based_conv", put(kernels(LAPTOP), FLOOR, kernel_size=(1, -1)),
        [Edit({"test_accuracy": 0.85}, {"kernel_size": 1, "d_model": 64})],
        [Edit({"test_accuracy": 0.7}, {"kernel_size": 3})],
    ),
    Case("ar_mamba_next_key", inside(LAPTOP), [Edit({"conv0_at_next_key": 0.2})], [Edit(UNLEARNT), Edit(GONE)], 6),
    Case(
        "ar_attention_nope", put(positions(LAPTOP), FLOOR, mixer="attention", positions="none"),
        [Edit({"test_accuracy": 0.9}, {"mixer": "attention", "positions": "none", "task": "ar"})],
        [Edit({"test_accuracy": 0.7}, {"mixer": "attention", "positions": "learned", "task": "ar"})],
    ),
    Case(
        "split_mamba_128", heldout(LAPTOP),
        [Edit({"dev_accuracy": 0.2}, {"mixer": "attention"}), Edit({"dev_accuracy": 0.97}, {"mixer": "h3"})],
        [Edit({"dev_attribution_key": 0.005}), Edit(GONE, {"mixer": "h3", "d_model": 64})],
    ),
    Case(
        "split_h3", heldout(LAPTOP), [Edit({"test_accuracy": 0.02}, {"mixer": "h3"})],
        [Edit({"dev_attribution_key": 0.005}), Edit(GONE, {"mixer": "mamba"})],
    ),
    Case(
        "ar_1layer_mamba_256", layers(LAPTOP),
        [Edit({"test_accuracy": 0.3}, {"mixer": "mamba", "n_layers": 1, "d_model": 64})],
        [Edit({"test_accuracy": 0.7}, {"mixer": "mamba", "n_layers": 2})],
    ),
    Case(
        "ar_1layer_hyena_256", layers(LAPTOP), [Edit({"test_accuracy": 0.3}, {"mixer": "hyena", "n_layers": 1})],
        [Edit({"test_accuracy": 0.7}, {"mixer": "hyena"})],
    ),
    Case(
        "atr_1layer_attention_256", layers(LAPTOP),
        [Edit({"test_accuracy": 0.4}, {"mixer": "attention", "n_layers": 2, "task": "atr"})],
        [Edit(UNLEARNT), Edit(GONE, {"mixer": "attention", "n_layers": 1, "task": "atr"})],
    ),
    Case(
        "sibling", siblings(LAPTOP), [Edit({"test_accuracy": 0.05}, {"mixer": "h3", "d_model": 64})],
        [Edit(GONE, LOCAL_1), Edit(GONE, {"mixer": "h3"})],
    ),
]  # fmt: skip
