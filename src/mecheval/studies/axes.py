"""Axes of the studies: the order of their values in tables and charts, and their names."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from mecheval.custom import MARK
from mecheval.mixers.pattern import is_pattern
from mecheval.types import MISSING

MIXERS = ("attention", "base_conv", "based", "delta_net", "h3", "hyena", "mamba")
"""The paper's mixers in the order of all tables and charts, from top to bottom."""
NAMES = {"d_model": "d_model", "lr": "learning rate", "d_conv": "d_conv", "kernel_size": "kernel", "layer": "layer",
         "pairs": "pairs", "hops": "hops"}  # fmt: skip
"""Titles of axes whose values need an explanation."""
FALLING = ("lr", "d_conv")
"""Axes whose values are in descending order, as in the paper."""
TEXTS = {
    ("d_conv", 0): "none", ("kernel_size", -1): "long", ("positions", "none"): "without positions",
    ("positions", "learned"): "with positions", ("short_conv", "none"): "no convolution",
    ("short_conv", "own"): "its own", ("short_conv", "A"): "Canon A", ("short_conv", "B"): "Canon B",
    ("recipe", "published"): "as published", ("recipe", "both"): "clipped, shuffled", ("task", "ar"): "AR",
    ("task", "atr"): "ATR",
}  # fmt: skip
"""Values with special names."""
FIRST = {
    "mixer": MIXERS, "positions": ("none", "learned"), "task": ("ar", "atr"), "short_conv": ("none", "own", "A", "B"),
    "recipe": ("published", "clipped", "shuffled", "both"),
}  # fmt: skip
"""The order of names; others follow in the order of the table, with custom mixers first and patterns last."""

TASK_AXES = ("pairs", "hops", "group", "query")
"""Options of tasks, or names for several of them, that have a panel for each value."""
USUAL = ("task", "mixer", "positions", "short_conv", "recipe", *TASK_AXES, "n_layers", "d_model", "lr", "seed")
"""Axes that any study may have; others are options of a mixer."""


def plain(value: Any) -> Any:
    """The value as plain Python; None for NaN and the like."""
    import pandas as pd

    value = value.item() if hasattr(value, "item") else value
    return None if pd.isna(value) else value


def ordered(axis: str, values: Iterable[Any]) -> list[Any]:
    """The different values, plain, in the order in which a chart shows them."""
    there = list(dict.fromkeys(plain(value) for value in values))
    if axis in FIRST:
        first = FIRST[axis]

        def place(value: Any) -> int:
            if value in first:
                return first.index(value)
            if axis != "mixer":
                return len(first)
            return -1 if is_custom(value) else len(first) + is_pattern(str(value))

        return sorted(there, key=place)
    if not all(isinstance(value, int | float) for value in there):
        return there
    if axis == "kernel_size":
        return sorted(there, key=lambda value: math.inf if value < 0 else value)
    return sorted(there, reverse=axis in FALLING)


def is_custom(mixer: Any) -> bool:
    """Whether a mixer, or one in a pattern, is a custom mixer: its name carries the digest of a file."""
    return MARK in str(mixer)


def say(axis: str, value: Any) -> str:
    """A value as tables and charts show it: 3e-4, none, long, 2 layers."""
    if value is None:
        return MISSING
    if (axis, value) in TEXTS:
        return TEXTS[axis, value]
    if axis == "lr":
        digits, power = f"{value:.12e}".split("e")
        return f"{float(digits):.3g}e{int(power)}"
    if axis == "n_layers":
        return f"{value} layer{'' if value == 1 else 's'}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def named(axis: str, text: str) -> str:
    """The text of a value with the name of its axis, such as d_model 64, if the value alone would be unclear."""
    if axis in NAMES:
        return f"{NAMES[axis]} {text}"
    return text if axis in (*USUAL, "quantity") else f"{axis} {text}"
