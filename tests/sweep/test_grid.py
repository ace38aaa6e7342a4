from __future__ import annotations

import pytest

from mecheval.config import run_config
from mecheval.errors import UserError
from mecheval.sweep import grid, only

BASE = {"task": "ar", "preset": "laptop"}


def test_a_grid_has_every_combination_once_the_last_axis_fastest() -> None:
    points = grid(BASE, mixer=("mamba", "based"), d_model=(16, 32), lr=(1e-3, 1e-2))
    assert [tuple(point.axes.values()) for point in points] == [
        (mixer, d, lr) for mixer in ("mamba", "based") for d in (16, 32) for lr in (1e-3, 1e-2)
    ]
    for point in points:
        config = point.config
        assert (config.mixer.name, config.model.d_model, config.optimiser.lr) == tuple(point.axes.values())
        assert config == run_config(**BASE, **point.axes)
    with pytest.raises(UserError, match="lr: input should be greater than 0"):
        grid(BASE, lr=(1e-3, -1e-3))
    assert len({point.config.id for point in points}) == 8


def test_only_keeps_what_is_wanted() -> None:
    points = grid(BASE, mixer=("mamba", "based"), d_model=(16, 32))
    kept = only(points, {"mixer": ["mamba"], "d_model": [32]})
    assert [point.axes for point in kept] == [{"mixer": "mamba", "d_model": 32}]
    assert only(points, {}) == points


def test_unknown_axes_and_values_are_told_with_the_choices() -> None:
    points = grid(BASE, mixer=("mamba", "based"), d_model=(16, 32))
    with pytest.raises(UserError, match=r"unknown axis 'mixr'.*mixer"):
        only(points, {"mixr": ["mamba"]})
    with pytest.raises(UserError, match=r"no run has d_model 64. Choices: 16, 32."):
        only(points, {"d_model": [64]})
