"""The result of an evaluation: a table with a row for each mixer, the verdict, its effects, and an HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.custom import MARK as MARK_OF_NAME
from mecheval.errors import UserError
from mecheval.files import write_atomic
from mecheval.intervene import Verdict
from mecheval.store import writing
from mecheval.studies.placing import HEADS as PLACED
from mecheval.studies.placing import Placing
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.figures import Chart

ROLES = ("key", "value", "query")
COLUMNS = ("mixer", "verdict", "d", "accuracy", "likelihood", *(f"restored_{role}" for role in ROLES), "agreement")
"""Accuracy and likelihood are measured on test; `restored` is the likelihood with the clean input of block 1 there."""
HEADS = ("mixer", "verdict", "d", "accuracy", "likelihood", *(f"at {role}" for role in ROLES), "agreement")
MARK = "▸ "


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate`, which can be printed or shown in a notebook."""

    title: str  # what was evaluated on what
    name: str  # the name of the mixer or model in the table
    table: pd.DataFrame  # see COLUMNS; the first row is the mixer or model that was evaluated
    verdict: Verdict | None  # None if the model diverged
    effects: pd.DataFrame  # the effects at every site and role, for each seed
    warnings: tuple[str, ...] = ()
    report: Path | None = None
    small: bool = False  # whether the runs are smaller than the paper's
    notes: tuple[str, ...] = ()  # why the mixer has not learnt, if it has not

    def cells(self) -> list[list[str]]:
        """The table as text, in which the evaluated mixer or model is marked."""
        return [_cells(row, own=row["mixer"] == self.name) for row in self.table.to_dict("records")]

    def lines(self) -> list[str]:
        """Everything but the table: warnings, the verdict, its evidence."""
        found = [*(f"Warning: {warning}" for warning in self.warnings), *self.notes]
        if self.verdict is not None:
            found += [f"Verdict: {self.verdict.finding}", *(f"- {sentence}" for sentence in self.verdict.evidence)]
            if self.small:
                found.append('This is what it does at this small size; scale="paper" is the paper\'s.')
        return [*found, *([f"Report: {self.report}"] if self.report else [])]

    def plot(self, title: str = "") -> Chart:
        """A map of the effects, averaged over seeds; notebooks show it, and `.save(path)` writes it."""
        from mecheval.figures import heatmap

        return heatmap(mean_over_seeds(self.effects), title or self.title)

    def __str__(self) -> str:
        return "\n".join([self.title, "", *_aligned([HEADS, *self.cells()]), "", *self.lines()])

    def _repr_html_(self) -> str:
        said = "".join(f"<div>{html.escape(line)}</div>" for line in self.lines())
        return f"<strong>{html.escape(self.title)}</strong>{_html_table(HEADS, self.cells())}{said}"


@dataclass(frozen=True, eq=False)
class PaperEvaluation:
    """The result of `evaluate` at the paper's size, which can be printed or shown in a notebook."""

    name: str  # the name of the mixer in the tables
    placings: tuple[Placing, ...]  # for each task and width
    store: Path  # where its runs are
    warnings: tuple[str, ...] = ()
    report: Path | None = None

    @property
    def sentences(self) -> list[str]:
        """For each task and width, how well the mixer recalls, between which others, and by which mechanism."""
        return [place.sentence(mixer) for place in self.placings for mixer in place.own()]

    @property
    def table(self) -> pd.DataFrame:
        """All placings, with the columns task and d_model."""
        import pandas as pd

        return pd.concat([
            place.frame.assign(task=place.task, d_model=place.width) for place in self.placings
        ], ignore_index=True)  # fmt: skip

    def details(self) -> list[str]:
        """What else must be known: warnings, runs that ended early, why a mixer has not learnt, what seeds do."""
        found = [f"Warning: {warning}" for warning in self.warnings]
        for place in self.placings:
            found += [said for mixer in place.own() for said in place.details(mixer)]
        return found + [said for place in self.placings if (said := place.spread())]

    def plot(self, task: str = "", width: int = 0) -> Chart:
        """The mechanisms of all mixers on a task at a width, by default those of the first placing."""
        from mecheval.figures.by_mechanism import mechanism_rows, ways_figure
        from mecheval.store.published import Published

        for place in self.placings:
            if task in ("", place.task) and width in (0, place.width):
                rows = mechanism_rows(Published(self.store), place.task, set(place.runs))
                return ways_figure(rows, f"{self.name.partition(MARK_OF_NAME)[0]} among others: {place.title}")
        there = ", ".join(f"{place.task} at width {place.width}" for place in self.placings) or "none"
        raise UserError(f"nothing was evaluated on {task or 'any task'} at width {width or 'any'}. Choices: {there}.")

    def __str__(self) -> str:
        parts = ["\n".join(self.sentences)]
        for place in self.placings:
            rows = [[f"{MARK if own else '  '}{cells[0]}", *cells[1:]]
                    for own, cells in zip(place.frame["own"], place.cells(), strict=True)]  # fmt: skip
            parts.append("\n".join([place.title, *_aligned([PLACED, *rows], (0, 1, 4))]))
        return "\n\n".join([*parts, "\n".join(self.details())])

    def _repr_html_(self) -> str:
        parts = [f"<p><strong>{html.escape(said)}</strong></p>" for said in self.sentences]
        for place in self.placings:
            parts += [f"<p>{html.escape(place.title)}</p>", _html_table(PLACED, place.cells())]
        return "".join([*parts, *(f"<div>{html.escape(said)}</div>" for said in self.details())])


