"""When a run may end before its last step because nothing is lost by it (`evaluate.early`).

The rule was fixed from the histories of the published runs on associative recall and treecall; a table in
docs/training.md counts what it would have cost them. The learning-rate schedule stays that of the full run, so a run
that ends early has the weights that the full run has at that step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mecheval.config import RunConfig
from mecheval.tasks import Task

SOLVED = 0.99
"""Likelihood of the answer on dev from which a run is solved."""
GUESSES_AT = 0.5
"""Share of the steps after which a run ends if its dev accuracy is below that of guessing.

Every published run that recalls a quarter of its pairs at width 32 was at 0.2 or above by then, and guessing reaches
0.0625.
"""
SETTLES_FROM, WINDOW, RISE = 0.7, 0.1, 0.01
"""A run has settled if, from this share of the steps on, its mean dev likelihood over the last tenth of the steps
exceeds that over the tenth before by less than 0.01."""

GUESSING, SETTLED, REACHED = "no better than guessing", "settled", "solved"
"""The reasons to end early."""


class Ending(NamedTuple):
    """Why a run ended early, and at which step."""

    kind: str
    step: int

    def __str__(self) -> str:
        return f"ended early: {self.kind} at step {self.step:,}"


def ending(history: Sequence[Mapping[str, Any]], steps: int, guess: float) -> Ending | None:
    """Why a run of `steps` steps ends at the last row of its history; None if it goes on.

    `guess` is the accuracy of the best guess that recalls nothing.
    """
    if not history or history[-1]["step"] >= steps:
        return None
    last = history[-1]
    step, before = last["step"], history[-2]["step"] if len(history) > 1 else 0
    if last["dev_likelihood"] >= SOLVED:
        return Ending(REACHED, step)
    half = GUESSES_AT * steps
    if before < half <= step and last["dev_accuracy"] < guess:
        return Ending(GUESSING, step)
    if step >= SETTLES_FROM * steps and _has_settled(history, step, WINDOW * steps):
        return Ending(SETTLED, step)
    return None


def _has_settled(history: Sequence[Mapping[str, Any]], step: int, window: float) -> bool:
    recent = [row["dev_likelihood"] for row in history if row["step"] > step - window]
    older = [row["dev_likelihood"] for row in history if step - 2 * window < row["step"] <= step - window]
    return bool(older) and sum(recent) / len(recent) - sum(older) / len(older) < RISE


def guess_level(config: RunConfig, task: Task) -> float:
    """The accuracy on a run's dev documents of the best guess that recalls nothing."""
    chance = task.sample(config.evaluate.documents, "dev", config.evaluate.seed).chance
    return 0.0 if chance is None else float(chance.mean())
