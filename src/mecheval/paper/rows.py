"""Runs as plain rows, in groups, for the answers to the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # slow to import
    import pandas as pd

Row = Mapping[str, Any]
"""A run: its axes, status and numbers. Plain rows, since a claim asks for few numbers of many small groups of runs, and
to make a table of each group takes many times as long."""


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a table, in which whatever is missing is NaN."""
    names = list(frame)
    columns = [
        [math.nan if gone else value for value, gone in zip(frame[name].tolist(), frame[name].isna(), strict=True)]
        for name in names
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def grouped(rows: Sequence[Row], axes: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by their values of the axes, in the order of first rows."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[axis] for axis in axes), []).append(row)
    return found


def different(rows: Sequence[Row], axis: str) -> set[Any]:
    """The values of an axis, but for missing ones."""
    return {row[axis] for row in rows if not is_nan(row[axis])}


def is_nan(value: Any) -> bool:
    """Whether a value is missing."""
    return bool(value != value)


def largest(row: Row, columns: Sequence[str]) -> float:
    """The largest of the numbers that are there."""
    return max((row[column] for column in columns if not is_nan(row[column])), default=math.nan)
