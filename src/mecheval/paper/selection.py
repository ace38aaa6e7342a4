"""A selection of runs of a study, and what a claim may ask about them: each answer is a list of parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from mecheval.figures.heatmap import label
from mecheval.paper import limits as fixed
from mecheval.paper.about import About, Named, listed, percents, tallied
from mecheval.paper.estimates import Apart, Count, Part, Tally, estimate, estimate_share, from_paper
from mecheval.paper.rows import Row, Where, but, cells, different, grouped, is_missing, is_nan, largest, numbers, only
from mecheval.studies.finding import NAMES

COLUMNS = {"test_accuracy": "test accuracy", "dev_accuracy": "dev accuracy", "original": "likelihood"}
"""What the evidence calls each column."""
Counts = Literal["always", "succeeds", "learnt", "learnt on dev"]
"""The widths at which a comparison counts: all, or those at which its control succeeds or has learnt."""


class Answer(NamedTuple):
    """The parts of an answer and the runs that it is about; and the parts of a more lenient reading, if it has one."""

    parts: list[Part]
    runs: Sequence[Row]
    lenient: list[Part] | None = None


class Side(NamedTuple):
    """One side of a comparison; where it has several settings, each of them is compared."""

    where: Where
    column: str = "test_accuracy"
    name: str = ""  # default: the axes in words
    optional: bool = False  # left out if the grid has no such runs


@dataclass(frozen=True)
class Runs:
    """Some of the runs of a study, `rows`; names of settings tell what varies among `whole`."""

    rows: Sequence[Row]
    whole: Sequence[Row]
    about: About
    name: str = "every setting"
    others: Mapping[str, Sequence[Row]] = field(default_factory=dict)  # of other studies that the claim is about

    def of(self, study: str) -> Runs:
        """All runs of another study."""
        return replace(self, rows=self.others[study], whole=self.others[study])

    def __add__(self, other: Runs) -> Runs:
        """The runs of both."""
        return replace(self, rows=[*self.rows, *other.rows])

    def where(self, **axes: Any) -> Runs:
        """The runs with these values, a tuple for several."""
        chosen = only(**axes)
        return replace(self, rows=chosen.pick(self.rows), name=str(chosen))

    def but(self, **axes: Any) -> Runs:
        """All runs but those with these values."""
        return replace(self, rows=but(**axes).pick(self.rows))

    def learnt(self, rows: Sequence[Row] | None = None, *, on_dev: bool = False) -> list[Row]:
        """The runs that lose enough by the corruption for its restoring to be measured; on dev, if test is held out."""

        def lost(row: Row) -> float:
            roles = [f"dev_attribution_{role}" for role in ("key", "value", "query")]
            change: float = largest(row, roles) if on_dev else row["original"] - row["corrupted"]
            return change

        rows = self.rows if rows is None else rows
        return [row for row in rows if row["status"] == "done" and lost(row) > self.about.limits.lost]

    def number(self, column: str, words: str = "", among: Literal["done", "ended"] = "done") -> Numbers:
        """A column of all runs that are done; or that ended, where one that diverged counts as 0."""
        return Numbers(self, (column,), words or COLUMNS[column], among)

    def share(self, *columns: str, at: str) -> Numbers:
        """The share of (original - corrupted) that an intervention brings back, the highest of several, if learnt."""
        return Numbers(self, columns, f"restored share at {at}", "learnt")

    def mostly(
        self, hits: Sequence[tuple[Row, bool]], words: str, gap: str, paper: tuple[int, int] | None = None
    ) -> Answer:
        """Something is so in most runs; if the paper says in how many, in about as many. `gap`: what is missing."""
        if not hits:
            return Answer([Part(gap, None)], self.rows)
        seeds = len(different([row for row, _ in hits], "seed"))
        tally = Tally(sum(hit for _, hit in hits), len(hits), seeds)
        most = Part("", tally, fixed.MOST, said=f"{words} in {tallied(tally)} runs", label=words)
        if paper is None:
            return Answer([most], self.rows)
        beside = f"{most.said}, paper {paper[0]} of {paper[1]}"
        apart = Part("", Apart(tally, Tally(*paper)), -self.about.limits.tolerance, said=beside, label=words)
        return Answer([apart], self.rows, [most])

    def above(
        self, first: Where | Side, second: Where | Side, low: float = 0.0, high: float = math.inf, **how: Any
    ) -> Answer:
        """The first side less the second lies in a range, wherever that counts: usually it is above it."""

        def apart(a: Named, b: Named) -> Iterator[Part]:
            number = a.number - b.number
            least, most = (100 * end for end in number.interval())
            words = f"{a}, {b}, difference {least:+.1f} to {most:+.1f} points"
            yield Part(f"{a.name} and {b.name}", number, low, high, said=words)

        return self._compare((first, second), apart, **how)

    def level(self, first: Where | Side, second: Where | Side, **how: Any) -> Answer:
        """The two sides are within the tolerance."""
        tolerance = self.about.limits.tolerance
        return self.above(first, second, -tolerance, tolerance, **how)

    def succeeds(self, first: Where, control: Where) -> Answer:
        """The first side can do the task wherever the control can."""
        return self._compare(
            (first, control), lambda a, _: [Part(a.name, a.number, self.about.success, said=str(a))], counts="succeeds"
        )

    def _near_zero(self, *sides: Named) -> list[Part]:
        return [Part(a.name, a.number, high=self.about.near_zero, said=str(a), failing=True) for a in sides]

    def guess(self, *sides: Where | Side) -> Answer:
        """All sides but the last, which is the control, are near zero wherever it can do the task."""
        return self._compare(sides, lambda *named: self._near_zero(*named[:-1]), counts="succeeds")

    def steps(self, *sides: Where) -> Answer:
        """The first two sides are near zero, and the third gains at once half of what the last gains over guessing."""

        def step(a: Named, b: Named, c: Named, d: Named) -> list[Part]:
            gain = c.number - b.number - d.number.shifted(-self.about.floor).scaled(fixed.STEP)
            return [*self._near_zero(a, b), Part(c.name, gain, 0.0, said=f"{c} after {b}, {d}")]

        return self._compare(sides, step, counts="succeeds")

    def _compare(
        self, sides: Sequence[Where | Side], parts_of: Callable[..., Iterator[Part] | list[Part]], *,
        counts: Counts = "always", control: int | None = -1, by: Sequence[str] = ("d_model",),
        column: str = "test_accuracy",
    ) -> Answer:  # fmt: skip
        """Compare at every width, or in every other group, where the `control` does what `counts` says.

        The control is a side by its index, or None for all runs of the group.
        """
        given = [side if isinstance(side, Side) else Side(side, column) for side in sides]
        given = [side for side in given if not side.optional or side.where.pick(self.rows)]
        parts, missing = list[Part](), list[Part]()
        for where, group in self._by(by):
            found = [list(self._named(side, group, where, by, missing)) for side in given]
            basis = group if control is None else given[control].where.pick(group)
            if counts.startswith("learnt") and not self.learnt(basis, on_dev=counts == "learnt on dev"):
                continue
            if not all(found) or (counts == "succeeds" and found[-1][0].number.value < self.about.success):
                continue
            for chosen in product(*found):
                found_here = parts_of(*chosen)
                parts += [each._replace(name=where, group=where, label=f"{where}, {each.name}") for each in found_here]
        rows = [row for side in given for row in side.where.pick(self.rows)]
        return Answer([*parts, *missing] or [Part("a control that learnt", None)], rows)

    def _by(self, by: Sequence[str]) -> list[tuple[str, list[Row]]]:
        there = [row for row in self.rows if not any(is_nan(row[axis]) for axis in by)]
        places = sorted(grouped(there, by).items(), key=itemgetter(0))
        return [(str(only(**dict(zip(by, place, strict=True)))), group) for place, group in places]

    def _named(
        self, side: Side, group: Sequence[Row], where: str, by: Sequence[str], missing: list[Part]
    ) -> Iterator[Named]:
        for name, cell in cells(side.where.pick(group), self.rows, without=by):
            values, name = numbers(cell, side.column), side.name or name or str(side.where)
            if values:
                yield Named(name, self.about.mean(values))
            elif is_missing(cell, values):
                missing.append(Part(f"{where}, {name}", None, group=where))

    def mostly_above(self, first: Where, second: Where, by: Sequence[str], *, on_dev: bool = False) -> Answer:
        """The test accuracy of the first side is above the second's in most pairs of runs of the same seed."""
        hits = []
        for _, group in self._by(by):
            ours, theirs = (
                [row for row in side.pick(group) if numbers([row], "test_accuracy")] for side in (first, second)
            )
            if not on_dev or self.learnt(second.pick(group), on_dev=True):
                pairs = [(a, b) for a, b in product(ours, theirs) if a["seed"] == b["seed"]]
                hits += [(a, a["test_accuracy"] > b["test_accuracy"]) for a, b in pairs]
        return self.mostly(
            hits,
            "the first is above the second, of runs of the same seed",
            "pairs of runs of the same seed",
        )

    def second(self, mixer: str, column: str) -> Answer:
        """By the best number over all widths, exactly one mixer is above this one."""
        best: dict[str, Named] = {}
        for name, cell in cells(self.rows, self.rows):
            kind, values = str(cell[0]["mixer"]), numbers(cell, column)
            if is_missing(cell, values):  # a missing run might be above
                return Answer([Part(name, None)], self.rows)
            here = Named(name, self.about.mean(values)) if values else None
            if here and (kind not in best or here.number.value > best[kind].number.value):
                best[kind] = here
        if mixer not in best or len(best) < 2 or not self.where(mixer=mixer).learnt(on_dev=True):
            return Answer([Part(f"{mixer} that learnt, and others", None)], self.rows)
        own = best.pop(mixer)
        count = Count(tuple(other.number - own.number for other in best.values()))
        low, high = count.interval()
        said = f"{low:.0f} to {high:.0f} mixers are above {mixer}: {listed([str(own), *map(str, best.values())])}"
        return Answer([Part("", count, 1, 1, said=said)], self.rows)

    def mostly_in(self, mixer: str, *layers: int, optional: bool = False) -> Answer:
        """Attribution at the query is highest in one of these layers (-1: the last one) in most runs of a mixer.

        Models of one layer have no choice, so they do not count. If `optional`, a mixer that did not learn is no gap.
        """
        runs, hits = self.where(mixer=mixer), []
        for row in runs.learnt():
            found = [-1.0 if is_nan(at := row[f"mixer{layer}_at_query"]) else at for layer in range(3)]
            top = found.index(max(found))
            if row["n_layers"] > 1:
                hits.append((row, top in layers or (top == row["n_layers"] - 1 and -1 in layers)))
        said = " or ".join("the last layer" if layer < 0 else f"layer {layer}" for layer in layers)
        if optional and not hits:
            return Answer([], runs.rows)
        name = NAMES.get(mixer, mixer)
        return runs.mostly(hits, f"{name}: {said}", f"{name} of 2 or 3 layers")


