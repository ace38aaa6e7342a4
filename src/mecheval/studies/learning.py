"""Whether a run that does not recall cannot, or has not yet: how long it was trained, and where its loss is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mecheval.studies.axes import say
from mecheval.tasks import Task
from mecheval.training.early import SETTLES_FROM

ENOUGH = 0.5
"""Share of the paper's steps below which a run says nothing about what its mixer can learn."""
FALLS = 0.02
"""The training loss is still falling if it fell by more than this share over the last tenth of the steps."""
NEAR = 0.05
"""A loss is that of a guess if it is within this share of it."""
IN_DOCUMENT = "one of the document's values"
"""What a model guesses that has found the document's values but not the pair."""
LADDER = (3e-4, 1e-3, 3e-3, 1e-2)
"""Learning rates to try, one after another."""


@dataclass(frozen=True)
class Learning:
    """How a run that was trained for `step` steps learnt, in words."""

    step: int
    steps: int  # that such a run usually has
    loss: float  # the mean training loss over the last tenth of its steps
    before: float  # the mean over the tenth before; NaN if the run was too short
    level: str  # where that loss is among the losses of guessing
    message: str  # why it ended early, if it did
    guessed: bool  # whether that was because it was no better than guessing
    whose: str = "the paper's"  # whose steps these are

    @property
    def short(self) -> bool:
        """Whether it was trained for too few steps to say anything."""
        return self.step < ENOUGH * self.steps

    @property
    def falling(self) -> bool:
        """Whether its training loss was still falling at the end."""
        return self.before - self.loss > FALLS * self.before

    def describe(self, rates: Sequence[float], further: str, others: str = "") -> str:
        """What was seen, and what to try next, in a few sentences.

        `further` is the last option to try, and `others` says what became of runs like it.
        """
        ended = f" ({self.message})" if self.message else ""
        what = f"learning rate{'s' * (len(rates) > 1)} {_listed(rates)}"
        said = [f"it was trained for {self.step:,} of {self.whose} {self.steps:,} steps{ended} with {what}."]
        if self.loss == self.loss:
            moved = f"{'was still falling' if self.falling else 'no longer fell'} (from {self.before:.2f}) and was"
            moves = moved if self.before == self.before else "was"
            said.append(f"Its training loss {moves} {self.loss:.2f}, {self.level}.")
        return " ".join([*said, *filter(None, [others]), self._next(rates, further)])

    def _next(self, rates: Sequence[float], further: str) -> str:
        if self.short:
            return "That is too short to conclude anything; train it to the last step."
        untried = [rate for rate in LADDER if rate not in rates]
        tries = [f"--lr {','.join(say('lr', rate) for rate in untried)}"] if untried else []
        if self.falling and self.message:
            tries.insert(0, "--set early=false (train to the last step)")
        return f"To try next: {', '.join([*tries, further])}."


def learning(
    row: Mapping[str, Any], history: Sequence[Mapping[str, Any]], task: Task, chance: float, steps: int,
    whose: str = "the paper's",
) -> Learning:  # fmt: skip
    """The learning of a run: its row of table `runs` and its history; `steps` are those that such a run usually has."""
    step = int(row["step"] or 0)
    loss, before = (_between(history, 1 - (n + 1) / 10, 1 - n / 10, step) for n in range(2))
    steps_of_run = int(row["steps"] or 0)
    message = str(row.get("message") or "") if step < steps_of_run else ""
    guessed = bool(message) and step < SETTLES_FROM * steps_of_run
    return Learning(step, steps, loss, before, plateau(loss, guesses(task, chance)), message, guessed, whose)


def guesses(task: Task, chance: float) -> dict[str, float]:
    """The losses of guessing, highest first, by what is guessed."""
    found = {"any token": math.log(task.vocab_size)}
    values = getattr(task.options, "values", None)
    if isinstance(values, int):
        found["any value"] = math.log(values)
        if 0 < chance < 1 and getattr(task.options, "queries", 1) == 1:  # later answers can exclude values
            found[IN_DOCUMENT] = -math.log(chance)
    return found


def plateau(loss: float, levels: Mapping[str, float]) -> str:
    """Where a training loss is among the losses of guessing."""
    if math.isnan(loss):
        return ""
    named = list(levels.items())
    for name, level in reversed(named):
        if abs(loss - level) <= NEAR * level:
            return f"that of guessing {name} ({level:.2f})"
    higher = [f"below that of guessing {name} ({level:.2f})" for name, level in named if loss < level]
    lower = [f"above that of guessing {name} ({level:.2f})" for name, level in named if loss > level]
    if not lower and IN_DOCUMENT in levels:
        return f"{higher[-1]}: it learns its training documents by heart"
    return " and ".join([*higher[-1:], *lower[:1]])


def _between(history: Sequence[Mapping[str, Any]], low: float, high: float, step: int) -> float:
    """The mean training loss between two shares of the steps; NaN if no row lies there."""
    found = [row["loss"] for row in history if low * step < row["step"] <= high * step]
    return sum(found) / len(found) if found else math.nan


def _listed(rates: Sequence[float]) -> str:
    texts = [say("lr", rate) for rate in sorted(rates)]
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)
