"""Compares a study with the paper: its numbers cell by cell, where runs are restored, and the claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from mecheval.paper import questions as limits
from mecheval.paper.answers import Outcome, ask
from mecheval.paper.numbers import PUBLISHED, Setting, claims, published, settings_of
from mecheval.paper.questions import BENEFITS, LEARNT, Layer, Not, Number, Question, Runs, Second, Side, Sides, Where
from mecheval.plain import parse_yaml
from mecheval.studies import STUDIES, StudyTable
from mecheval.studies.table import GAP
from mecheval.sweep import Point

if TYPE_CHECKING:  # slow to import
    import pandas as pd


CELLS = ("mixer", "lr", "d_model", "quantity", "ours", "low", "high", "seeds", "paper", "difference")
PATTERNS = ("mixer", "ours", "paper", "main", "learnt", "same")
NOT_LEARNT, NOWHERE = "not learnt", "nowhere"
SPELT_OUT = 6
"""Largest number of models that a pattern names; of more, it gives the count."""
LEVEL = "A level at one width, which depends on the size of the task and the length of training."
"""Why some claims have no test at a smaller scale, where our runs are compared only with each other."""
KINDS = {kind.__name__.lower(): kind for kind in (Number, Runs, Sides, Second, Layer)}
WORDS = vars(limits) | {
    "number": f"within {100 * limits.TOLERANCE:g} points",
    "guessing": f"at most {100 * limits.NEAR_FLOOR:g} points above guessing among the document's values",
    "learnt": f"{100 * limits.LEARNT:g} points",
}  # fmt: skip
"""Replacements for the names in braces in the description of a test."""


@dataclass(frozen=True)
class Comparison:
    """A study's numbers beside the paper's; both tables are empty if the paper printed no numbers.

    `cells`: mixer, lr (NaN where it was chosen), d_model, quantity; ours (mean over seeds), low, high, seeds (how many
    have a number), paper, difference (ours - paper). All fractions; NaN where a side has no such cell.
    `patterns`: mixer; in words where our runs and the paper's are restored most; `main`, where most of the paper's are
    ("" where none of them learnt); of our `learnt` runs how many are restored most where the paper's are (`same`): at
    the paper's scale where its run of the same setting is, if that learnt, else at `main`.
    """

    study: str
    scale: str
    cells: pd.DataFrame
    patterns: pd.DataFrame

    @property
    def titles(self) -> dict[str, str]:
        return _titles(self.study)


@dataclass(frozen=True)
class Compared:
    """The comparison of a study with the paper; `table` has all runs, not only the chosen ones."""

    table: StudyTable
    settings: dict[str, Setting]
    comparison: Comparison
    claims: list[Judged]


def compare_study(table: StudyTable, points: Sequence[Point], scale: str) -> Compared:
    """A study's table, whose runs are `points`, beside the paper's numbers and claims."""
    name, frame, settings = table.study.name, table.best().frame, settings_of(point.config for point in points)
    judged = judge_claims({name: frame}, scale, {name: settings})
    return Compared(table, settings, compare(name, frame, scale), judged)


def compare(study: str, frame: pd.DataFrame, scale: str) -> Comparison:
    """A study's table of chosen runs beside the paper's numbers."""
    import pandas as pd

    if study not in PUBLISHED:
        return Comparison(study, scale, pd.DataFrame(columns=list(CELLS)), pd.DataFrame(columns=list(PATTERNS)))
    theirs = published(study).assign(seed=0, status="done")
    return Comparison(study, scale, _cells(study, frame, theirs), _patterns(study, frame, theirs, scale))


def _cells(study: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    figure = PUBLISHED[study]
    axes = list(dict.fromkeys(("mixer", *figure.axes)))
    place = [*axes, "quantity"]
    long = [
        frame[frame["status"] == "done"].melt([*axes, "seed"], list(figure.quantities), "quantity", "value")
        for frame in (ours, theirs)
    ]
    summary = long[0].groupby(place)["value"].agg(ours="mean", low="min", high="max", seeds="count").reset_index()
    cells = summary.merge(long[1].rename(columns={"value": "paper"})[[*place, "paper"]], "outer", place)
    cells["seeds"] = cells["seeds"].fillna(0).astype(int)
    cells["difference"] = cells["ours"] - cells["paper"]
    cells["order"] = cells["quantity"].map(figure.quantities.index)
    cells = cells.sort_values([*axes, "order"], ignore_index=True)
    return cells.reindex(columns=list(CELLS))


def _patterns(study: str, ours: pd.DataFrame, theirs: pd.DataFrame, scale: str) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for mixer in sorted({*ours["mixer"], *theirs["mixer"]}):
        mine, paper = (_places(study, frame[frame["mixer"] == mixer]) for frame in (ours, theirs))
        places = {run.name: run.place for run in paper if run.place not in (NOT_LEARNT, NOWHERE)}
        main = Counter(places.values()).most_common(1)
        top = main[0][0] if main else ""
        same_setting = places if scale == "paper" else {}
        learnt = [run for run in mine if run.place != NOT_LEARNT]
        same = sum(run.place == same_setting.get(run.name, top) for run in learnt)
        said = (_in_words(study, side) for side in (mine, paper))
        rows.append((mixer, *said, top, len(learnt), same))
    return pd.DataFrame(rows, columns=list(PATTERNS))


class _Run(NamedTuple):
    """Where a finished run is restored most."""

    name: str  # what distinguishes it, besides the seed
    seed: int
    place: str


def _places(study: str, frame: pd.DataFrame) -> list[_Run]:
    figure, found = PUBLISHED[study], []
    for row in frame[(frame["status"] == "done") & frame["original"].notna()].to_dict("records"):
        name = f"d {row['d_model']}" + (f" lr {row['lr']:g}" if "lr" in figure.axes else "")
        gap = row["original"] - row["corrupted"]
        top = max(figure.places, key=lambda place: row[place])
        if not gap > LEARNT:
            top = NOT_LEARNT
        elif any(math.isnan(row[place]) for place in figure.places):
            continue  # the run has scores, but not these effects
        elif (row[top] - row["corrupted"]) / gap < BENEFITS:
            top = NOWHERE
        found.append(_Run(name, row["seed"], top))
    return found


def _titles(study: str) -> dict[str, str]:
    return GAP | {reading.name: reading.title for reading in STUDIES[study].readings}


def _in_words(study: str, runs: list[_Run]) -> str:
    """value (d 64, d 128); not learnt (d 32); seeds are named where they disagree."""
    titles = _titles(study)
    seen: dict[str, set[str]] = {}
    for run in runs:
        seen.setdefault(run.name, set()).add(run.place)
    by_place: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: run.place == NOT_LEARNT):
        names = by_place.setdefault(titles.get(run.place, run.place).removeprefix("restored at "), [])
        name = run.name if len(seen[run.name]) == 1 else f"{run.name} seed {run.seed}"
        if name not in names:
            names.append(name)
    return "; ".join(
        f"{place} ({', '.join(names) if len(names) <= SPELT_OUT else f'{len(names)} models'})"
        for place, names in by_place.items()
    )


class Form(NamedTuple):
    """A test of a claim: its description, and questions that must all hold."""

    words: str
    questions: tuple[Question, ...]


class ClaimTest(NamedTuple):
    """What a claim about a study says, and how it is tested at the paper's scale and, if possible, at a smaller one."""

    study: str
    says: str
    paper: Form
    smaller: Form | None


