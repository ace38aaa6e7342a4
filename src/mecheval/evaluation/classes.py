"""Evaluates a mixer class in Python; it is trained in this process, as another could not import it from a notebook."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from mecheval import custom
from mecheval.errors import UserError
from mecheval.evaluation import paper_size
from mecheval.evaluation.custom import collect, prepare, train
from mecheval.evaluation.result import Evaluation, PaperEvaluation
from mecheval.mixers import MIXERS
from mecheval.store import DEFAULT_STORE, Store
from mecheval.sweep import HereEngine, LocalEngine, Stopped
from mecheval.tasks import Task

PAPER = "paper"


def evaluate_mixer(
    mixer: type[nn.Module], task: str | Task | None = None, *, scale: str = "laptop",
    options: Mapping[str, Any] | None = None, widths: Sequence[int] = (), seeds: int = 1,
    lr: float | Sequence[float] = (), compare: bool | None = None, store: str | Path = DEFAULT_STORE,
    report: str | Path | None = None, workers: int | None = None,
) -> Evaluation | PaperEvaluation:  # fmt: skip
    """Train a mixer's runs in this process, and those it is compared with in workers; see `evaluate`."""
    if isinstance(task, Task):
        given = {f"task.{option}": value for option, value in task.options.model_dump(mode="json").items()}
        options, task = {**given, **(options or {})}, task.name
    cls = custom.checked(mixer, mixer.__name__)
    name = custom.own_name(cls)
    MIXERS.replace(name, cls)
    rates = (lr,) if isinstance(lr, int | float) else tuple(lr)
    check_scale(scale, task, widths, compare)
    plain = False if "ipykernel" in sys.modules else None  # notebooks wrongly claim that they can move the cursor
    console = Console(stderr=True, force_jupyter=False, force_terminal=plain, highlight=False)
    opened = Store(store)
    try:
        if scale == PAPER:
            tasks = task.split(",") if task else ()
            asked, warnings = paper_size.ask(cls, name, options or {}, tasks, widths, rates, seeds, report)
            points = paper_size.train(asked, opened, HereEngine(), console)
            return paper_size.collect(asked, points, opened, warnings, report)
        trials, warnings = prepare(
            cls, name, task or "ar", scale, options or {}, seeds, rates, compare is not False, report
        )
        train(trials, opened, [HereEngine(), LocalEngine(workers)], console)
    except Stopped as stopped:
        raise KeyboardInterrupt("stopped; progress is saved, and the same call resumes.") from stopped
    return collect(trials, opened, warnings, report)


def check_scale(scale: str, task: str | None, widths: Sequence[int], compare: bool | None) -> None:
    """Raise an error for options that another scale has."""
    if scale == PAPER and compare is not None:
        raise UserError(
            "compare: scale paper trains no built-in mixers; it always compares with their published results."
        )
    if scale != PAPER and widths:
        raise UserError("widths: only scale paper takes widths; scale laptop has one.")
    if scale != PAPER and task and "," in task:
        raise UserError(f"scale {scale} takes one task (got {task}); scale paper takes several.")
