"""Answers to the questions of `mecheval.paper.questions`: each becomes a list of parts (`mecheval.paper.estimates`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mecheval.paper import questions as asked
from mecheval.paper.estimates import Count, Estimate, Part, Tally, estimate, estimate_share, from_paper
from mecheval.studies.axes import named, say

if TYPE_CHECKING:  # slow to import
    import pandas as pd

Outcome = Literal["reproduced", "contradicted", "inconclusive", "not tested"]
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "contradicted", "inconclusive", "not tested")
AXES = ("mixer", "task", "n_layers", "positions", "d_conv", "kernel_size", "d_model")
"""The axes of a setting in the order in which evidence names them; learning rates are chosen, and seeds are drawn."""
COLUMNS = {"test_accuracy": "test accuracy", "dev_accuracy": "dev accuracy", "original": "likelihood"}
"""What the evidence calls each column."""
FEW = 4
"""Largest number of settings that the evidence names; it counts the others."""
WORDS = {"fails": "Fails", "unsure": "Undecided", "holds": "Holds", "open": "Not run"}
"""What the evidence calls the states of parts, in the order in which it lists them."""


class Cell(NamedTuple):
    """A setting of one side of a comparison, with its number."""

    name: str
    number: Estimate


def ask(
    questions: Sequence[asked.Question], frame: pd.DataFrame, floor: float, documents: int
) -> tuple[Outcome, str, int]:
    """The outcome, the evidence in words, and the most seeds of a setting.

    `floor` is the accuracy of guessing, NaN for trees; `documents` is how many a number of ours is a mean of.
    """
    done = frame[frame["status"].isin(("done", "diverged"))]
    if done.empty:
        return "not tested", "There are no runs.", 0
    answers = [answer(question, frame, floor, documents) for question in questions]
    parts = [part for each in answers for part in each]
    there = sum(part.quantity is not None for part in parts)
    states = [[part.state(there) for part in each] for each in answers]
    said = {
        state: listed([p.words for each, s in zip(answers, states, strict=True)
                       for p, found in zip(each, s, strict=True) if found == state])
        for state in WORDS
    }  # fmt: skip
    evidence = " ".join(f"{WORDS[state]}: {text}." for state, text in said.items() if text)
    seeds = done["seed"].nunique()
    if said["fails"]:
        return "contradicted", evidence, seeds
    complete = [_complete(each, found) for each, found in zip(answers, states, strict=True) if each]
    if not complete or not all(complete):
        return "not tested", evidence or "No run learnt.", seeds
    whole = all(state == "holds" for each in complete for state in each)
    return "reproduced" if whole else "inconclusive", evidence, seeds


def _complete(parts: Sequence[Part], states: Sequence[str]) -> list[str]:
    """The states of a question's parts at widths where no run is missing."""
    gaps = {part.group for part, state in zip(parts, states, strict=True) if state == "open"}
    return [state for part, state in zip(parts, states, strict=True) if part.group not in gaps]


def answer(question: asked.Question, rows: pd.DataFrame, floor: float, documents: int) -> list[Part]:
    """The parts of a question; none if it is optional and its runs did not learn."""
    match question:
        case asked.Number():
            return _number(question, rows, documents)
        case asked.Runs():
            return _runs(question, rows, documents)
        case asked.Sides():
            return list(_sides(question, rows, floor, documents))
        case asked.Second():
            return _second(question, rows, documents)
        case asked.Layer():
            return _layer(question, rows)


def _number(q: asked.Number, rows: pd.DataFrame, documents: int) -> list[Part]:
    found, gaps = dict[str, Part](), list[Part]()
    best, top = "", -math.inf
    for name, cell in cells(pick(rows, q.where), rows):
        values, group = numbers(cell, q.column), str(cell["d_model"].iloc[0])
        if not values:
            gaps.append(Part(name, None, group=group))
            continue
        ours, apart = estimate(values, documents), from_paper(values, documents, q.paper, asked.DOCUMENTS)
        theirs, (low, high) = _shown(estimate([q.paper], asked.DOCUMENTS)), (100 * end for end in apart.interval())
        beside = f"{_shown(ours)}, paper {theirs}, difference {low:+.1f} to {high:+.1f} points"
        found[name] = Part(f"{name}: {COLUMNS[q.column]} {beside}", apart, -asked.TOLERANCE, asked.TOLERANCE, group)
        best, top = (name, ours.value) if ours.value > top else (best, top)
    if q.each or not found:
        return [*found.values(), *gaps]
    if gaps and found[best].state(1) != "holds":  # a missing setting might be the best one
        return [*gaps, found[best]._replace(quantity=None)]
    return [found[best]]


