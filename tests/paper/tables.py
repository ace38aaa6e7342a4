"""Made-up tables of studies."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pandas as pd

from mecheval.config import run_config
from mecheval.paper import Setting, settings_of

MIXERS = ("attention", "base_conv", "based", "delta_net", "h3", "hyena", "mamba")
INDUCTION, ROLES = ("attention", "based", "base_conv"), ("key", "value", "query")
NUMBERS = (
    "dev_accuracy", "test_accuracy", "original", "corrupted", "restored_key", "restored_value", "restored_query",
    "conv0_at_value", "conv0_at_next_key", "conv1_at_value", "dev_attribution_key", "dev_attribution_value",
    "dev_attribution_query", "mixer0_at_query", "mixer1_at_query", "mixer2_at_query",
)  # fmt: skip
PAPER = {"d_model": (16, 32, 64, 128, 256)}
LAPTOP = {"d_model": (64, 128)}
"""Widths of the two scales."""
LEARNT = {"original": 0.9, "corrupted": 0.2}
UNLEARNT = {"original": 0.205, "corrupted": 0.2}


def table(numbers: dict[str, float], **axes: Any) -> pd.DataFrame:
    """A row for every combination of the axes, all done, with the same numbers in each."""
    usual: dict[str, Any] = {"mixer": ("mamba",), "lr": (1e-3,), "seed": (0,)}
    axes = {**usual, **axes}
    rows = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    frame = pd.DataFrame(rows).assign(run="0" * 12, status="done")
    return frame.assign(**dict.fromkeys(NUMBERS, float("nan"))).assign(**numbers)


def put(frame: pd.DataFrame, numbers: dict[str, Any], **where: Any) -> pd.DataFrame:
    """The table with other numbers in some rows; `where` holds values of axes, a tuple for several."""
    frame, here = frame.copy(), pd.Series(True, index=frame.index)
    for axis, value in where.items():
        here &= frame[axis].isin(value if isinstance(value, tuple) else (value,))
    assert here.any(), f"no row has {where}"
    for name, number in numbers.items():
        assert name in frame
        frame.loc[here, name] = number
    return frame


@cache
def settings(scale: str) -> dict[str, Setting]:
    """Of both tasks."""
    return settings_of(run_config(task, preset=scale) for task in ("ar", "atr"))


def convs(sizes: dict[str, Any]) -> pd.DataFrame:
    frame = table({"test_accuracy": 0.95, **LEARNT, "restored_value": 0.21}, d_conv=(4, 3, 2, 1, 0), **sizes)
    return put(frame, {"test_accuracy": 0.06, **UNLEARNT, "restored_value": 0.25}, d_conv=(1, 0))


def succeeding(sizes: dict[str, Any]) -> pd.DataFrame:
    """Attention and Based at 100 %, Mamba and DeltaNet close behind, the others at nothing."""
    frame = table({"test_accuracy": 0.01, **LEARNT}, mixer=MIXERS, **sizes)
    frame = put(frame, {"test_accuracy": 0.7}, mixer=("mamba", "delta_net"))
    return put(frame, {"test_accuracy": 1.0}, mixer=("attention", "based"))


def kernels(sizes: dict[str, Any]) -> pd.DataFrame:
    frame = table({"test_accuracy": 0.99}, mixer=("based",), kernel_size=(1, 2, 3, 4, -1), **sizes)
    return put(frame, {"test_accuracy": 0.05}, kernel_size=(1, -1))


def inside(sizes: dict[str, Any]) -> pd.DataFrame:
    numbers = {**LEARNT, "conv0_at_value": 0.2, "conv0_at_next_key": 0.85, "conv1_at_value": 0.85}
    return table(numbers, lr=(1e-3, 1e-2), **sizes)


def recall(sizes: dict[str, Any]) -> pd.DataFrame:
    frame = table({"test_accuracy": 0.5, "original": 0.5, "corrupted": 0.06}, mixer=MIXERS, **sizes)
    return put(frame, {"test_accuracy": 1.0, "original": 1.0}, mixer="attention")


def places(sizes: dict[str, Any]) -> pd.DataFrame:
    numbers = {**LEARNT, "restored_key": 0.2, "restored_value": 0.2, "restored_query": 0.9}
    frame = put(table(numbers, mixer=MIXERS, **sizes), UNLEARNT, mixer="h3")
    return put(frame, {"restored_query": 0.2, "restored_value": 0.9}, mixer=("attention", "based"))


def trees(sizes: dict[str, Any]) -> pd.DataFrame:
    return put(table({"original": 0.5, "corrupted": 0.3}, mixer=MIXERS, **sizes), {"original": 0.81}, mixer="mamba")


def bare(sizes: dict[str, Any]) -> pd.DataFrame:
    """Mamba on trees: without a convolution not as good as with one, and restored at the value."""
    frame = table({"original": 0.999, "corrupted": 0.3, "restored_value": 0.9}, d_conv=(4, 3, 2, 1, 0), **sizes)
    return put(frame, {"original": 0.934}, d_conv=(0, 1))


def above_trees() -> pd.DataFrame:
    """Based and BaseConv of width 256 on trees in the order of the paper, but farther apart."""
    frame = put(trees(PAPER), {"original": 0.8}, mixer="based", d_model=256)
    return put(frame, {"original": 0.6}, mixer="base_conv", d_model=256)


def positions(sizes: dict[str, Any]) -> pd.DataFrame:
    axes = {"task": ("ar", "atr"), "mixer": MIXERS, "positions": ("none", "learned"), **sizes}
    frame = put(table({"test_accuracy": 0.9}, **axes), {"test_accuracy": 0.7}, positions="learned")
    frame = put(frame, {"test_accuracy": 1.0}, mixer="attention", positions="learned")
    return put(frame, {"test_accuracy": 0.0562}, mixer="attention", positions="none")


def heldout(sizes: dict[str, Any]) -> pd.DataFrame:
    learnt = {"dev_attribution_key": 0.4, "dev_attribution_value": 0.0, "dev_attribution_query": 0.0}
    frame = table({"dev_accuracy": 0.4, "test_accuracy": 0.1, **learnt}, mixer=MIXERS, **sizes)
    frame = put(frame, {"dev_accuracy": 0.9562, "test_accuracy": 0.6812}, mixer="attention")
    frame = put(put(frame, {"dev_accuracy": 0.65}, mixer="mamba"), {"test_accuracy": 0.2}, mixer="h3")
    frame = put(frame, {"dev_attribution_key": 0.0, "dev_attribution_value": 0.4}, mixer=INDUCTION)
    frame = frame.assign(**{f"attribution_{role}": 0.9 * frame[f"dev_attribution_{role}"] for role in ROLES})
    return put(frame, {"attribution_value": 0.1}, mixer="base_conv")


def layers(sizes: dict[str, Any]) -> pd.DataFrame:
    axes = {"task": ("ar", "atr"), "mixer": MIXERS, "n_layers": (1, 2), **sizes}
    frame = table({"test_accuracy": 0.9125, **LEARNT}, **axes)
    frame = put(frame, {"test_accuracy": 0.9625}, mixer="mamba", n_layers=1)
    frame = put(frame, {"test_accuracy": 0.9625}, mixer="attention", n_layers=2)
    frame = put(frame, {"test_accuracy": 0.7469}, mixer="attention", n_layers=1, task="atr")
    return put(frame, {"test_accuracy": 0.05}, mixer=("attention", "based", "base_conv"), n_layers=1, task="ar")


def hyena_layers(sizes: dict[str, Any]) -> pd.DataFrame:
    frame = put(layers(sizes), {"test_accuracy": 0.3156}, mixer="hyena", n_layers=1)
    return put(frame, {"test_accuracy": 0.2969}, mixer="hyena", n_layers=2)


def depths(sizes: dict[str, Any]) -> pd.DataFrame:
    at = {"mixer0_at_query": 0.6, "mixer1_at_query": 0.1, "mixer2_at_query": 0.0}
    frame = table({"test_accuracy": 0.9, **LEARNT, **at}, mixer=MIXERS, n_layers=(1, 2, 3), **sizes)
    frame = put(frame, {"mixer0_at_query": 0.0, "mixer1_at_query": 0.6}, mixer=("attention", "based"), n_layers=(2, 3))
    frame = put(frame, UNLEARNT, mixer="base_conv")
    frame = put(frame, {"mixer2_at_query": float("nan")}, n_layers=(1, 2))
    return put(frame, {"mixer1_at_query": float("nan")}, n_layers=1)


def siblings(sizes: dict[str, Any]) -> pd.DataFrame:
    frame = table({"test_accuracy": 0.85}, mixer=MIXERS, n_layers=(1, 2, 3), **sizes)
    return put(frame, {"test_accuracy": 0.6}, mixer=("based", "base_conv"), n_layers=1)
