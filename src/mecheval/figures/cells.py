"""Runs to cells of a chart: seeds become one number with its range, and what has no number says why."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mecheval.errors import UnknownName, UserError
from mecheval.figures.style import MISSING
from mecheval.studies.axes import named, ordered, plain, say

if TYPE_CHECKING:  # slow to import
    import pandas as pd

APART = 0.1
"""Seeds whose numbers differ by more than this are marked: their mean stands for none of them."""
UNLEARNT = "not learnt"
"""The status of runs that are left out because there is nothing to attribute."""
STATES = {
    "diverged": "div", "failed": "fail", "running": "…", "interrupted": "…", UNLEARNT: "low", "done": "n/a",
    "missing": MISSING,
}  # fmt: skip
"""What stands in a cell without a number, by the status of its runs; the first that applies."""
MEANINGS = {
    "div": "div: diverged", "fail": "fail: failed", "…": "…: not finished",
    "low": "low: likelihood too small to attribute", "n/a": "n/a: not measured", MISSING: f"{MISSING}: not run",
}  # fmt: skip
DETAILS = ("shown", "range", "seeds", "status", "rate", "verdict", "runs")
"""Fields of a cell that a tooltip shows below its place."""
FEW = 4

Cell = dict[str, Any]
"""Its place (axis -> text) and quantity, the number `value` (or None) with `low` and `high`, the text `label` that
stands for it, `apart` where seeds disagree, and the `DETAILS`: plain data, so that it can go into a chart as it is."""


def cells(frame: pd.DataFrame, columns: Mapping[str, str], axes: Sequence[str]) -> list[Cell]:
    """A cell for each of the columns (name -> quantity, for people) and each combination of the axes' values.

    There is a cell even where there is no run: a gap in a grid is to be seen.
    """
    for name in (*columns, *axes):
        if name not in frame.columns:
            raise UnknownName("column of the study", name, map(str, frame.columns))
    if frame.empty:
        raise UserError("there are no runs to show.")
    found = defaultdict(list)
    for run in frame.to_dict("records"):
        found[tuple(plain(run[axis]) for axis in axes)].append(run)
    made = []
    for place in product(*(ordered(axis, frame[axis]) for axis in axes)):
        runs = found.get(place, [])
        seeds = [plain(run.get("seed")) for run in runs]
        texts = {axis: say(axis, value) for axis, value in zip(axes, place, strict=True)}
        if len(set(seeds)) < len(seeds):
            words = ", ".join(named(axis, text) for axis, text in texts.items())
            raise UserError(f"there are several runs of one seed for {words}; choose one learning rate first.")
        for column, quantity in columns.items():
            made.append({**texts, "quantity": quantity, **_summary(runs, column)})
    return made


def number(run: Mapping[str, Any], column: str) -> float | None:
    """What a run has in a column; None where it has none, and where it did not end well: that is no result."""
    value = plain(run[column]) if run["status"] == "done" else None
    return None if value is None or math.isinf(value) else float(value)


def percent(value: float) -> str:
    """One decimal, and no minus before a zero."""
    text = f"{100 * value:.1f}"
    return "0.0" if text == "-0.0" else text


def _summary(runs: Sequence[Mapping[str, Any]], column: str) -> Cell:
    values = [value for value in (number(run, column) for run in runs) if value is not None]
    statuses = [run["status"] for run in runs] or ["missing"]
    summary: Cell = {
        "value": None, "low": None, "high": None, "apart": False,
        "label": next((text for status, text in STATES.items() if status in statuses), MISSING),
        "shown": "none", "range": "none", "seeds": f"{len(values)} of {len(runs)}", "status": _few(statuses),
        "rate": _few(say("lr", plain(run.get("lr"))) for run in runs),
        "verdict": _few(plain(run.get("verdict")) for run in runs), "runs": _few(plain(run.get("run")) for run in runs),
    }  # fmt: skip
    if values:
        low, high = min(values), max(values)
        label = percent(fmean(values))
        summary |= {
            "value": fmean(values), "low": low, "high": high, "apart": high - low > APART,
            "label": label if len(values) == len(runs) else f"{label}*",
            "shown": f"{label} %", "range": f"{percent(low)} to {percent(high)} %",
        }  # fmt: skip
    return summary


def _few(texts: Iterable[str | None]) -> str:
    """Different texts in one line."""
    there = list(dict.fromkeys(text for text in texts if text))
    return ", ".join(there[:FEW]) + (", …" if len(there) > FEW else "") if there else MISSING


def notes(shown: Sequence[Cell], *, ranges: str = "", corners: bool = False) -> list[str]:
    """What the marks and texts in these cells mean, in one line; none where there are numbers only.

    `ranges` says how the chart shows those of seeds, if it does; `corners` are marked where seeds are `apart`.
    """
    labels = {cell["label"] for cell in shown}
    said = [meaning for label, meaning in MEANINGS.items() if label in labels]
    if any(label.endswith("*") for label in labels):
        said.append("*: some seeds have no result")
    if corners and any(cell["apart"] for cell in shown):
        said.append(f"marked corner: seeds differ by more than {100 * APART:.0f} points")
    if any(cell["low"] != cell["high"] for cell in shown):
        said.insert(0, f"means over seeds{ranges and ', '}{ranges}")
    return ["; ".join(said)] if said else []


def extremes(shown: Sequence[Cell], axes: Sequence[str]) -> str:
    """The largest and the smallest number of these cells, and how many have none."""
    there = [cell for cell in shown if cell["value"] is not None]
    if not there:
        return "no results"
    top, bottom = max(there, key=lambda cell: cell["value"]), min(there, key=lambda cell: cell["value"])
    said = f"largest {percent(top['value'])} % ({_place(top, axes)})"
    if len(there) > 1:
        said += f", smallest {percent(bottom['value'])} % ({_place(bottom, axes)})"
    gaps = len(shown) - len(there)
    return f"{said}, {gaps} of {len(shown)} without a result" if gaps else said


def _place(cell: Cell, axes: Sequence[str]) -> str:
    return ", ".join(named(axis, cell[axis]) for axis in axes)