def _runs(q: asked.Runs, rows: pd.DataFrame, documents: int) -> list[Part]:
    low, high = -math.inf if q.least is None else q.least, math.inf if q.below is None else q.below
    columns = (q.column,) if isinstance(q.column, str) else q.column
    parts, hits, idle = list[Part](), list[bool](), False
    for name, cell in cells(pick(rows, q.where), rows):
        done = cell[cell["status"] == "done"].dropna(subset=[*columns, "original"] if q.share else [*columns])
        ended = done if q.among != "ended" else cell[cell["status"].isin(("done", "diverged"))].fillna({columns[0]: 0})
        counted = learnt(ended) if q.among == "learnt" else ended
        group = f"{cell['d_model'].iloc[0]}"
        if ended.empty:
            parts += [Part(name, None, group=group)] if (cell["status"] != "diverged").any() else []
            continue
        best = counted[list(columns)].max(axis=1)
        if q.share:
            runs = list(zip(counted["original"], counted["corrupted"], best, strict=True))
            hits += [low <= (r - c) / (o - c) < high for o, c, r in runs]
            number = estimate_share(runs, documents) if runs else None
        else:
            number = estimate(best.tolist(), documents) if len(best) else None
        idle |= number is None
        if number is not None and not q.mostly:
            words = f"{name}: {q.words} {_share(number) if q.share else _shown(number)}"
            parts.append(Part(words, number, low, high, group))
    if q.mostly and hits:
        tally = Tally(sum(hits), len(hits))
        return [Part(f"{q.words} is {_limit(q)} in {_tallied(tally)} runs that learnt", tally, asked.MOST)]
    return parts or ([Part(f"{_words(q.where) or 'every setting'} did not learn", None)] if idle else [])


def _sides(q: asked.Sides, rows: pd.DataFrame, floor: float, documents: int) -> Iterator[Part]:
    rows, hits, missing = pick(rows, q.where), list[bool](), list[Part]()
    sides = [side for side in q.sides if not side.optional or len(pick(rows, side.where))]
    counted = False
    for place, group in rows.groupby(list(q.by)):
        where = _words(dict(zip(q.by, place, strict=True)))
        parts = [pick(group, side.where) for side in sides]
        if q.mostly:
            hits += _pairs(sides, parts, q)
            continue
        found: list[list[Cell]] = []
        for side, part in zip(sides, parts, strict=True):
            found.append([])
            for name, cell in cells(part, rows, without=q.by):
                values = numbers(cell, side.column)
                name = side.name or name or _words(side.where)
                found[-1] += [Cell(name, estimate(values, documents))] if values else []
                missing += [Part(f"{where}, {name}", None, group=where)] if _is_missing(cell, values) else []
        basis = group if q.control is None else parts[q.control]
        if q.counts.startswith("learnt") and learnt(basis, on_dev=q.counts == "learnt on dev").empty:
            continue
        if not all(found):
            continue
        if q.counts == "succeeds" and found[-1][0].number.value < asked.success(floor):
            continue
        counted = True
        for chosen in product(*found):
            for words, number, low, high in _compared(q.holds, chosen, floor):
                yield Part(f"{where}: {words}", number, low, high, where)
    if hits:
        tally = Tally(sum(hits), len(hits))
        yield Part(f"this holds in {_tallied(tally)} pairs of runs", tally, asked.MOST)
    elif missing:
        yield from missing
    elif not counted:
        yield Part("there is nothing to compare: no control that learnt", None)


def _compared(holds: str, cell: Sequence[Cell], floor: float) -> Iterator[tuple[str, Estimate, float, float]]:
    """What a comparison claims about the sides: a description, a number, and the range in which it must lie."""
    each = [f"{name} {_shown(number)}" for name, number in cell]
    number = [number for _, number in cell]
    if holds in ("above", "level or above"):
        apart = number[0] - number[1]
        low, high = (100 * end for end in apart.interval())
        words = f"{each[0]}, {each[1]}, difference {low:+.1f} to {high:+.1f} points"
        yield words, apart, 0.0 if holds == "above" else -asked.TIE, math.inf
    elif holds == "succeeds":
        yield each[0], number[0], asked.success(floor), math.inf
    else:
        for i in range(2 if holds == "step" else len(cell) - 1):
            yield each[i], number[i], -math.inf, floor + asked.NEAR_FLOOR
        if holds == "step":
            gain = number[2] - number[1] - number[3].shifted(-floor).scaled(asked.STEP)
            yield f"{each[2]} after {each[1]}, {each[3]}", gain, 0.0, math.inf


def _pairs(sides: Sequence[asked.Side], parts: Sequence[pd.DataFrame], q: asked.Sides) -> list[bool]:
    """For each seed that both sides have, whether the first is above the second."""
    if q.counts == "learnt on dev" and learnt(parts[-1], on_dev=True).empty:
        return []
    first, second = (
        part[part["status"] == "done"].set_index("seed")[side.column].dropna()
        for side, part in zip(sides, parts, strict=True)
    )
    both = first.index.intersection(second.index)
    return [bool(first[seed] > second[seed]) for seed in both]


