"""A grid of runs: every combination of some options, each run with its place in the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from mecheval.config import RunConfig, run_config
from mecheval.errors import UnknownName, UserError


@dataclass(frozen=True)
class Point:
    """A run, and the values that set it apart from the others of its grid."""

    axes: Mapping[str, Any]
    config: RunConfig


def grid(base: Mapping[str, Any], **axes: Sequence[Any]) -> list[Point]:
    """A run for every combination of the axes' values, the last axis fastest.

    `base` and axes hold options of `run_config` by name: task, mixer, preset, lr, d_conv, `task.queries`, ...
    """
    points = []
    for values in product(*axes.values()):
        place = dict(zip(axes, values, strict=True))
        points.append(Point(place, run_config(**{**base, **place})))
    return points


def only(points: Sequence[Point], wanted: Mapping[str, Sequence[Any]]) -> list[Point]:
    """The points whose axes have one of the wanted values."""
    for axis, values in wanted.items():
        there = list(dict.fromkeys(point.axes[axis] for point in points if axis in point.axes))
        if not there:
            raise UnknownName("axis", axis, {axis for point in points for axis in point.axes})
        for value in values:
            if value not in there:
                raise UserError(f"no run has {axis} {value}. Choices: {', '.join(str(value) for value in there)}.")
    return [point for point in points if all(point.axes.get(axis) in values for axis, values in wanted.items())]
