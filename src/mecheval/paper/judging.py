"""Judges the paper's claims by our runs; `mecheval.paper.estimates` explains the rule."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mecheval.paper.about import About, listed
from mecheval.paper.claims import Claim, Form, all_claims, described
from mecheval.paper.estimates import MANY, MOST_SEEDS, SPREAD, Part, State, spread_of
from mecheval.paper.limits import OTHERS, USUAL, Limits
from mecheval.paper.numbers import Setting
from mecheval.paper.rows import Row, cells, different, rows_of
from mecheval.paper.selection import Answer, Runs

if TYPE_CHECKING:  # slow to import
    import pandas as pd

Outcome = Literal["reproduced", "contradicted", "inconclusive", "not tested"]
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "contradicted", "inconclusive", "not tested")
WORDS: dict[State, str] = {"fails": "Fails", "unsure": "Undecided", "holds": "Holds", "open": "Not run"}
"""What the evidence calls the states of parts, in the order in which it lists them."""
LEVEL = "A level at one width, which depends on the size of the task and the length of training."
"""Why some claims have no test at a smaller scale, where our runs are compared only with each other."""
SEVERAL = 3
"""Smallest number of parts of which most may hold, in a lenient reading."""
RECALLS = 0.05
"""Likelihood that all seeds of a setting must reach; otherwise some learn and some do not, which is no spread."""
HEADS = {
    "says": "claim of the paper", "outcome": "outcome", "ours": "what decides it", "paper": "the paper",
    "rests": "rests on", "needs": "what is missing", "lenient": "if most is enough", "flips": "with other limits",
}  # fmt: skip
"""The columns of the table of claims."""


@dataclass(frozen=True)
class Judged:
    """A claim in a sentence, how it was tested, the outcome, and what that rests on.

    `ours`: the number that decides it. `lenient`: the outcome if it is enough that most of its parts hold, where that
    differs; `flips`: outcomes that other limits would give. `needs`: runs that would decide it, or that are missing.
    """

    claim: str
    says: str
    study: str
    where: str
    paper: str
    tested: str
    outcome: Outcome = "not tested"
    evidence: str = LEVEL
    ours: str = ""
    seeds: str = ""
    widths: str = ""
    needs: str = ""
    lenient: str = ""
    flips: str = ""

    @property
    def rests(self) -> str:
        """Seeds and widths in one line."""
        seeds = f"{self.seeds} seed{'s' * (self.seeds != '1')}"
        return f"{seeds}, width{'s' * (',' in self.widths)} {self.widths}" if self.seeds else ""


class Spread(NamedTuple):
    """The standard deviation over seeds on the logit scale, the settings it is from, and those where some fail."""

    value: float
    settings: int
    split: int


class Finding(NamedTuple):
    """What a test gave: its parts with their states, and the rows that it was about."""

    outcome: Outcome
    lenient: Outcome
    parts: list[tuple[Part, State]]
    rows: list[Row]

    @property
    def evidence(self) -> str:
        """The parts in words, by their states."""
        named = {state: dict.fromkeys(part.words for part, each in self.parts if each == state) for state in WORDS}
        said = [f"{word}: {listed([*named[state]])}." for state, word in WORDS.items() if named[state]]
        return " ".join(said) or "No run learnt."


def judge_claims(
    frames: Mapping[str, pd.DataFrame], scale: str, settings: Mapping[str, Mapping[str, Setting]],
    spreads: Mapping[str, Spread] = {},
) -> list[Judged]:  # fmt: skip
    """Judge the claims about these studies.

    `frames` holds each study's table of chosen runs, `settings` each study's settings by task (`settings_of`), and
    `spreads` how much seeds differ in each task.
    """
    rows = {name: rows_of(frame) for name, frame in frames.items()}
    judged = []
    for claim in all_claims():
        if {claim.study, *claim.also} <= rows.keys():
            here = settings[claim.study]
            spread = max([spreads[task].value for task in here if task in spreads], default=SPREAD)
            floor = here["ar"].guessing if "ar" in here else math.nan
            documents = min(setting.documents for setting in here.values())
            judged.append(_judged(claim, scale, rows, floor, documents, spread))
    return judged


def _judged(
    claim: Claim, scale: str, rows: Mapping[str, list[Row]], floor: float, documents: int, spread: float
) -> Judged:
    about, form = (claim.name, claim.says, claim.study, claim.where, claim.paper), claim.at(scale)
    if form is None:
        return Judged(*about, f"At the paper's scale only: {described(claim.test)}")

    def found(limits: Limits) -> Finding:
        return ask(form, rows[claim.study], About(floor, documents, limits, spread), rows)

    usual = found(USUAL)
    there = sum(part.quantity is not None for part, _ in usual.parts)
    closest = min(usual.parts, key=lambda each: (list(WORDS).index(each[1]), each[0].margin()), default=None)
    ours = closest[0].words if closest and closest[0].quantity else ""
    if ours and len(usual.parts) > 1:
        holding = sum(state == "holds" for _, state in usual.parts)
        missing = len(usual.parts) - there
        ours += f" ({holding} of {there} parts hold{f', {missing} not run' * bool(missing)})"
    flips = Counter(f"{new} with {limits}" for limits in OTHERS if (new := found(limits).outcome) != usual.outcome)
    return Judged(
        *about, described(form), usual.outcome, usual.evidence, ours, *_basis(usual.rows),
        _needs(usual, there), usual.lenient if usual.lenient != usual.outcome else "", "; ".join(flips),
    )  # fmt: skip


def ask(form: Form, rows: Sequence[Row], about: About, others: Mapping[str, Sequence[Row]] = {}) -> Finding:
    """Test a claim by a study's runs, and by those of others that it is also about."""
    answers = answers_of(form, Runs(rows, rows, about, others=others))
    count = sum(part.quantity is not None for each in answers for part in each.parts)
    strict = [[(part, part.state(count)) for part in each.parts] for each in answers]
    parts = [pair for each in strict for pair in each]
    ended = [row for each in answers for row in each.runs if row["status"] in ("done", "diverged")]
    outcome = _outcome([_complete(each) for each in strict if each], [state for _, state in parts])
    lenient = [
        _complete([(part, part.state(1)) for part in answer.lenient]) if answer.lenient else _most(_complete(each))
        for answer, each in zip(answers, strict, strict=True) if each
    ]  # fmt: skip
    relaxed = outcome if outcome == "not tested" else _outcome(lenient, [state for each in lenient for state in each])
    return Finding(outcome, relaxed, parts, ended)


