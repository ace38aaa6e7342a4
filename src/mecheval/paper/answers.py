"""The interpreter of `mecheval.paper.questions`: it asks a study's table of chosen runs, one seed at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mecheval.paper import questions as asked
from mecheval.studies.axes import named, say

if TYPE_CHECKING:  # slow to import
    import pandas as pd

Outcome = Literal["reproduced", "contradicted", "not tested"]
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "contradicted", "not tested")
AXES = ("mixer", "task", "n_layers", "positions", "d_conv", "kernel_size", "d_model", "lr")
"""The axes in the order in which evidence names them."""
COLUMNS = {"test_accuracy": "test accuracy", "dev_accuracy": "dev accuracy", "original": "likelihood"}
"""What evidence calls a column."""
FEW = 4
"""Most runs that evidence names; of more it names the first ones and counts the rest."""


class Check(NamedTuple):
    """An answer with its numbers; `open` is a question without an answer, `aside` a remark that does not count."""

    result: Literal["holds", "fails", "open", "aside"]
    said: str


def ask(questions: Sequence[asked.Question], frame: pd.DataFrame, floor: float) -> tuple[Outcome, str]:
    """The outcome over all seeds, and the evidence in words; `floor` is the accuracy of guessing, NaN for trees."""
    by_seed = {
        seed: [check for question in questions for check in answer(question, rows, floor)]
        for seed, rows in frame.groupby("seed")
    }
    if not by_seed:
        return "not tested", "There are no runs."
    outcome = _outcome([check for checks in by_seed.values() for check in checks])
    if len(by_seed) == 1:
        return outcome, _sentences(next(iter(by_seed.values())))
    seeds: dict[Outcome, list[str]] = {name: [] for name in OUTCOMES}
    for seed, checks in by_seed.items():
        seeds[_outcome(checks)].append(str(seed))
    verbs = dict(zip(OUTCOMES, ("holds", "fails", "open"), strict=True))
    tally = ", ".join(
        f"{verbs[name]} in {len(s)} of {len(by_seed)} seeds ({', '.join(s)})" for name, s in seeds.items() if s
    )
    said = " ".join(f"Seed {seed}: {_sentences(checks)}" for seed, checks in by_seed.items())
    return outcome, f"{tally[0].upper()}{tally[1:]}. {said}"


def answer(question: asked.Question, rows: pd.DataFrame, floor: float) -> list[Check]:
    """Ask the rows of one seed."""
    match question:
        case asked.Number():
            return _number(question, rows)
        case asked.Runs():
            return _runs(question, rows)
        case asked.Sides():
            return _sides(question, rows, floor)
        case asked.Second():
            return _second(question, rows)
        case asked.Layer():
            return _layer(question, rows)


def _outcome(checks: Sequence[Check]) -> Outcome:
    """One failure contradicts; one open question, or none at all, leaves it untested."""
    results = {check.result for check in checks}
    if "fails" in results:
        return "contradicted"
    return "reproduced" if "holds" in results and "open" not in results else "not tested"


def _sentences(checks: Sequence[Check]) -> str:
    """What was found; where answers differ, by answer, what fails first."""
    groups = {name: [one.said for one in checks if one.result == name] for name in ("fails", "holds", "open")}
    found = {name: said for name, said in groups.items() if said}
    parts = [(f"{name.capitalize()}: " if len(found) > 1 else "") + "; ".join(said) for name, said in found.items()]
    asides = "; ".join(one.said for one in checks if one.result == "aside")
    return f"{'. '.join(parts)}{f' ({asides})' if asides else ''}."


def _number(q: asked.Number, rows: pd.DataFrame) -> list[Check]:
    found = pick(rows, q.where)
    done = found[(found["status"] == "done") & found[q.column].notna()]
    missing = gaps(found, q.column) if len(found) > 1 else []  # a missing run might be the best one
    if missing or done.empty:
        return missing or [Check("open", f"{_words(q.where)}: {_status(found, q.column)}")]
    top = done.loc[done[q.column].idxmax()]
    near = abs(top[q.column] - q.paper) <= asked.TOLERANCE + 1e-9  # 0.95 is not quite 1 - 0.05 in binary
    which = f"{'the best run is ' * (len(found) > 1)}{_words({**q.where, 'd_model': top['d_model']})}"
    return [_check(near, f"{which}: {COLUMNS[q.column]} {percent(top[q.column])} (paper: {percent(q.paper)})")]


def _runs(q: asked.Runs, rows: pd.DataFrame) -> list[Check]:
    rows, needs = pick(rows, q.where), "original" if q.share else q.column
    missing, ended = gaps(rows, needs), rows[(rows["status"] == "done") & rows[needs].notna()]
    if q.among == "ended":
        ended = rows[rows.index.isin(ended.index) | (rows["status"] == "diverged")]
    counted = learnt(ended) if q.among == "learnt" else ended
    if counted.empty:
        return missing or [_none_learnt("run") if q.among == "learnt" else Check("open", "every run diverged")]
    numbers = _shares(counted, q.column) if q.share else counted[q.column]
    bound = q.below if q.least is None else q.least
    assert bound is not None, f"{q.words} has no limit"
    good = numbers < bound if q.least is None else numbers >= bound
    text = "{:.2f}".format if q.share else percent
    cells = [text(number) if number == number else "diverged" for number in numbers]
    if q.instead is not None:
        others = zip(cells, _shares(counted, q.instead[0]), strict=True)
        cells = [f"{cell}, but {other:.2f} {q.instead[1]}" for cell, other in others]
    told = [f"{name} ({cell})" for name, cell in zip(labels(counted, rows), cells, strict=True)]
    bad = listed([name for name, fine in zip(told, good, strict=True) if not fine])
    who = "runs that learnt" if q.among == "learnt" else "runs"
    if q.enough is not None:
        limit = f"below {text(bound)}" if q.least is None else f"at least {text(bound)}"
        said = f"{q.words} is {limit} in {good.sum()} of {len(good)} {who}{f', but not in {bad}' if bad else ''}"
        if missing:  # runs that are still to come may change a count
            return [*missing, Check("aside", f"so far, {said}")]
        return [_check(q.enough(good.sum(), len(good)), said)]
    if bad:
        limit = f"{text(bound)} or more" if q.least is None else f"below {text(bound)}"
        return [Check("fails", f"{q.words} is {limit} in {(~good).sum()} of {len(good)} {who}: {bad}"), *missing]
    extreme, at = ("highest", numbers.argmax()) if q.least is None else ("lowest", numbers.argmin())
    return [Check("holds", f"{q.words}: the {extreme} of {len(good)} {who} is {told[at]}"), *missing]


def _sides(q: asked.Sides, rows: pd.DataFrame, floor: float) -> list[Check]:
    rows, needs, holds = pick(rows, q.where), q.sides[-1].column, asked.COMPARISONS[q.holds]
    sides = [side for side in q.sides if not side.optional or len(pick(rows, side.where))]
    found: list[tuple[str, list[float], str]] = []  # the width, the number of each side, and these in words
    idle, opens, opens_of_idle = list[str](), list[Check](), list[Check]()
    for place, group in rows.groupby(list(q.by)):
        name = _words(dict(zip(q.by, place, strict=True)))
        parts = [pick(group, side.where) for side in sides]
        here = group[[any(index in part.index for part in parts) for index in group.index]]
        basis = here if q.control is None else parts[q.control]
        if q.counts.startswith("learnt") and learnt(basis, on_dev=q.counts == "learnt on dev").empty:
            opens_of_idle += gaps(basis, needs)
            idle += [] if gaps(basis, needs) else [name]
            continue
        missing = gaps(here, needs)
        values, said = zip(*(_best(side, part, q.by) for side, part in zip(sides, parts, strict=True)), strict=True)
        if any(map(math.isnan, values)) or (missing and q.waits):
            opens += [] if q.skips and not missing else [Check("open", f"{name}: {', '.join(said)}")]
        elif q.counts == "succeeds" and not asked.succeeds(values[-1], floor):
            idle.append(f"{name} ({percent(values[-1])})")
        else:
            found.append((name, list(values), f"{name}: {', '.join(said)}"))
            opens += missing
    if q.enough is None:
        checks = [_check(holds(values, floor), said) for _, values, said in found] + opens + opens_of_idle
    else:
        worse = sum(holds(values[::-1], floor) for _, values, _ in found)
        counted = _counted([(holds(values, floor), said) for _, values, said in found], worse, q.enough)
        checks = opens or ([counted] if found else opens_of_idle)
    if idle:
        who = "no run" if q.control is None else _words(q.sides[q.control].where) or _words(q.where)
        did = "learnt" if q.control is None else "does not succeed" if q.counts == "succeeds" else "did not learn"
        checks.append(Check("aside" if checks else "open", f"{who} {did} at {listed(idle)}"))
    if q.counts == "succeeds" and checks:
        checks.append(Check("aside", f"guessing gives {percent(floor)}"))
    return checks or gaps(rows, needs) or [Check("open", "there are no runs to compare")]


def _counted(found: Sequence[tuple[bool, str]], worse: int, enough: asked.Enough) -> Check:
    """One answer from how many comparisons hold."""
    good, bad = [said for holds, said in found if holds], [said for holds, said in found if not holds]
    said = f"in {len(good)} of {len(found)} comparisons, and the other way round in {worse}"
    return _check(enough(len(good), len(found)), f"{said}; not for {listed(bad)}" if bad else f"{said}: {listed(good)}")


def _best(side: asked.Side, part: pd.DataFrame, by: Sequence[str]) -> tuple[float, str]:
    """The best (or worst) number of a side, NaN if it has none, and the side with its number in words."""
    name = side.name or _words(side.where)
    done = part[(part["status"] == "done") & part[side.column].notna()]
    if done.empty:
        return math.nan, f"{name} {_status(part, side.column)}"
    top = done.loc[[done[side.column].idxmin() if side.worst else done[side.column].idxmax()]]
    which = f" ({labels(top, part, without=by)[0]})" if len(part) > 1 else ""
    return float(top[side.column].iloc[0]), f"{name}{which} {percent(top[side.column].iloc[0])}"


def _second(q: asked.Second, rows: pd.DataFrame) -> list[Check]:
    missing, done = gaps(rows, q.column), rows[rows["status"] == "done"]
    best = done.groupby("mixer")[q.column].max().dropna().sort_values(ascending=False)
    if missing or q.mixer not in best or len(best) < 2:  # a missing mixer might be above
        return missing or [Check("open", "there is no other mixer" if q.mixer in best else f"{q.mixer} diverged")]
    if learnt(pick(rows, {"mixer": q.mixer}), on_dev=True).empty:
        return [Check("open", f"{q.mixer} did not learn")]
    above = [f"{mixer} {percent(value)}" for mixer, value in best.items() if value > best[q.mixer]]
    said = f"best {COLUMNS[q.column]}: {q.mixer} {percent(best[q.mixer])}; above it: {listed(above) or 'none'}"
    return [_check(len(above) == 1, said)]


def _layer(q: asked.Layer, rows: pd.DataFrame) -> list[Check]:
    of = rows[(rows["mixer"] == q.mixer) & (rows["n_layers"] > 1)]
    missing, able = gaps(of, "original"), learnt(of)
    if missing or able.empty:
        opens = missing or [_none_learnt(f"{q.mixer} of 2 or 3 layers")]
        return [Check("aside", one.said) for one in opens] if q.optional else opens
    found = able[[f"mixer{layer}_at_query" for layer in range(3)]].fillna(-1.0).to_numpy(dtype=float)
    tops = found.argmax(axis=1).tolist()
    fine = all(top in q.allowed or (top == n - 1 and -1 in q.allowed)
               for top, n in zip(tops, able["n_layers"], strict=True))  # fmt: skip
    others = [f"{name}: layer {top}" for name, top in zip(labels(able, of), tops, strict=True) if top != q.main]
    said = f"{q.mixer}: layer {q.main} in {tops.count(q.main)} of {len(tops)} runs"
    return [
        _check(fine and asked.most(tops.count(q.main), len(tops)), f"{said} ({listed(others)})" if others else said)
    ]


def pick(rows: pd.DataFrame, where: asked.Where) -> pd.DataFrame:
    """The rows whose axes have these values."""
    here = rows["seed"].notna()
    for axis, value in (where.axes if isinstance(where, asked.Not) else where).items():
        here &= rows[axis].isin(value if isinstance(value, tuple) else (value,))
    return rows[~here if isinstance(where, asked.Not) else here]


def gaps(rows: pd.DataFrame, needs: str) -> list[Check]:
    """An open question if runs are missing; one that diverged is no gap, for that is how it ended."""
    lacking = rows[(rows["status"] != "diverged") & ((rows["status"] != "done") | rows[needs].isna())]
    if rows.empty:
        return [Check("open", "there are no such runs")]
    if lacking.empty:
        return []
    return [
        Check("open", f"{len(lacking)} of {len(rows)} settings are not trained yet: {listed(labels(lacking, rows))}")
    ]


def learnt(rows: pd.DataFrame, *, on_dev: bool = False) -> pd.DataFrame:
    """The runs that learnt to recall, so that there is something to restore; on dev, if test asks for other pairs."""
    roles = [f"dev_attribution_{role}" for role in ("key", "value", "query")]
    lost = rows[roles].max(axis=1) if on_dev else rows["original"] - rows["corrupted"]
    return rows[(rows["status"] == "done") & (lost > asked.LEARNT)]


def labels(rows: pd.DataFrame, among: pd.DataFrame, without: Sequence[str] = ()) -> list[str]:
    """The runs in words: the width, and whatever else distinguishes runs of `among`."""
    axes = [axis for axis in AXES if axis in among and axis not in (*without, "lr")]
    axes = [axis for axis in axes if axis == "d_model" or among[axis].nunique() > 1]
    if not axes or among.duplicated(axes).any():
        axes.append("lr")
    return [_words({axis: row[axis] for axis in axes}) for row in rows.to_dict("records")]


def listed(names: Sequence[str]) -> str:
    """a; b; and 12 more"""
    few = names[:FEW] if len(names) > FEW + 1 else names
    return "; ".join(few) + (f"; and {len(names) - len(few)} more" if len(names) > len(few) else "")


def percent(value: float) -> str:
    """0.9125 -> 91.2 %"""
    return f"{100 * value:.1f} %"


def _shares(rows: pd.DataFrame, column: str) -> pd.Series:
    return (rows[column] - rows["corrupted"]) / (rows["original"] - rows["corrupted"])


def _words(where: asked.Where) -> str:
    """A setting in words: mamba, d_conv 2, d_model 64."""
    axes: Mapping[str, Any] = {} if isinstance(where, asked.Not) else where
    return ", ".join(named(axis, say(axis, axes[axis])) for axis in AXES if axis in axes)


def _status(rows: pd.DataFrame, column: str) -> str:
    """Why these runs have no number."""
    status = "not in the grid" if rows.empty else str(rows["status"].iloc[0])
    return f"has no {COLUMNS.get(column, column)}" if status == "done" else status


def _check(holds: bool, said: str) -> Check:
    return Check("holds" if holds else "fails", said)


def _none_learnt(what: str) -> Check:
    return Check("open", f"no {what} learnt (original - corrupted above {100 * asked.LEARNT:g} points)")
