"""A selection of runs of a study, and what a claim may ask about them: each answer is a list of parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from mecheval.paper import limits as fixed
from mecheval.paper.estimates import Count, Estimate, Part, Tally, estimate, estimate_share, from_paper
from mecheval.paper.limits import Limits
from mecheval.paper.rows import Row, Where, but, cells, grouped, is_missing, is_nan, largest, numbers, only

COLUMNS = {"test_accuracy": "test accuracy", "dev_accuracy": "dev accuracy", "original": "likelihood"}
"""What the evidence calls each column."""
NAMED = 4
"""Largest number of settings that the evidence names; it counts the others."""
Counts = Literal["always", "succeeds", "learnt", "learnt on dev"]
"""The widths at which a comparison counts: all, or those at which its control succeeds or has learnt."""


class Answer(NamedTuple):
    """The parts of an answer, and the runs that it is about."""

    parts: list[Part]
    runs: Sequence[Row]


class Side(NamedTuple):
    """One side of a comparison; where it has several settings, each of them is compared."""

    where: Where
    column: str = "test_accuracy"
    name: str = ""  # default: the axes in words
    optional: bool = False  # left out if the grid has no such runs


class Named(NamedTuple):
    """A setting with its number."""

    name: str
    number: Estimate


@dataclass(frozen=True)
class About:
    """What else counts: the accuracy of guessing (NaN for trees), the documents that a number is a mean of, limits."""

    floor: float
    documents: int
    limits: Limits = fixed.USUAL

    @property
    def success(self) -> float:
        """The accuracy from which a model can do the task."""
        return self.floor + fixed.SUCCEEDS * (1 - self.floor)


@dataclass(frozen=True)
class Runs:
    """Some of the runs of a study, `rows`; names of settings tell what varies among `whole`."""

    rows: Sequence[Row]
    whole: Sequence[Row]
    about: About
    name: str = "every setting"

    def where(self, **axes: Any) -> Runs:
        """The runs with these values, a tuple for several."""
        chosen = only(**axes)
        return replace(self, rows=chosen.pick(self.rows), name=str(chosen))

    def but(self, **axes: Any) -> Runs:
        """All runs but those with these values."""
        return replace(self, rows=but(**axes).pick(self.rows))

    def learnt(self, rows: Sequence[Row] | None = None, *, on_dev: bool = False) -> list[Row]:
        """The runs that learnt to recall, so that there is something to restore; on dev, if test has other pairs."""
        roles = [f"dev_attribution_{role}" for role in ("key", "value", "query")]

        def lost(row: Row) -> float:
            change: float = largest(row, roles) if on_dev else row["original"] - row["corrupted"]
            return change

        rows = self.rows if rows is None else rows
        return [row for row in rows if row["status"] == "done" and lost(row) > self.about.limits.learnt]

    def number(self, column: str, words: str = "", among: Literal["done", "ended"] = "done") -> Numbers:
        """A column of all runs that are done; or that ended, where one that diverged counts as 0."""
        return Numbers(self, (column,), words or COLUMNS[column], among)

    def share(self, *columns: str, at: str) -> Numbers:
        """The share of (original - corrupted) that an intervention brings back, the highest of several, if learnt."""
        return Numbers(self, columns, f"restored share at {at}", "learnt")

    def above(self, first: Where | Side, second: Where | Side, **how: Any) -> Answer:
        """The first side is above the second, wherever that counts."""
        return self._compare("above", (first, second), **how)

    def unbeaten(self, first: Where | Side, second: Where | Side, **how: Any) -> Answer:
        """The first side is at most TIE below the second."""
        return self._compare("unbeaten", (first, second), **how)

    def succeeds(self, first: Where, control: Where) -> Answer:
        """The first side can do the task wherever the control can."""
        return self._compare("succeeds", (first, control), counts="succeeds")

    def guess(self, *sides: Where | Side) -> Answer:
        """All sides but the last, which is the control, do not do better than guessing wherever it can do the task."""
        return self._compare("guess", sides, counts="succeeds")

    def steps(self, *sides: Where) -> Answer:
        """The first two sides guess, and the third gains at once half of what the last gains, where that succeeds."""
        return self._compare("step", sides, counts="succeeds")

    def _compare(
        self, holds: str, sides: Sequence[Where | Side], *, counts: Counts = "always", control: int | None = -1,
        by: Sequence[str] = ("d_model",), column: str = "test_accuracy", mostly: bool = False,
    ) -> Answer:  # fmt: skip
        """At every width, or in every other group; with `mostly`, in most pairs of runs of the same seed.

        Only groups count where the `control` (a side by its index, None for any of them) does what `counts` says.
        """
        given = [side if isinstance(side, Side) else Side(side, column) for side in sides]
        given = [side for side in given if not side.optional or side.where.pick(self.rows)]
        concerned = [row for side in given for row in side.where.pick(self.rows)]
        if mostly:
            hits = list(self._pairs(given, by, counts))
            if hits:
                tally = Tally(sum(hits), len(hits))
                return Answer([Part(f"this holds in {tallied(tally)} pairs of runs", tally, fixed.MOST)], concerned)
        parts = [] if mostly else list(self._groups(holds, given, counts, control, by))
        return Answer(parts or [Part("there is nothing to compare: no control that learnt", None)], concerned)

    def _by(self, by: Sequence[str]) -> list[tuple[str, list[Row]]]:
        there = [row for row in self.rows if not any(is_nan(row[axis]) for axis in by)]
        places = sorted(grouped(there, by).items(), key=itemgetter(0))
        return [(str(only(**dict(zip(by, place, strict=True)))), group) for place, group in places]

    def _groups(
        self, holds: str, sides: Sequence[Side], counts: str, control: int | None, by: Sequence[str]
    ) -> Iterator[Part]:
        missing = list[Part]()
        for where, group in self._by(by):
            parts, found = [side.where.pick(group) for side in sides], list[list[Named]]()
            for side, part in zip(sides, parts, strict=True):
                found.append([])
                for name, cell in cells(part, self.rows, without=by):
                    values = numbers(cell, side.column)
                    name = side.name or name or str(side.where)
                    found[-1] += [Named(name, estimate(values, self.about.documents))] if values else []
                    missing += [Part(f"{where}, {name}", None, group=where)] if is_missing(cell, values) else []
            basis = group if control is None else parts[control]
            if counts.startswith("learnt") and not self.learnt(basis, on_dev=counts == "learnt on dev"):
                continue
            if not all(found) or (counts == "succeeds" and found[-1][0].number.value < self.about.success):
                continue
            for chosen in product(*found):
                for words, number, low, high in self._compared(holds, chosen):
                    yield Part(f"{where}: {words}", number, low, high, where)
        yield from missing

    def _compared(self, holds: str, sides: Sequence[Named]) -> Iterator[tuple[str, Estimate, float, float]]:
        """What a comparison claims about the sides: a description, a number, and the range in which it must lie."""
        each = [f"{name} {percents(number)}" for name, number in sides]
        number = [number for _, number in sides]
        if holds in ("above", "unbeaten"):
            apart = number[0] - number[1]
            low, high = (100 * end for end in apart.interval())
            words = f"{each[0]}, {each[1]}, difference {low:+.1f} to {high:+.1f} points"
            yield words, apart, 0.0 if holds == "above" else -fixed.TIE, math.inf
        elif holds == "succeeds":
            yield each[0], number[0], self.about.success, math.inf
        else:
            for i in range(2 if holds == "step" else len(sides) - 1):
                yield each[i], number[i], -math.inf, self.about.floor + self.about.limits.tolerance
            if holds == "step":
                gain = number[2] - number[1] - number[3].shifted(-self.about.floor).scaled(fixed.STEP)
                yield f"{each[2]} after {each[1]}, {each[3]}", gain, 0.0, math.inf

    def _pairs(self, sides: Sequence[Side], by: Sequence[str], counts: str) -> Iterator[bool]:
        """For each seed that both sides have, whether the first is above the second."""
        for _, group in self._by(by):
            parts = [side.where.pick(group) for side in sides]
            if counts == "learnt on dev" and not self.learnt(parts[-1], on_dev=True):
                continue
            first, second = (
                [(row["seed"], row[side.column]) for row in part if numbers([row], side.column)]
                for side, part in zip(sides, parts, strict=True)
            )
            yield from (ours > theirs for seed, ours in first for other, theirs in second if seed == other)

    def second(self, mixer: str, column: str) -> Answer:
        """By the best number over all widths, exactly one mixer is above this one."""
        best: dict[str, Named] = {}
        for name, cell in cells(self.rows, self.rows):
            kind, values = str(cell[0]["mixer"]), numbers(cell, column)
            if is_missing(cell, values):  # a missing run might be above
                return Answer([Part(name, None)], self.rows)
            here = Named(name, estimate(values, self.about.documents)) if values else None
            if here and (kind not in best or here.number.value > best[kind].number.value):
                best[kind] = here
        if mixer not in best or len(best) < 2 or not self.where(mixer=mixer).learnt(on_dev=True):
            return Answer([Part(f"{mixer} did not learn, or nothing else is there", None)], self.rows)
        own = best.pop(mixer)
        count = Count(tuple(other.number - own.number for other in best.values()))
        low, high = count.interval()
        said = listed([f"{name} {percents(number)}" for name, number in (own, *best.values())])
        return Answer([Part(f"{low:.0f} to {high:.0f} mixers are above {mixer}: {said}", count, 1, 1)], self.rows)

    def mostly_in(self, mixer: str, *layers: int, optional: bool = False) -> Answer:
        """Attribution at the query is highest in one of these layers (-1: the last one) in most runs of a mixer.

        Models of one layer have no choice, so they do not count. If `optional`, a mixer that did not learn is no gap.
        """
        runs = self.where(mixer=mixer)
        able = [row for row in runs.learnt() if row["n_layers"] > 1]
        if not able:
            return Answer([] if optional else [Part(f"{mixer} of 2 or 3 layers", None)], runs.rows)
        hits = 0
        for row in able:
            found = [-1.0 if is_nan(at := row[f"mixer{layer}_at_query"]) else at for layer in range(3)]
            top = found.index(max(found))
            hits += top in layers or (top == row["n_layers"] - 1 and -1 in layers)
        tally = Tally(hits, len(able))
        said = " or ".join("the last layer" if layer < 0 else f"layer {layer}" for layer in layers)
        return Answer([Part(f"{mixer}: {said} in {tallied(tally)} runs", tally, fixed.MOST)], runs.rows)


@dataclass(frozen=True)
class Numbers:
    """Numbers of a selection of runs: a column, or a restored share of those that learnt."""

    runs: Runs
    columns: tuple[str, ...]
    words: str
    among: Literal["done", "ended", "learnt"]

    def at_least(self, low: float) -> Answer:
        """The number of every setting is at least this."""
        return Answer(list(self._each(low, math.inf)), self.runs.rows)

    def below(self, high: float) -> Answer:
        """The number of every setting is below this."""
        return Answer(list(self._each(-math.inf, high)), self.runs.rows)

    def mostly_at_least(self, low: float) -> Answer:
        """The share of most runs that learnt is at least this."""
        hits = [self._share(row) >= low for _, cell in self._cells() for row in self._counted(cell)]
        if not hits:
            return Answer(list(self._each(low, math.inf)), self.runs.rows)
        tally = Tally(sum(hits), len(hits))
        words = f"the {self.words} is {low:g} or more in {tallied(tally)} runs that learnt"
        return Answer([Part(words, tally, fixed.MOST)], self.runs.rows)

    def near(self, paper: float) -> Answer:
        """The number of every setting is within the tolerance of the paper's."""
        return Answer(list(self._beside(paper).values()), self.runs.rows)

    def best_near(self, paper: float) -> Answer:
        """The highest number of a setting is within the tolerance of the paper's."""
        parts = self._beside(paper)
        found = {name: part for name, part in parts.items() if part.quantity is not None}
        gaps = [part for part in parts.values() if part.quantity is None]
        if not found:
            return Answer(gaps, self.runs.rows)
        best = max(found.values(), key=lambda part: part.quantity.value if isinstance(part.quantity, Estimate) else 0)
        if gaps and best.state(1) != "holds":  # a missing setting might be the best one
            return Answer([*gaps, best._replace(quantity=None)], self.runs.rows)
        return Answer([best], self.runs.rows)

    def _cells(self) -> Iterator[tuple[str, list[Row]]]:
        return cells(self.runs.rows, self.runs.whole)

    def _ended(self, cell: Sequence[Row]) -> list[Row]:
        first = self.columns[0]
        if self.among == "ended":
            ended = [row for row in cell if row["status"] in ("done", "diverged")]
            return [{**row, first: 0.0 if is_nan(row[first]) else row[first]} for row in ended]
        needed = (*self.columns, "original") if self.among == "learnt" else self.columns
        return [row for row in cell if row["status"] == "done" and not any(is_nan(row[name]) for name in needed)]

    def _counted(self, cell: Sequence[Row]) -> list[Row]:
        ended = self._ended(cell)
        return self.runs.learnt(ended) if self.among == "learnt" else ended

    def _share(self, row: Row) -> float:
        share: float = (largest(row, self.columns) - row["corrupted"]) / (row["original"] - row["corrupted"])
        return share

    def _each(self, low: float, high: float) -> Iterator[Part]:
        idle, some = False, False
        for name, cell in self._cells():
            group = f"{cell[0]['d_model']}"
            if not self._ended(cell):
                if any(row["status"] != "diverged" for row in cell):
                    some = True
                    yield Part(name, None, group=group)
                continue
            counted = self._counted(cell)
            if not counted:
                idle = True
                continue
            some, best = True, [largest(row, self.columns) for row in counted]
            if self.among == "learnt":
                runs = [(row["original"], row["corrupted"], top) for row, top in zip(counted, best, strict=True)]
                number = estimate_share(runs, self.runs.about.documents)
                yield Part(f"{name}: {self.words} {shared(number)}", number, low, high, group)
            else:
                number = estimate(best, self.runs.about.documents)
                yield Part(f"{name}: {self.words} {percents(number)}", number, low, high, group)
        if idle and not some:
            yield Part(f"{self.runs.name} did not learn", None)

    def _beside(self, paper: float) -> dict[str, Part]:
        found, documents = dict[str, Part](), self.runs.about.documents
        tolerance, [column] = self.runs.about.limits.tolerance, self.columns
        for name, cell in self._cells():
            values, group = numbers(cell, column), str(cell[0]["d_model"])
            if not values:
                found[name] = Part(name, None, group=group)
                continue
            apart = from_paper(values, documents, paper, fixed.DOCUMENTS)
            theirs, (low, high) = percents(estimate([paper], fixed.DOCUMENTS)), (100 * end for end in apart.interval())
            beside = f"{percents(estimate(values, documents))}, paper {theirs}"
            words = f"{name}: {self.words} {beside}, difference {low:+.1f} to {high:+.1f} points"
            found[name] = Part(words, apart, -tolerance, tolerance, group)
        return found


def listed(names: Sequence[str]) -> str:
    """a; b; and 12 more"""
    few = names[:NAMED] if len(names) > NAMED + 1 else names
    return "; ".join(few) + (f"; and {len(names) - len(few)} more" if len(names) > len(few) else "")


def percents(number: Estimate) -> str:
    """97.5 % [95.1, 99.9]"""
    low, high = (100 * min(1.0, max(0.0, end)) for end in number.interval())
    return f"{100 * number.value:.1f} % [{low:.1f}, {high:.1f}]"


def shared(number: Estimate) -> str:
    """0.62 [0.21, 1.03]"""
    low, high = number.interval()
    return f"{number.value:.2f} [{low:.2f}, {high:.2f}]"


def tallied(tally: Tally) -> str:
    """9 of 10 [55 %, 100 %]"""
    low, high = tally.interval()
    return f"{tally.hits} of {tally.of} [{100 * low:.0f} %, {100 * high:.0f} %]"
