"""A verdict as numbers with intervals, and as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mecheval.intervene.finding import Finding, Label, words
from mecheval.intervene.gather import Evidence
from mecheval.intervene.groups import groups
from mecheval.intervene.intervals import LEVEL, difference_interval, mean_interval, share_interval, surely_above
from mecheval.intervene.mechanism import ASKED, KEY_FIRST, Cell, Rule, value_first
from mecheval.intervene.trial import TOGETHER, WORTH_SAYING, ratio
from mecheval.lazy import later

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Verdict:
    """The mechanism, in words and as a label, and the evidence for it."""

    finding: Finding
    agreement: float | None  # share of resamples with the same finding
    shares: pd.DataFrame  # columns site, role, corruption, direction, share, and low, high (the 95 % interval)
    evidence: tuple[str, ...]  # one sentence each
    chance: float = float("nan")  # likelihood of the best guess that recalls nothing
    n: int = 0  # number of documents that count
    original: float = float("nan")  # mean likelihood of the answer in these documents
    corrupted: float = float("nan")  # the same with the key corrupted

    @property
    def label(self) -> Label:
        """The name of the mechanism, `not_learnt` or `undetermined`; see `mechanism.Label`."""
        return self.finding.label

    @property
    def layer(self) -> int | None:
        """The layer that retrieves, if the label has one."""
        return self.finding.layer

    def plot(self, title: str = "") -> Any:
        """A `mecheval.figures.Chart` of the shares with intervals; notebooks show it, and `.save(path)` writes it."""
        return later("figures.points.shares")(self, title or str(self.finding))

    def __str__(self) -> str:
        return "\n".join((str(self.finding), *(f"- {sentence}" for sentence in self.evidence)))


class Numbers:
    """Point estimates with their intervals, and the sentences that report them."""

    def __init__(self, cells: Sequence[Cell], point: Floats, runs: Sequence[Evidence]) -> None:
        self.cells, self.point, self.runs, self.meaning = list(cells), point, runs, runs[0].meaning
        self.key, self.query = words(self.meaning.key), words(self.meaning.query)
        count = len(self.cells)
        self.value = np.append(ratios(point, count), point[2 * count :])
        original = [run.original for run in runs]
        corrupted = [run.corrupted["key"] for run in runs]
        self.low, self.high = np.full((2, count + 3), np.nan)
        self.gap: tuple[float, ...] = (float("nan"),) * 3
        self.above = False
        self.apart = np.full((4, 1), np.nan)
        if all(run.n for run in runs):
            if count:
                parts = [run.parts() for run in runs]
                order = [[run.cells.index(cell) for cell in self.cells] for run in runs]
                effect, lost = ([part[i][rows] for part, rows in zip(parts, order, strict=True)] for i in (0, 1))
                self.low[:count], self.high[:count] = share_interval(effect, lost)
            for i, each in ((-2, original), (-1, corrupted)):
                self.low[i], self.high[i] = mean_interval(each)
            self.apart = np.concatenate([run.apart for run in runs], axis=1)  # documents of all runs: runs are too few
            likelihood, hits, guess, spoilt = self.apart
            self.gap = (float(point[-2] - point[-1]), *map(float, difference_interval(likelihood, spoilt)))
            half = (1 + LEVEL) / 2  # Bonferroni correction for two tests
            self.above = bool(surely_above(np.stack([likelihood, hits]), guess, half).any())
        self.shares = dict(zip(self.cells, self.value[:count], strict=True))

    def said(self, i: int) -> str:
        """Number i with its interval, as text."""
        return _number(self.value[i], self.low[i], self.high[i])

    def share(self, cell: Cell) -> str:
        """The share of a cell with its interval, as text."""
        return self.said(self.cells.index(cell))

    def not_learnt(self, rule: Rule) -> Finding | None:
        """A finding if there is nothing to explain, or too little; otherwise None."""
        if not self.above:  # neither in likelihood nor in accuracy: a model can be right without being confident
            # Not hits: where answers are equally likely, they depend on the last digits, and so on the CPU.
            found, _, guessed, _ = self.apart.mean(1).round(2)
            surely = "" if found <= guessed else "surely "
            reason = f"a likelihood of {found:.2f} is not {surely}above the {guessed:.2f} of guessing without recall"
            return Finding("not_learnt", reason=reason)
        if not self.gap[1] > 0 and self.gap[0] >= rule.learnt:
            reason = f"the {self.key} makes a difference of {self.gap[0]:.2f}, but in too few documents to be sure"
            return Finding("undetermined", reason=reason)
        if not self.gap[1] > 0:
            return Finding("not_learnt", reason=f"the answer does not depend on the {self.key}")
        if self.gap[0] < rule.learnt:
            reason = f"recall is too weak to be explained: the {self.key} makes a difference of {self.gap[0]:.2f}"
            return Finding("undetermined", reason=reason)
        if all("value" in run.corrupted for run in self.runs):  # a mere guess does not depend on the value
            lost = np.concatenate([run.original - run.corrupted["value"] for run in self.runs])
            if lost.mean() < rule.learnt:
                which = f"which {words(self.meaning.value)} stands with the {self.key}"
                return Finding("not_learnt", reason=f"the answer does not depend on {which}")
        if layers := [run.ahead for run in self.runs if run.ahead is not None]:
            where = f"at the input of layer {min(layers)}, a token changes what stands before it"
            return Finding("undetermined", reason=f"the model looks ahead: {where}")
        return None

    def verdict(self, found: Finding, agreement: float | None) -> Verdict:
        """The finding with its numbers and sentences, as a verdict."""
        import pandas as pd

        rows = [
            {**cell._asdict(), "share": self.value[i], "low": self.low[i], "high": self.high[i]}
            for i, cell in enumerate(self.cells)
        ]
        shares = pd.DataFrame(rows, columns=[*Cell._fields, "share", "low", "high"])
        n, given = sum(run.n for run in self.runs), sum(run.given for run in self.runs)
        chance, original, corrupted = (float(self.value[i]) for i in (-3, -2, -1))
        said = tuple(self._sentences(found, n, given))
        return Verdict(found, agreement, shares, said, chance, n, original, corrupted)

    def _sentences(self, found: Finding, n: int, given: int) -> list[str]:
        used = (
            f"measured on {n} documents"
            if n == given
            else f"measured on {n} of {given} documents; in the others, roles coincide or stand close to the "
            f"{self.query}"
        )
        lines = [
            f"The answer has likelihood {self.said(-2)}, and {self.said(-1)} with the {self.key} corrupted; guessing "
            f"without recall has {self.value[-3]:.2f}; {used}."
        ]
        if found.label == "not_learnt" or not self.cells:
            return lines
        for layer, site in enumerate(self.runs[0].depths.boundaries, start=1):
            lines += self._about(f"At the input of layer {layer}", site)
            lines += self._by_distance(f"At the input of layer {layer}", site) if found.label == "mixed" else []
            question = Cell(site, "question", "value")
            if question in self.shares:
                value = words(self.meaning.value)
                lines.append(
                    f"At the input of layer {layer}, share restored with the {value} corrupted: {self.query} "
                    f"{self.share(question)}, positions before it {self.share(Cell(site, 'body', 'value'))}."
                )
            asked = Cell(site, *ASKED)
            if asked in self.shares and self.shares[asked] < Rule().trace:
                lines.append(f"At the input of layer {layer}, share destroyed by what earlier layers bring to the "
                             f"{self.query} for another {self.query}: {self.share(asked)}.")  # fmt: skip
        inner = self.runs[0].inner
        if inner is not None:
            whole = " (its short convolutions together)" if self.runs[0].sites[inner].part == TOGETHER else ""
            lines += self._about(f"Inside the layer, at {inner}{whole}", inner)
        elif found.label == "direct_retrieval":
            ways = (KEY_FIRST, value_first(self.meaning))
            inside = [cell for cell in self.cells if cell.site not in self.runs[0].depths.boundaries
                      and (cell.role, cell.corruption) in ways and cell.direction == "restore"]  # fmt: skip
            if inside:
                most = max(inside, key=lambda cell: self.shares[cell])
                named = f"between {self.key} and {self.query}"
                if any((cell.role, cell.corruption) == ways[1] for cell in inside):
                    named = f"at the {self.key}, or {named},"
                lines.append(f"Inside the layer, no activation {named} restores more than {self.shares[most]:.2f} "
                             f"({most.site}).")  # fmt: skip
            else:
                lines.append("Inside the layer, nothing could be looked at.")
        return lines

    def _by_distance(self, opening: str, site: str) -> list[str]:
        """A sentence that shows whether a mixture is one of documents: in each group one kind may hold the key."""
        if any(run.distance is None for run in self.runs):
            return []
        rows = [self.cells.index(Cell(site, kind)) for kind in self.meaning.kinds]
        parts = [run.parts() for run in self.runs]
        order = [[run.cells.index(self.cells[row]) for row in rows] for run in self.runs]
        effect, lost = (np.concatenate([part[i][own] for part, own in zip(parts, order, strict=True)], axis=1)
                        for i in (0, 1))  # fmt: skip
        distances = np.concatenate([run.distance for run in self.runs if run.distance is not None])
        said = []
        for distance, some in groups(distances, Rule().documents).items():
            if lost[0, some].mean() >= Rule().learnt:
                shares = ratio(effect[:, some].sum(1), lost[:, some].sum(1))
                said.append(f"{distance}: {', '.join(f'{round(float(share), 2) + 0.0:.2f}' for share in shares)}")
        kinds = f"{self.key}, positions between {self.key} and {self.query}, and {self.query}"
        if len(said) < 2:
            return []
        value = words(self.meaning.value)
        return [f"{opening}, share restored by distance from {self.key} to {value}, at {kinds}: {'; '.join(said)}."]

    def _about(self, opening: str, site: str) -> list[str]:
        """Sentences on what is restored and destroyed at a site, by kind of positions, then by role."""
        between = f"positions between {self.key} and {self.query}"
        kinds = dict(zip(self.meaning.kinds, (self.key, between, self.query), strict=True))
        restored = ", ".join(f"{said} {self.share(Cell(site, kind))}" for kind, said in kinds.items())
        destroyed = ", ".join(
            f"{said} {round(self.shares[cell], 2) + 0.0:.2f}"
            for kind, said in kinds.items() if (cell := Cell(site, kind, direction="destroy")) in self.shares
        )  # fmt: skip
        lines = [f"{opening}, share restored: {restored}; share destroyed: {destroyed}."]
        if (value := Cell(site, *value_first(self.meaning))) in self.shares:
            lines.append(f"{opening}, share restored with the {words(self.meaning.value)} corrupted: {self.key} "
                         f"{self.share(value)}.")  # fmt: skip
        alone = [cell for cell in self.cells if (cell.site, cell.corruption, cell.direction) == (site, "key", "restore")
                 and cell.role not in (*kinds, self.meaning.query)]  # fmt: skip
        worth = sorted((cell for cell in alone if self.shares[cell] >= WORTH_SAYING), key=lambda c: -self.shares[c])
        if worth:
            said = ", ".join(f"{words(cell.role, self.meaning)} {self.share(cell)}" for cell in worth)
            lines.append(f"{opening}, one position alone restores: {said}.")
        return lines


def _number(value: float, low: float, high: float) -> str:
    value, low, high = (round(float(x), 2) + 0.0 for x in (value, low, high))  # adding 0.0 avoids -0.00
    return f"{value:.2f}" if np.isnan(low) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def ratios(row: Floats, cells: int) -> Floats:
    """The shares (..., cells) in rows of `Sums.means`."""
    return ratio(row[..., :cells], row[..., cells : 2 * cells])