def summarised(frame: pd.DataFrame) -> pd.DataFrame:
    """A study's best runs as rows of the table: one for each mixer and width, with means over seeds."""
    import pandas as pd

    rows = []
    for (mixer, d), runs in frame.groupby(["mixer", "d_model"], sort=False):
        words = [verdict if isinstance(verdict, str) else status
                 for verdict, status in zip(runs["verdict"], runs["status"], strict=True)]  # fmt: skip
        counts = {word: words.count(word) for word in dict.fromkeys(words)}
        said = words[0] if len(counts) == 1 else ", ".join(f"{n} {word}" for word, n in counts.items())
        restored = {f"restored_{role}": runs[f"restored_{role}"].mean() for role in ROLES}
        scores = {"accuracy": runs["test_accuracy"].mean(), "likelihood": runs["test_likelihood"].mean()}
        agreement = runs["agreement"].astype(float).mean()
        rows.append({"mixer": mixer, "d": d, **scores, **restored, "verdict": said, "agreement": agreement})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def mean_over_seeds(effects: pd.DataFrame) -> pd.DataFrame:
    """Effects for a map: one row for each intervention, averaged over seeds."""
    if "seed" not in effects:
        return effects
    names = ["site", "block", "part", "kind", "role", "corruption", "direction"]
    numbers = effects.drop(columns=[*names, "seed"]).columns
    return effects.groupby(names, sort=False, as_index=False, dropna=False)[list(numbers)].mean()


def _cells(row: dict[str, Any], own: bool) -> list[str]:
    cells = [f"{MARK if own else '  '}{row['mixer']}"]
    for name in COLUMNS[1:]:
        value = row[name]
        missing = not isinstance(value, str) and value != value  # NaN
        cells.append(MISSING if missing else f"{value:.3f}" if isinstance(value, float) else str(value))
    return cells


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _aligned(rows: Sequence[Sequence[str]], text: Sequence[int] = (0, 1)) -> list[str]:
    """A table as aligned text, with the columns of `text` to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(c.ljust(w) if i in text else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]  # fmt: skip


def write_page(result: Evaluation, path: Path) -> None:
    """Write an HTML page about an evaluation, in the style of a report; the write is atomic."""
    from mecheval.report.page import EVALUATION, page, page_spec

    verdict, _, how = str(result.verdict.finding if result.verdict else "no verdict").partition(": ")
    data = {
        "finding": f"{result.name}: {verdict}{f' ({how})' if how else ''}.",
        "heads": HEADS, "rows": result.cells(), "own": [mixer == result.name for mixer in result.table["mixer"]],
        "lines": [line.removeprefix("- ") for line in result.lines() if not line.startswith(("Verdict", "Report"))],
    }  # fmt: skip
    text = page(result.title, data, [page_spec(result.plot("Restored shares by site and role"))], EVALUATION)
    with writing(path):
        write_atomic(path, text)
