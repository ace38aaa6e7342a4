"""Small questions to the rows of one seed; claims are put together from them.

`rows` is always a study's table of chosen runs, of one seed. Axes are given by name: mixer="mamba", d_model=64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mecheval.paper.thresholds import LEARNT, NEAR_FLOOR, SUCCEEDS, TIE, TOLERANCE

if TYPE_CHECKING:  # slow to import
    import pandas as pd

AXES = ("mixer", "task", "n_layers", "positions", "d_conv", "kernel_size", "d_model", "lr")
FEW = 4
"""Runs that evidence names; of more it says how many."""


class Check(NamedTuple):
    """An answer with its numbers.

    `open` is a question that cannot be answered, and why; `aside` is what does not count but ought to be known.
    """

    result: Literal["holds", "fails", "open", "aside"]
    said: str


def check(holds: bool, said: str) -> Check:
    """A question that was answered."""
    return Check("holds" if holds else "fails", said)


def percent(value: float) -> str:
    """0.9125 -> 91.2 %"""
    return f"{100 * value:.1f} %"


def named(axes: Mapping[str, Any]) -> str:
    """A setting in words: mamba, d_conv 2, d 64."""
    return ", ".join(_word(axis, axes[axis]) for axis in AXES if axis in axes)


def _word(axis: str, value: Any) -> str:
    match axis:
        case "mixer":
            return str(value)
        case "task":
            return str(value).upper()
        case "n_layers":
            return f"{value} layer{'s' if value > 1 else ''}"
        case "positions":
            return "no positions" if value == "none" else "positions"
        case "d_conv":
            return f"d_conv {value}" if value else "no convolution"
        case "kernel_size":
            return f"kernel {value}" if value > 0 else "long convolution"
        case "d_model":
            return f"d {value}"
    return f"{axis} {value:g}"


def labels(rows: pd.DataFrame, among: pd.DataFrame) -> list[str]:
    """The runs in words: the width, and whatever else tells runs of `among` apart."""
    told = [
        axis for axis in AXES if axis in among and axis != "lr" and (axis == "d_model" or among[axis].nunique() > 1)
    ]
    if among.duplicated(told).any():
        told.append("lr")
    return [named({axis: row[axis] for axis in told}) for row in rows.to_dict("records")]


def listed(names: Sequence[str]) -> str:
    """a; b; and 12 more"""
    few = names[:FEW] if len(names) > FEW + 1 else names
    return "; ".join(few) + (f"; and {len(names) - len(few)} more" if len(names) > len(few) else "")


def pick(rows: pd.DataFrame, **axes: Any) -> pd.DataFrame:
    """The rows whose axes have these values; a tuple is one of several values."""
    here = rows["seed"].notna()
    for axis, value in axes.items():
        here &= rows[axis].isin(value) if isinstance(value, tuple) else rows[axis] == value
    return rows[here]


def widths(rows: pd.DataFrame) -> list[int]:
    """The widths there are, or ought to be."""
    return sorted(int(width) for width in rows["d_model"].unique())


def number(rows: pd.DataFrame, column: str, **axes: Any) -> float:
    """The number of the one run with these axes; NaN where the run is not done."""
    import pandas as pd

    found = pick(rows, **axes, status="done")
    assert len(found) <= 1, f"several runs have {named(axes)}"
    return math.nan if found.empty or pd.isna(found[column].iloc[0]) else float(found[column].iloc[0])


def why(rows: pd.DataFrame, column: str, **axes: Any) -> Check:
    """Why there is no such number."""
    found = pick(rows, **axes)
    status = "not in the grid" if found.empty else str(found["status"].iloc[0])
    return Check("open", f"{named(axes)}: {f'no {column}' if status == 'done' else status}")


def gaps(rows: pd.DataFrame, column: str) -> list[Check]:
    """An open question if runs are missing; one that diverged is no gap, for that is how it ended."""
    lacking = rows[(rows["status"] != "diverged") & ((rows["status"] != "done") | rows[column].isna())]
    if rows.empty:
        return [Check("open", "there are no such runs")]
    if lacking.empty:
        return []
    return [Check("open", f"{len(lacking)} of {len(rows)} runs have no result yet: {listed(labels(lacking, rows))}")]


def close(rows: pd.DataFrame, column: str, paper: float, **axes: Any) -> Check:
    """Is a number within TOLERANCE of the paper's?"""
    ours = number(rows, column, **axes)
    if math.isnan(ours):
        return why(rows, column, **axes)
    return check(within(ours, paper), f"{named(axes)}: {percent(ours)} (paper: {percent(paper)})")


