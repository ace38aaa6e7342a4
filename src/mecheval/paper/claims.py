"""The claims of the paper: how each is tested (claims.yaml), and what became of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from mecheval.paper import questions as limits
from mecheval.paper.answers import Outcome, ask
from mecheval.paper.numbers import Setting, claims
from mecheval.paper.questions import Layer, Not, Number, Question, Runs, Second, Side, Sides, Where
from mecheval.plain import parse_yaml

if TYPE_CHECKING:  # slow to import
    import pandas as pd

LEVEL = "A level at one width, which depends on the size of the task and the length of training."
"""Why some claims have no form at a smaller scale, where runs of ours are only compared with each other."""
KINDS = {kind.__name__.lower(): kind for kind in (Number, Runs, Sides, Second, Layer)}
WORDS = vars(limits) | {
    "number": f"within {100 * limits.TOLERANCE:g} points",
    "guessing": f"at most {100 * limits.NEAR_FLOOR:g} points above guessing among the document's values",
    "learnt": f"{100 * limits.LEARNT:g} points",
}  # fmt: skip
"""What stands in braces in the words of a test."""


class Form(NamedTuple):
    """A test of a claim: in words, and as questions that must all hold."""

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
    """What became of the claims about these studies; `mecheval.paper.estimates` has the rule.

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
