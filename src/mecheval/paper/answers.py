"""Answers to the questions of `mecheval.paper.questions`: each becomes a list of parts (`mecheval.paper.estimates`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mecheval.paper import questions as asked
from mecheval.paper.estimates import Count, Estimate, Part, Tally, estimate, estimate_share, from_paper
from mecheval.paper.rows import Row, different, grouped, is_nan, largest, rows_of
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
    """The outcome, the evidence in words, and how many seeds every setting has that the questions are about.

    `floor` is the accuracy of guessing, NaN for trees; `documents` is how many a number of ours is a mean of.
    """
    if not frame["status"].isin(("done", "diverged")).any():
        return "not tested", "There are no runs.", 0
    rows = rows_of(frame)
    answers = [answer(question, rows, floor, documents) for question in questions]
    parts = [part for each in answers for part in each]
    there = sum(part.quantity is not None for part in parts)
    states = [[part.state(there) for part in each] for each in answers]
    said = {
        state: listed([p.words for each, s in zip(answers, states, strict=True)
                       for p, found in zip(each, s, strict=True) if found == state])
        for state in WORDS
    }  # fmt: skip
    evidence = " ".join(f"{WORDS[state]}: {text}." for state, text in said.items() if text)
    seeds = _seeds(questions, rows)
    if said["fails"]:
        return "contradicted", evidence, seeds
    complete = [_complete(each, found) for each, found in zip(answers, states, strict=True) if each]
    if not complete or not all(complete):
        return "not tested", evidence or "No run learnt.", seeds
    whole = all(state == "holds" for each in complete for state in each)
    return "reproduced" if whole else "inconclusive", evidence, seeds


def _seeds(questions: Sequence[asked.Question], rows: Sequence[Row]) -> int:
    """The fewest seeds of a setting that has runs and that a question is about."""
    ended = [row for row in rows if row["status"] in ("done", "diverged")]
    about = [row for question in questions for row in _concerned(question, ended)]
    return min((len(different(cell, "seed")) for _, cell in cells(about, about)), default=0)


def _concerned(question: asked.Question, rows: Sequence[Row]) -> list[Row]:
    """The rows that a question is about."""
    match question:
        case asked.Number() | asked.Runs():
            return pick(rows, question.where)
        case asked.Sides():
            return [row for side in question.sides for row in pick(pick(rows, question.where), side.where)]
        case asked.Second():
            return list(rows)
        case asked.Layer():
            return pick(rows, {"mixer": question.mixer})


def _complete(parts: Sequence[Part], states: Sequence[str]) -> list[str]:
    """The states of a question's parts at widths where no run is missing."""
    gaps = {part.group for part, state in zip(parts, states, strict=True) if state == "open"}
    return [state for part, state in zip(parts, states, strict=True) if part.group not in gaps]


def answer(question: asked.Question, rows: Sequence[Row], floor: float, documents: int) -> list[Part]:
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


def _number(q: asked.Number, rows: Sequence[Row], documents: int) -> list[Part]:
    found, gaps = dict[str, Part](), list[Part]()
    best, top = "", -math.inf
    for name, cell in cells(pick(rows, q.where), rows):
        values, group = numbers(cell, q.column), str(cell[0]["d_model"])
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


def _runs(q: asked.Runs, rows: Sequence[Row], documents: int) -> list[Part]:
    low, high = -math.inf if q.least is None else q.least, math.inf if q.below is None else q.below
    columns = (q.column,) if isinstance(q.column, str) else q.column
    parts, hits, idle = list[Part](), list[bool](), False
    for name, cell in cells(pick(rows, q.where), rows):
        if q.among == "ended":  # one that diverged counts as 0
            first = columns[0]
            ended: list[Row] = [
                {**row, first: 0.0 if is_nan(row[first]) else row[first]}
                for row in cell if row["status"] in ("done", "diverged")
            ]  # fmt: skip
        else:
            needed = [*columns, "original"] if q.share else columns
            ended = [row for row in cell if row["status"] == "done" and not any(is_nan(row[x]) for x in needed)]
        counted = learnt(ended) if q.among == "learnt" else ended
        group = f"{cell[0]['d_model']}"
        if not ended:
            parts += [Part(name, None, group=group)] if any(row["status"] != "diverged" for row in cell) else []
            continue
        best = [largest(row, columns) for row in counted]
        if q.share:
            runs = [(row["original"], row["corrupted"], top) for row, top in zip(counted, best, strict=True)]
            hits += [low <= (r - c) / (o - c) < high for o, c, r in runs]
            number = estimate_share(runs, documents) if runs else None
        else:
            number = estimate(best, documents) if best else None
        idle |= number is None
        if number is not None and not q.mostly:
            words = f"{name}: {q.words} {_share(number) if q.share else _shown(number)}"
            parts.append(Part(words, number, low, high, group))
    if q.mostly and hits:
        tally = Tally(sum(hits), len(hits))
        return [Part(f"{q.words} is {_limit(q)} in {_tallied(tally)} runs that learnt", tally, asked.MOST)]
    return parts or ([Part(f"{_words(q.where) or 'every setting'} did not learn", None)] if idle else [])