@cache
def claim_tests() -> dict[str, ClaimTest]:
    """The test of each claim, in the order of the paper."""
    found = parse_yaml(files(__package__).joinpath("claims.yaml").read_text(encoding="utf-8"))
    tests = {}
    for claim, data in found.items():
        paper, smaller = (_form(data.get("any") or data.get(scale)) for scale in ("paper", "smaller"))
        assert paper is not None, f"{claim} has no test at the paper's scale"
        tests[claim] = ClaimTest(data["study"], data["says"], paper, smaller)
    return tests


def _form(data: Mapping[str, Any] | None) -> Form | None:
    return (
        None
        if data is None
        else Form(data["words"].format(**WORDS), tuple(_question(**each) for each in data["questions"]))
    )


def _question(ask: str, **data: Any) -> Question:
    read: dict[str, Callable[[Any], Any]] = {
        "where": _where, "least": WORDS.__getitem__, "below": WORDS.__getitem__,
        "sides": lambda sides: tuple(Side(**{**side, "where": _where(side["where"])}) for side in sides),
    }  # fmt: skip
    question: Question = KINDS[ask](**{name: read.get(name, _plain)(value) for name, value in data.items()})
    return question


def _where(data: Mapping[str, Any]) -> Where:
    if "not" in data:
        return Not({axis: _plain(value) for axis, value in data["not"].items()})
    return {axis: _plain(value) for axis, value in data.items()}


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Judged:
    """A claim in a sentence, how it was tested, and the outcome with its evidence and the seeds that it rests on."""

    claim: str
    says: str
    study: str
    where: str
    setting: str
    said: str
    tested: str
    outcome: Outcome
    evidence: str
    seeds: int


def judge_claims(
    frames: Mapping[str, pd.DataFrame], scale: str, settings: Mapping[str, Mapping[str, Setting]]
) -> list[Judged]:
    """Judge the claims about these studies; `mecheval.paper.estimates` explains the rule.

    `frames` holds each study's table of chosen runs, `settings` each study's settings by task (`settings_of`).
    """
    judged = []
    for claim in claims():
        study, says, paper, smaller = claim_tests()[claim.id]
        if study not in frames:
            continue
        about = (claim.id, says, study, claim.where, claim.setting, claim.said)
        form = paper if scale == "paper" else smaller
        if form is None:
            judged.append(Judged(*about, f"at the paper's scale only: {paper.words}", "not tested", LEVEL, 0))
            continue
        floor = settings[study]["ar"].guessing if "ar" in settings[study] else math.nan
        documents = min(setting.documents for setting in settings[study].values())
        judged.append(Judged(*about, form.words, *ask(form.questions, frames[study], floor, documents)))
    return judged