def answers_of(form: Form, runs: Runs) -> list[Answer]:
    """What a claim asks of a study's runs."""
    found = form(runs)
    return [found] if isinstance(found, Answer) else list(found)


def _outcome(answers: Sequence[Sequence[State]], states: Sequence[State]) -> Outcome:
    if "fails" in states:
        return "contradicted"
    if not answers or not all(answers):
        return "not tested"
    return "reproduced" if all(state == "holds" for each in answers for state in each) else "inconclusive"


def _most(states: Sequence[State]) -> list[State]:
    """What most of several parts do."""
    if len(states) < SEVERAL:
        return list(states)
    state, count = Counter(states).most_common(1)[0]
    return [state if count > len(states) / 2 else "unsure"]


def _complete(parts: Sequence[tuple[Part, State]]) -> list[State]:
    """The states of an answer's parts at widths where no run is missing."""
    gaps = {part.group for part, state in parts if state == "open"}
    return [state for part, state in parts if part.group not in gaps]


def _basis(rows: Sequence[Row]) -> tuple[str, str]:
    """How many seeds the settings have that ended, the fewest and the most; and their widths."""
    seeds = sorted({len(different(cell, "seed")) for _, cell in cells(rows, rows)})
    widths = sorted(different(rows, "d_model"))
    return " to ".join(map(str, dict.fromkeys([*seeds[:1], *seeds[-1:]]))), ", ".join(map(str, widths))


def _needs(found: Finding, there: int) -> str:
    """The seeds or runs that would decide an open claim if they found the same, and the settings without runs."""
    needed = defaultdict(list)
    for part, state in found.parts:
        if state == "unsure" and found.outcome == "inconclusive":
            needed[part.needs(there) or f"more than {MOST_SEEDS} seeds"].append(part.label or part.name)
    texts = [f"{said}: {listed(list(dict.fromkeys(names)))}" for said, names in needed.items()]
    gaps = list(dict.fromkeys(part.name for part, state in found.parts if state == "open"))
    return ". ".join([*texts, *([f"Runs: {listed(gaps)}"] if gaps else [])])


def spreads_in(rows: Iterable[Mapping[str, Any]], settings: Iterable[Setting]) -> dict[str, Spread]:
    """How much seeds differ in each task, by the runs of a store (table `runs`) that are trained like these."""
    tasks = {(setting.task, setting.steps, setting.batch_size) for setting in settings}
    groups: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in rows:
        config = row["config"] or {}
        about, data = (part if isinstance(part := config.get(name), dict) else {} for name in ("task", "data"))
        known = (about.get("name"), data.get("steps"), data.get("batch_size")) in tasks  # others may write configs, too
        if known and row["status"] == "done" and row["test_likelihood"] is not None:
            rest = {name: part for name, part in config.items() if name != "seed"}
            groups[about["name"], json.dumps(rest, sort_keys=True)][config.get("seed", 0)] = row["test_likelihood"]
    found = {}
    for task in dict.fromkeys(task for task, _, _ in tasks):
        many = [[*values.values()] for (name, _), values in groups.items() if name == task and len(values) >= MANY]
        learnt = [values for values in many if min(values) >= RECALLS]
        split = sum(min(values) < RECALLS <= max(values) for values in many)
        found[task] = Spread(spread_of([values for values in learnt if fmean(values) < 1]), len(learnt), split)
    return found


def spreads_said(spreads: Mapping[str, Spread]) -> str:
    """How much seeds are taken to differ, in a sentence."""
    said = []
    for task, spread in spreads.items():
        split = f"; in {spread.split} more, some seeds learn and some do not" * bool(spread.split)
        said.append(f"{spread.value:.2f} in {task.upper()} ({spread.settings} settings of three seeds or more{split})")
    return f"Spread between seeds, on the logit scale: {', '.join(said)}."


def counted(judged: Sequence[Judged]) -> str:
    """How many claims have which outcome, in a sentence."""
    counts = Counter(one.outcome for one in judged)
    parts = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]]
    return f"{len(judged)} claim{'s' * (len(judged) != 1)} of the paper: {', '.join(parts)}."


def claims_frame(judged: Sequence[Judged], *columns: str) -> pd.DataFrame:
    """The table of claims that were tested, which the command, the report and the docs show, by outcome.

    `columns` are some of `HEADS`, or all of them.
    """
    import pandas as pd

    tested = [one for outcome in OUTCOMES[:3] for one in judged if one.outcome == outcome]
    rows = [{**asdict(one), "says": f"{one.says} ({one.where})", "rests": one.rests} for one in tested]
    return pd.DataFrame(rows, columns=list(HEADS))[list(columns or HEADS)].rename(columns=HEADS)
