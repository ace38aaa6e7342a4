"""Runs as plain rows, in groups, for the claims of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mecheval.studies.axes import named, say
from mecheval.studies.finding import NAMES

if TYPE_CHECKING:  # slow to import
    import pandas as pd

Row = Mapping[str, Any]
"""A run: its axes, status and numbers. Plain rows, since a claim asks for few numbers of many small groups of runs, and
to make a table of each group takes many times as long."""
AXES = ("mixer", "task", "n_layers", "positions", "d_conv", "kernel_size", "d_model")
"""The axes of a setting in the order in which evidence names them; learning rates are chosen, and seeds are drawn."""


class Where:
    """A choice of rows by the values of axes, a tuple for several; or of all others."""

    def __init__(self, axes: Mapping[str, Any], *, others: bool = False) -> None:
        self.axes = {axis: value if isinstance(value, tuple) else (value,) for axis, value in axes.items()}
        self.others = others

    def __call__(self, row: Row) -> bool:
        return all(row[axis] in values for axis, values in self.axes.items()) != self.others

    def pick(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that are chosen."""
        return [row for row in rows if self(row)]

    def __str__(self) -> str:
        """Mamba, d_conv 2, width 64"""
        return "" if self.others else in_words(self.axes)


def only(**axes: Any) -> Where:
    """The rows with these values."""
    return Where(axes)


def but(**axes: Any) -> Where:
    """All rows but those with these values."""
    return Where(axes, others=True)


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
        found.setdefault(tuple(row.get(axis) for axis in axes), []).append(row)
    return found


def cells(rows: Sequence[Row], among: Sequence[Row], without: Sequence[str] = ()) -> Iterator[tuple[str, list[Row]]]:
    """The runs of each setting, which differ only in seed or learning rate, and the setting's name."""
    axes = [axis for axis in AXES if rows and axis in rows[0]]
    apart = [axis for axis in axes if axis not in without and (axis == "d_model" or len(different(among, axis)) > 1)]
    for place, cell in grouped(rows, axes).items():
        yield in_words({axis: (value,) for axis, value in zip(axes, place, strict=True) if axis in apart}), cell


def numbers(cell: Sequence[Row], column: str) -> list[float]:
    """The numbers of the runs of a setting that are done."""
    return [row[column] for row in cell if row["status"] == "done" and not is_nan(row[column])]


def is_missing(cell: Sequence[Row], values: Sequence[float]) -> bool:
    """Whether a setting still lacks a number; a setting whose runs all diverged will never have one."""
    return not values and any(row["status"] != "diverged" for row in cell)


def different(rows: Sequence[Row], axis: str) -> set[Any]:
    """The values of an axis, but for missing ones."""
    return {row[axis] for row in rows if axis in row and not is_nan(row[axis])}


def is_nan(value: Any) -> bool:
    """Whether a value is missing."""
    return bool(value != value)


def largest(row: Row, columns: Sequence[str]) -> float:
    """The largest of the numbers that are there."""
    return max((row[column] for column in columns if not is_nan(row[column])), default=math.nan)


def in_words(axes: Mapping[str, Sequence[Any]]) -> str:
    """A setting in words: Mamba, d_conv 2, width 64."""

    def said(axis: str) -> str:
        text = " or ".join(NAMES.get(value) or say(axis, value) for value in axes[axis])
        return f"width {text}" if axis == "d_model" else named(axis, text)

    return ", ".join(said(axis) for axis in AXES if axis in axes)