@dataclass(frozen=True)
class Numbers:
    """Numbers of a selection of runs: a column, or a restored share of those that learnt."""

    runs: Runs
    columns: tuple[str, ...]
    words: str
    among: Literal["done", "ended", "learnt"]

    def at_least(self, low: float) -> Answer:
        """The number of every setting is at least this."""
        return self._in(low, math.inf)

    def below(self, high: float, *, failing: bool = False) -> Answer:
        """The number of every setting is below this; `failing` if that means that it cannot do the task."""
        return self._in(-math.inf, high, failing)

    def near(self, paper: float) -> Answer:
        """The number of every setting is within the tolerance of the paper's."""
        about, shown = self.runs.about, percents(estimate([paper], fixed.DOCUMENTS))

        def beside(rows: Sequence[Row]) -> Part:
            values = [row[self.columns[0]] for row in rows]
            apart = from_paper(values, about.documents, paper, fixed.DOCUMENTS, about.spread)
            low, high = (100 * end for end in apart.interval())
            said = f"{self.words} {percents(about.mean(values))}, paper {shown}"
            said += f", difference {low:+.1f} to {high:+.1f} points"
            return Part("", apart, -about.limits.tolerance, about.limits.tolerance, said=said)

        return self._each(beside)

    def mostly_at_least(self, low: float, paper: tuple[int, int]) -> Answer:
        """The share is at least this in about as many of the runs that perform as in the paper."""
        cells = [self._counted(cell) for _, cell in self._cells()]
        able = [row for cell in cells for row in cell if row["original"] - row["corrupted"] > fixed.PERFORMS]
        hits = [(row, self.of(row) >= low) for row in able]
        if not hits:
            return self.at_least(low)
        return self.runs.mostly(hits, f"the {self.words} is {low:g} or more", "", paper)

    def _in(self, low: float, high: float, failing: bool = False) -> Answer:
        about = self.runs.about

        def part(rows: Sequence[Row]) -> Part:
            best = [largest(row, self.columns) for row in rows]
            if self.among != "learnt":
                number = about.mean(best)
                return Part("", number, low, high, said=f"{self.words} {percents(number)}", failing=failing)
            runs = [(row["original"], row["corrupted"], top) for row, top in zip(rows, best, strict=True)]
            number = estimate_share(runs, about.documents, about.spread)
            low_end, high_end = map(label, number.interval())
            said = f"{self.words} {label(number.value)} [{low_end}, {high_end}]"
            return Part("", number, low, high, said=said)

        return self._each(part)

    def _each(self, part: Callable[[Sequence[Row]], Part]) -> Answer:
        parts, idle = list[Part](), False
        for name, cell in self._cells():
            width = str(cell[0]["d_model"])
            if counted := self._counted(cell):
                parts.append(part(counted)._replace(name=name, group=width))
            elif self._ended(cell):
                idle = True
            elif any(row["status"] != "diverged" for row in cell):
                parts.append(Part(name, None, group=width))
        if idle and not parts:
            parts.append(Part(f"{self.runs.name} that learnt", None))
        return Answer(parts, self.runs.rows)

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

    def of(self, row: Row) -> float:
        """The share that is restored in a run."""
        share: float = (largest(row, self.columns) - row["corrupted"]) / (row["original"] - row["corrupted"])
        return share
