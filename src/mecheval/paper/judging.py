"""What became of each claim of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mecheval.paper.checks import Check
from mecheval.paper.claim_tests import TESTS, Predicate
from mecheval.paper.numbers import claims
from mecheval.paper.settings import Setting

if TYPE_CHECKING:  # slow to import
    import pandas as pd

Outcome = Literal["reproduced", "contradicted", "not tested"]
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "contradicted", "not tested")
LEVEL = "A level at one width, which depends on the size of the task and the length of training."
"""Why some claims have no form at a smaller scale: there, only runs of ours are compared with each other."""


@dataclass(frozen=True)
class Judged:
    """A claim, how it was tested, and the outcome with its evidence."""

    claim: str
    study: str
    where: str
    setting: str
    said: str
    tested: str
    outcome: Outcome
    evidence: str


def judge_claims(
    frames: Mapping[str, pd.DataFrame], scale: str, settings: Mapping[str, Mapping[str, Setting]]
) -> list[Judged]:
    """What became of the claims about these studies.

    `frames` holds each study's table of chosen runs, `settings` each study's settings by task (`settings_of`).
    A claim is reproduced if it holds in every seed, contradicted if it fails in any, and otherwise not tested.
    """
    judged = []
    for claim in claims():
        test = TESTS[claim.id]
        if test.study not in frames:
            continue
        about = (claim.id, test.study, claim.where, claim.setting, claim.said)
        words, question = (test.words, test.question) if scale == "paper" else (test.smaller_words, test.smaller)
        if question is None:
            judged.append(Judged(*about, f"at the paper's scale only: {test.words}", "not tested", LEVEL))
            continue
        recall = settings[test.study].get("ar")
        floor = recall.guessing if recall else math.nan
        judged.append(Judged(*about, words, *ask(question, frames[test.study], floor)))
    return judged


def ask(question: Predicate, frame: pd.DataFrame, floor: float) -> tuple[Outcome, str]:
    """Ask each seed; the outcome, and the evidence in words."""
    by_seed = {seed: question(rows, floor) for seed, rows in frame.groupby("seed")} if len(frame) else {}
    if not by_seed:
        return "not tested", "There are no runs."
    outcome = _outcome([one for checks in by_seed.values() for one in checks])
    if len(by_seed) == 1:
        return outcome, _sentences(next(iter(by_seed.values())))
    seeds: dict[Outcome, list[str]] = {name: [] for name in OUTCOMES}
    for seed, checks in by_seed.items():
        seeds[_outcome(checks)].append(str(seed))
    verbs = dict(zip(OUTCOMES, ("holds", "fails", "open"), strict=True))
    tally = ", ".join(
        f"{verbs[name]} in {len(s)} of {len(by_seed)} seeds ({', '.join(s)})" for name, s in seeds.items() if s
    )
    told = " ".join(f"Seed {seed}: {_sentences(checks)}" for seed, checks in by_seed.items())
    return outcome, f"{tally[0].upper()}{tally[1:]}. {told}"


def _outcome(checks: Sequence[Check]) -> Outcome:
    """One failure contradicts; one open question, or none at all, leaves it untested."""
    results = {one.result for one in checks}
    if "fails" in results:
        return "contradicted"
    return "reproduced" if "holds" in results and "open" not in results else "not tested"


def _sentences(checks: Sequence[Check]) -> str:
    """What was found; where answers differ, by answer, what fails first."""
    groups = {name: [one.said for one in checks if one.result == name] for name in ("fails", "holds", "open")}
    told = {name: said for name, said in groups.items() if said}
    labelled = len(told) > 1
    parts = [(f"{name.capitalize()}: " if labelled else "") + "; ".join(said) for name, said in told.items()]
    asides = "; ".join(one.said for one in checks if one.result == "aside")
    return f"{'. '.join(parts)}{f' ({asides})' if asides else ''}."
