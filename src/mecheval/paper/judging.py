"""Judges the paper's claims by our runs; `mecheval.paper.estimates` explains the rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mecheval.paper.claims import Test as Form
from mecheval.paper.claims import all_claims, described
from mecheval.paper.estimates import Part
from mecheval.paper.numbers import Setting
from mecheval.paper.rows import cells, different, rows_of
from mecheval.paper.selection import About, Answer, Runs, listed

if TYPE_CHECKING:  # slow to import
    import pandas as pd

Outcome = Literal["reproduced", "contradicted", "inconclusive", "not tested"]
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "contradicted", "inconclusive", "not tested")
WORDS = {"fails": "Fails", "unsure": "Undecided", "holds": "Holds", "open": "Not run"}
"""What the evidence calls the states of parts, in the order in which it lists them."""
LEVEL = "A level at one width, which depends on the size of the task and the length of training."
"""Why some claims have no test at a smaller scale, where our runs are compared only with each other."""


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
    """Judge the claims about these studies.

    `frames` holds each study's table of chosen runs, `settings` each study's settings by task (`settings_of`).
    """
    judged = []
    for claim in all_claims():
        if claim.study not in frames:
            continue
        about = (claim.name, claim.says, claim.study, claim.where, claim.setting, claim.said)
        form = claim.at(scale)
        if form is None:
            tested = f"at the paper's scale only: {described(claim.test)}"
            judged.append(Judged(*about, tested, "not tested", LEVEL, 0))
            continue
        floor = settings[claim.study]["ar"].guessing if "ar" in settings[claim.study] else math.nan
        documents = min(setting.documents for setting in settings[claim.study].values())
        found = ask(form, frames[claim.study], About(floor, documents))
        judged.append(Judged(*about, described(form), *found))
    return judged


def ask(form: Form, frame: pd.DataFrame, about: About) -> tuple[Outcome, str, int]:
    """The outcome, the evidence in words, and how many seeds every setting has that the claim is about."""
    if not frame["status"].isin(("done", "diverged")).any():
        return "not tested", "There are no runs.", 0
    rows = rows_of(frame)
    found = form(Runs(rows, rows, about))
    answers = [found] if isinstance(found, Answer) else list(found)
    parts = [part for each in answers for part in each.parts]
    there = sum(part.quantity is not None for part in parts)
    states = [[part.state(there) for part in each.parts] for each in answers]
    flat = [state for each in states for state in each]
    said = {name: listed([p.words for p, state in zip(parts, flat, strict=True) if state == name]) for name in WORDS}
    evidence = " ".join(f"{WORDS[state]}: {text}." for state, text in said.items() if text)
    seeds = _seeds(answers)
    if said["fails"]:
        return "contradicted", evidence, seeds
    complete = [_complete(each.parts, found) for each, found in zip(answers, states, strict=True) if each.parts]
    if not complete or not all(complete):
        return "not tested", evidence or "No run learnt.", seeds
    whole = all(state == "holds" for each in complete for state in each)
    return "reproduced" if whole else "inconclusive", evidence, seeds


def _seeds(answers: Sequence[Answer]) -> int:
    """The fewest seeds of a setting that has runs and that an answer is about."""
    about = [row for answer in answers for row in answer.runs if row["status"] in ("done", "diverged")]
    return min((len(different(cell, "seed")) for _, cell in cells(about, about)), default=0)


def _complete(parts: Sequence[Part], states: Sequence[str]) -> list[str]:
    """The states of a question's parts at widths where no run is missing."""
    gaps = {part.group for part, state in zip(parts, states, strict=True) if state == "open"}
    return [state for part, state in zip(parts, states, strict=True) if part.group not in gaps]