def _second(q: asked.Second, rows: pd.DataFrame, documents: int) -> list[Part]:
    best: dict[str, Cell] = {}
    for name, cell in cells(rows, rows):
        mixer, values = str(cell["mixer"].iloc[0]), numbers(cell, q.column)
        if _is_missing(cell, values):  # a missing run might be above
            return [Part(name, None)]
        here = Cell(name, estimate(values, documents)) if values else None
        if here and (mixer not in best or here.number.value > best[mixer].number.value):
            best[mixer] = here
    if q.mixer not in best or len(best) < 2 or learnt(pick(rows, {"mixer": q.mixer}), on_dev=True).empty:
        return [Part(f"{q.mixer} did not learn, or nothing else is there", None)]
    own = best.pop(q.mixer)
    count = Count(tuple(other.number - own.number for other in best.values()))
    low, high = count.interval()
    said = listed([f"{name} {_shown(number)}" for name, number in (own, *best.values())])
    return [Part(f"{low:.0f} to {high:.0f} mixers are above {q.mixer}: {said}", count, 1, 1)]


def _layer(q: asked.Layer, rows: pd.DataFrame) -> list[Part]:
    able = learnt(rows[(rows["mixer"] == q.mixer) & (rows["n_layers"] > 1)])
    if able.empty:
        return [] if q.optional else [Part(f"{q.mixer} of 2 or 3 layers", None)]
    found = able[[f"mixer{layer}_at_query" for layer in range(3)]].fillna(-1.0).to_numpy(dtype=float)
    tops = zip(found.argmax(axis=1).tolist(), able["n_layers"], strict=True)
    tally = Tally(sum(top in q.allowed or (top == n - 1 and -1 in q.allowed) for top, n in tops), len(able))
    layers = " or ".join("the last layer" if layer < 0 else f"layer {layer}" for layer in q.allowed)
    return [Part(f"{q.mixer}: {layers} in {_tallied(tally)} runs", tally, asked.MOST)]


def cells(rows: pd.DataFrame, among: pd.DataFrame, without: Sequence[str] = ()) -> Iterator[tuple[str, pd.DataFrame]]:
    """The runs of each setting, which differ only in seed or learning rate, and the setting's name."""
    axes = [axis for axis in AXES if axis in rows]
    apart = [axis for axis in axes if axis not in without and (axis == "d_model" or among[axis].nunique() > 1)]
    for place, cell in rows.groupby(axes, sort=False, dropna=False):
        yield _words({axis: value for axis, value in zip(axes, place, strict=True) if axis in apart}), cell


def numbers(cell: pd.DataFrame, column: str) -> list[float]:
    """The numbers of the runs of a setting that are done."""
    found: list[float] = cell.loc[cell["status"] == "done", column].dropna().tolist()
    return found


def pick(rows: pd.DataFrame, where: asked.Where) -> pd.DataFrame:
    """The rows whose axes have these values."""
    here = rows["seed"].notna()
    for axis, value in (where.axes if isinstance(where, asked.Not) else where).items():
        here &= rows[axis].isin(value if isinstance(value, tuple) else (value,))
    return rows[~here if isinstance(where, asked.Not) else here]


def learnt(rows: pd.DataFrame, *, on_dev: bool = False) -> pd.DataFrame:
    """The runs that learnt to recall, so that there is something to restore; on dev, if test asks for other pairs."""
    roles = [f"dev_attribution_{role}" for role in ("key", "value", "query")]
    lost = rows[roles].max(axis=1) if on_dev else rows["original"] - rows["corrupted"]
    return rows[(rows["status"] == "done") & (lost > asked.LEARNT)]


def listed(names: Sequence[str]) -> str:
    """a; b; and 12 more"""
    few = names[:FEW] if len(names) > FEW + 1 else names
    return "; ".join(few) + (f"; and {len(names) - len(few)} more" if len(names) > len(few) else "")


def percent(value: float) -> str:
    """0.9125 -> 91.2 %"""
    return f"{100 * value:.1f} %"


def _is_missing(cell: pd.DataFrame, values: Sequence[float]) -> bool:
    """Whether a setting still lacks a number; a setting whose runs all diverged will never have one."""
    return not values and bool((cell["status"] != "diverged").any())


def _shown(number: Estimate) -> str:
    """97.5 % [95.1, 99.9]"""
    low, high = (100 * min(1.0, max(0.0, end)) for end in number.interval())
    return f"{percent(number.value)} [{low:.1f}, {high:.1f}]"


def _share(number: Estimate) -> str:
    low, high = number.interval()
    return f"{number.value:.2f} [{low:.2f}, {high:.2f}]"


def _tallied(tally: Tally) -> str:
    low, high = tally.interval()
    return f"{tally.hits} of {tally.of} [{100 * low:.0f} %, {100 * high:.0f} %]"


def _limit(q: asked.Runs) -> str:
    return f"below {q.below:g}" if q.least is None else f"{q.least:g} or more"


def _words(where: asked.Where) -> str:
    """A setting in words: mamba, d_conv 2, d_model 64."""
    axes: Mapping[str, Any] = {} if isinstance(where, asked.Not) else where
    return ", ".join(
        named(axis, " or ".join(say(axis, one) for one in value) if isinstance(value, tuple) else say(axis, value))
        for axis in AXES if axis in axes for value in [axes[axis]]
    )  # fmt: skip