def _sides(q: asked.Sides, rows: Sequence[Row], floor: float, documents: int) -> Iterator[Part]:
    rows, hits, missing = pick(rows, q.where), list[bool](), list[Part]()
    sides = [side for side in q.sides if not side.optional or len(pick(rows, side.where))]
    counted = False
    there = [row for row in rows if not any(is_nan(row[axis]) for axis in q.by)]
    for place, group in sorted(grouped(there, q.by).items(), key=itemgetter(0)):
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
        if q.counts.startswith("learnt") and not learnt(basis, on_dev=q.counts == "learnt on dev"):
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


def _pairs(sides: Sequence[asked.Side], parts: Sequence[Sequence[Row]], q: asked.Sides) -> list[bool]:
    """For each seed that both sides have, whether the first is above the second."""
    if q.counts == "learnt on dev" and not learnt(parts[-1], on_dev=True):
        return []
    first, second = (
        [(row["seed"], row[side.column]) for row in part if row["status"] == "done" and not is_nan(row[side.column])]
        for side, part in zip(sides, parts, strict=True)
    )
    return [ours > theirs for seed, ours in first for other, theirs in second if seed == other]


def _second(q: asked.Second, rows: Sequence[Row], documents: int) -> list[Part]:
    best: dict[str, Cell] = {}
    for name, cell in cells(rows, rows):
        mixer, values = str(cell[0]["mixer"]), numbers(cell, q.column)
        if _is_missing(cell, values):  # a missing run might be above
            return [Part(name, None)]
        here = Cell(name, estimate(values, documents)) if values else None
        if here and (mixer not in best or here.number.value > best[mixer].number.value):
            best[mixer] = here
    if q.mixer not in best or len(best) < 2 or not learnt(pick(rows, {"mixer": q.mixer}), on_dev=True):
        return [Part(f"{q.mixer} did not learn, or nothing else is there", None)]
    own = best.pop(q.mixer)
    count = Count(tuple(other.number - own.number for other in best.values()))
    low, high = count.interval()
    said = listed([f"{name} {_shown(number)}" for name, number in (own, *best.values())])
    return [Part(f"{low:.0f} to {high:.0f} mixers are above {q.mixer}: {said}", count, 1, 1)]


def _layer(q: asked.Layer, rows: Sequence[Row]) -> list[Part]:
    able = learnt([row for row in rows if row["mixer"] == q.mixer and row["n_layers"] > 1])
    if not able:
        return [] if q.optional else [Part(f"{q.mixer} of 2 or 3 layers", None)]
    tops = []
    for row in able:
        found = [-1.0 if is_nan(at := row[f"mixer{layer}_at_query"]) else at for layer in range(3)]
        tops.append((found.index(max(found)), row["n_layers"]))
    tally = Tally(sum(top in q.allowed or (top == n - 1 and -1 in q.allowed) for top, n in tops), len(able))
    layers = " or ".join("the last layer" if layer < 0 else f"layer {layer}" for layer in q.allowed)
    return [Part(f"{q.mixer}: {layers} in {_tallied(tally)} runs", tally, asked.MOST)]


def cells(rows: Sequence[Row], among: Sequence[Row], without: Sequence[str] = ()) -> Iterator[tuple[str, list[Row]]]:
    """The runs of each setting, which differ only in seed or learning rate, and the setting's name."""
    axes = [axis for axis in AXES if rows and axis in rows[0]]
    apart = [axis for axis in axes if axis not in without and (axis == "d_model" or len(different(among, axis)) > 1)]
    for place, cell in grouped(rows, axes).items():
        yield _words({axis: value for axis, value in zip(axes, place, strict=True) if axis in apart}), cell


def numbers(cell: Sequence[Row], column: str) -> list[float]:
    """The numbers of the runs of a setting that are done."""
    return [row[column] for row in cell if row["status"] == "done" and not is_nan(row[column])]


def pick(rows: Sequence[Row], where: asked.Where) -> list[Row]:
    """The rows whose axes have these values."""
    without = isinstance(where, asked.Not)
    axes = {
        axis: value if isinstance(value, tuple) else (value,)
        for axis, value in (where.axes if isinstance(where, asked.Not) else where).items()
    }

    def here(row: Row) -> bool:
        return not is_nan(row["seed"]) and all(row[axis] in values for axis, values in axes.items())

    return [row for row in rows if here(row) != without]


def learnt(rows: Sequence[Row], *, on_dev: bool = False) -> list[Row]:
    """The runs that learnt to recall, so that there is something to restore; on dev, if test asks for other pairs."""
    roles = [f"dev_attribution_{role}" for role in ("key", "value", "query")]

    def lost(row: Row) -> float:
        change: float = largest(row, roles) if on_dev else row["original"] - row["corrupted"]
        return change

    return [row for row in rows if row["status"] == "done" and lost(row) > asked.LEARNT]


def listed(names: Sequence[str]) -> str:
    """a; b; and 12 more"""
    few = names[:FEW] if len(names) > FEW + 1 else names
    return "; ".join(few) + (f"; and {len(names) - len(few)} more" if len(names) > len(few) else "")


def percent(value: float) -> str:
    """0.9125 -> 91.2 %"""
    return f"{100 * value:.1f} %"


def _is_missing(cell: Sequence[Row], values: Sequence[float]) -> bool:
    """Whether a setting still lacks a number; a setting whose runs all diverged will never have one."""
    return not values and any(row["status"] != "diverged" for row in cell)


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
