"""Runs as cells of a chart: seeds become one number with its range, and a cell without a number says why."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from mecheval.errors import UserError
from mecheval.studies import StudyTable
from mecheval.studies.axes import named, plain, say
from mecheval.types import MISSING

APART = 0.1
"""Difference between seeds above which a cell is marked, because the mean describes none of them."""
UNLEARNT = "not learnt"
"""The status of runs that are left out because there is nothing to attribute."""
STATES = {
    "diverged": ("div", "diverged"), "failed": ("fail", "failed"), "running": ("…", "not finished"),
    "interrupted": ("…", "not finished"), UNLEARNT: ("low", "likelihood too small to attribute"),
    "done": ("n/a", "not measured"), "missing": (MISSING, "not run"),
}  # fmt: skip
"""Status of the runs -> text in a cell without a number, and what it means; the first status that applies counts."""
DETAILS = ("shown", "range", "seeds", "status", "rate", "verdict", "runs")
"""Fields of a cell that a tooltip shows below its place."""
FEW = 4

Cell = dict[str, Any]
"""A row of a chart: its place (axis -> text) and `quantity`; the number `value` (or None) with `low` and `high`; the
text `label` that stands for it; `apart` where seeds disagree; and the `DETAILS`."""


def cells(table: StudyTable, columns: Mapping[str, str], axes: Sequence[str]) -> list[Cell]:
    """A cell for each of the columns (name -> title) and each combination of the values of the axes.

    There is a cell even where there is no run, so that gaps in a grid are seen.
    """
    if table.frame.empty:
        raise UserError("there are no runs to show.")
    places = list(product(*(table.axis(axis) for axis in axes)))
    found = defaultdict(list)
    for run in table.frame.to_dict("records"):
        found[tuple(plain(run[axis]) for axis in axes)].append(run)
    made = []
    for place in places:
        runs = found[place]
        texts = {axis: say(axis, value) for axis, value in zip(axes, place, strict=True)}
        if len({plain(run["seed"]) for run in runs}) < len(runs):
            where = _place(texts, axes)
            raise UserError(f"there are several runs of one seed for {where}; choose one learning rate first.")
        about = {
            "status": few(run["status"] for run in runs),
            "rate": few(say("lr", plain(run["lr"])) for run in runs),
            "verdict": few(plain(run["verdict"]) for run in runs), "runs": few(plain(run["run"]) for run in runs),
        }  # fmt: skip
        made += [{**texts, "quantity": title, **about, **_summary(runs, name)} for name, title in columns.items()]
    return made


def number(run: Mapping[str, Any], column: str) -> float | None:
    """The number of a run in a column; None where it has none, or where the run did not finish well."""
    value = plain(run[column]) if run["status"] == "done" else None
    return None if value is None or math.isinf(value) else float(value)


def percent(value: float) -> str:
    """One decimal, and no minus before a zero."""
    text = f"{100 * value:.1f}"
    return "0.0" if text == "-0.0" else text


def _summary(runs: Sequence[Mapping[str, Any]], column: str) -> Cell:
    """What the runs of a cell have in a column: their mean, or why there is none."""
    values = [value for run in runs if (value := number(run, column)) is not None]
    seeds = f"{len(values)} of {len(runs)}"
    if not values:
        statuses = [run["status"] for run in runs]
        label = next((text for status, (text, _) in STATES.items() if status in statuses), MISSING)
        return dict.fromkeys(("value", "low", "high")) | {
            "apart": False, "label": label, "shown": "none", "range": "none", "seeds": seeds,
            **({} if runs else {"status": "missing"}),
        }  # fmt: skip
    mean, low, high = fmean(values), min(values), max(values)
    begun = sum(run["status"] != "missing" for run in runs)  # of one setting there may be more seeds than of another
    return {
        "value": mean, "low": low, "high": high, "apart": high - low > APART,
        "label": percent(mean) + "*" * (len(values) < begun), "shown": f"{percent(mean)} %",
        "range": f"{percent(low)} to {percent(high)} %", "seeds": seeds,
    }  # fmt: skip


def few(texts: Iterable[str | None]) -> str:
    """The first few distinct texts in one line."""
    there = list(dict.fromkeys(text for text in texts if text))
    return ", ".join(there[:FEW]) + ", …" * (len(there) > FEW) if there else MISSING


def notes(shown: Sequence[Cell], *, ranges: str = "", corners: bool = False) -> list[str]:
    """What the marks and texts in these cells mean, in one line; none where there are only numbers.

    `ranges` says how the chart shows the range of seeds, if it does; `corners` are marked where seeds are `apart`.
    """
    labels = {cell["label"] for cell in shown}
    said = list(dict.fromkeys(f"{label}: {meaning}" for label, meaning in STATES.values() if label in labels))
    if any(label.endswith("*") for label in labels):
        said.append("*: some seeds have no result")
    if corners and any(cell["apart"] for cell in shown):
        said.append(f"marked corner: seeds differ by more than {100 * APART:.0f} points")
    if any(cell["low"] != cell["high"] for cell in shown):
        said.insert(0, f"means over seeds{ranges and ', '}{ranges}")
    return ["; ".join(said)] if said else []


def texts_of(shown: Sequence[Cell], field: str) -> list[str]:
    """The different texts in a field, in the order of the cells."""
    return list(dict.fromkeys(cell[field] for cell in shown))


def described(shown: Sequence[Cell], field: str, axes: Sequence[str]) -> str:
    """The main numbers of each panel in words; a panel holds the cells with the same text in `field`."""
    of = {name: [cell for cell in shown if cell[field] == name] for name in texts_of(shown, field)}
    return "; ".join(f"{named(field, name)}: {_extremes(part, axes)}" for name, part in of.items()) + "."


def _extremes(shown: Sequence[Cell], axes: Sequence[str]) -> str:
    """The largest and the smallest number of these cells, and how many have none."""
    there = sorted((cell for cell in shown if cell["value"] is not None), key=lambda cell: -cell["value"])
    if not there:
        return "no results"
    said = f"largest {percent(there[0]['value'])} % ({_place(there[0], axes)})"
    if len(there) > 1:
        smallest = min(there, key=lambda cell: cell["value"])
        said += f", smallest {percent(smallest['value'])} % ({_place(smallest, axes)})"
    gaps = len(shown) - len(there)
    return f"{said}, {gaps} of {len(shown)} without a result" if gaps else said


def _place(cell: Mapping[str, Any], axes: Sequence[str]) -> str:
    return ", ".join(named(axis, cell[axis]) for axis in axes)
