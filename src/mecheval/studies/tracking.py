"""State tracking: documents of 32 elements in training, the elements 33 to 128 in test."""

from collections.abc import Iterator
from typing import Any

from mecheval.mixers.options import BUILT_IN, options_of
from mecheval.studies.canon import WITHOUT
from mecheval.studies.study import Study
from mecheval.sweep import Point, grid

GROUPS = {"laptop": ("parity",), "paper": ("parity", "S3", "S5")}
NEGATIVE = " (beta to 2)"
"""Runs in which one step can turn a sign around."""
RATES = (1e-3, 3e-3, 1e-2)
BASE = {
    "task": "track", "length": 32, "test_length": 128, "n_layers": 1, "positions": "none", "batch_size": 64,
    "evaluate.documents": 256,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "laptop": {"d_model": 32, "steps": 1500, "evaluate.every": 250, "stop_at": None},
    "paper": {"d_model": 128, "data.documents": None, "steps": 20_000},
}


def points(scale: str) -> list[Point]:
    """Every mixer, one layer, no short convolution; and again with negative eigenvalues where it can have them."""
    return [
        Point({"group": group + name, "mixer": mixer, **point.axes}, point.config)
        for group in GROUPS[scale]
        for name, mixer, options in _settings()
        for point in grid(
            {**BASE, **SIZES[scale], "preset": scale, "mixer": mixer, "group": group, **options}, lr=RATES
        )
    ]


def _settings() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What is added to the name of a group, the mixer and its options."""
    for mixer in BUILT_IN:
        options = WITHOUT[mixer] or {}
        yield "", mixer, options
        known = options_of(mixer)
        if known is not None and "allow_neg_eigval" in known.model_fields:
            yield NEGATIVE, mixer, {**options, "allow_neg_eigval": True}


STUDY = Study(
    name="tracking",
    figure="–",
    question="Which mixers track a state beyond the lengths that they were trained on?",
    points=points,
    draw="accuracy",
)