def within(ours: float, paper: float) -> bool:
    """Is it within TOLERANCE? With a little more, because 0.95 is not quite 1 - 0.05 in binary."""
    return abs(ours - paper) <= TOLERANCE + 1e-9


def succeeds(accuracy: float, floor: float) -> bool:
    """Can a model of this accuracy do the task?"""
    return accuracy >= floor + SUCCEEDS * (1 - floor)


def at_floor(accuracy: float, floor: float) -> bool:
    """Does a model of this accuracy do no better than guessing among the document's values?"""
    return accuracy <= floor + NEAR_FLOOR


def learnt(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs that learnt to recall, so that there is something to restore."""
    return rows[(rows["status"] == "done") & (rows["original"] - rows["corrupted"] > LEARNT)]


def none_learnt(what: str) -> Check:
    """The open question that is left where there is nothing to restore."""
    return Check("open", f"no {what} learnt (original - corrupted above {100 * LEARNT:g} points)")


def shares(rows: pd.DataFrame, column: str) -> pd.Series:
    """The share of what corruption took away that an intervention brings back, by run."""
    return (rows[column] - rows["corrupted"]) / (rows["original"] - rows["corrupted"])


def beside(
    rows: pd.DataFrame,
    floor: float,
    control: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    holds: Callable[[float, Sequence[float]], bool],
) -> list[Check]:
    """At every width where the control's accuracy is a success: does `holds(the control's, the others')`?

    Where the control fails, others say nothing: then nothing was learnt at this width, whatever the setting.
    """
    checks, idle = [], []
    for d in widths(rows):
        settings = [*others, control]
        found = [number(rows, "test_accuracy", d_model=d, **axes) for axes in settings]
        lacking = [axes for axes, accuracy in zip(settings, found, strict=True) if math.isnan(accuracy)]
        if lacking:
            checks += [why(rows, "test_accuracy", d_model=d, **axes) for axes in lacking]
        elif not succeeds(found[-1], floor):
            idle.append(f"d {d} ({percent(found[-1])})")
        else:
            told = ", ".join(f"{named(axes)} {percent(acc)}" for axes, acc in zip(settings, found, strict=True))
            checks.append(check(holds(found[-1], found[:-1]), f"d {d}: {told}"))
    if idle:
        what = f"{named(control)}, the control, does not succeed itself at {listed(idle)}"
        checks.append(Check("aside" if checks else "open", what))
    return [*checks, Check("aside", f"guessing gives {percent(floor)}")] if checks else gaps(rows, "test_accuracy")


def fail_beside(
    rows: pd.DataFrame, floor: float, failing: Sequence[Mapping[str, Any]], control: Mapping[str, Any]
) -> list[Check]:
    """At every width where the control succeeds, do the failing settings only guess?"""
    return beside(rows, floor, control, failing, lambda _, others: all(at_floor(each, floor) for each in others))


def unbeaten(rows: pd.DataFrame, mixer: str, column: str, least: int = 0) -> list[Check]:
    """At every width (from `least` up) where any mixer learnt to recall, is none better than this one?"""
    checks = []
    for d in widths(rows):
        here = pick(rows, d_model=d)
        if d < least:
            continue
        if learnt(here).empty:
            checks.append(gaps(here, column) or [Check("aside", f"d {d}: no mixer learnt")])
            continue
        ours = number(here, column, mixer=mixer)
        others = here[(here["mixer"] != mixer) & (here["status"] == "done") & here[column].notna()]
        if math.isnan(ours) or others.empty:
            checks.append(gaps(here, column) or [why(rows, column, mixer=mixer, d_model=d)])
            continue
        best = others.loc[others[column].idxmax()]
        said = f"d {d}: {mixer} {percent(ours)}, the best other ({best['mixer']}) {percent(best[column])}"
        verdict = check(ours >= best[column] - TIE, said)
        checks.append([verdict, *gaps(here, column)])
    flat = [one for several in checks for one in several]
    if all(one.result == "aside" for one in flat):
        return [*flat, none_learnt("mixer")]
    return flat
