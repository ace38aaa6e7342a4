"""Evaluates a custom mixer at the paper's size, beside published results: what is trained, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from torch import nn

from mecheval.config import RunConfig
from mecheval.errors import UserError
from mecheval.evaluation.ahead import one_after_another, slowness, timings
from mecheval.evaluation.checks import check_mixer
from mecheval.evaluation.custom import check_in_models, split_options
from mecheval.evaluation.result import PaperEvaluation
from mecheval.report import check_page, write_report
from mecheval.store import Store
from mecheval.store.schema import WHOLE
from mecheval.studies import with_seed
from mecheval.studies.axes import say
from mecheval.studies.finding import named
from mecheval.studies.peers import TASKS, is_at_paper_size, placings, published_mixers
from mecheval.studies.placing import NOUNS
from mecheval.studies.scales import runs
from mecheval.studies.table import RANK, with_rate
from mecheval.sweep import Engine, Job, Point, sweep
from mecheval.sweep.board import Board
from mecheval.sweep.driver import pending, rows_of
from mecheval.sweep.job import Event
from mecheval.training.progress import duration

WIDTHS = (32,)
"""Widths at which a mixer is trained unless others are given; at 32 a run takes minutes, and the mixers differ."""
RATES = (1e-3, 3e-3)
"""Learning rates with which a mixer is trained first."""
OUTWARD = {1e-3: 3e-4, 3e-3: 1e-2}
"""The rate that follows outward, if the best of `RATES` has not solved the task."""
SOLVED = 0.99
"""Accuracy on dev from which no other rate is tried."""


@dataclass(frozen=True)
class Asked:
    """What is to be evaluated: a registered mixer, and the options of its runs."""

    name: str
    options: Mapping[str, Any]  # of the mixer, and settings of the runs
    tasks: tuple[str, ...] = TASKS
    widths: tuple[int, ...] = WIDTHS
    rates: tuple[float, ...] = ()  # () means RATES and one of OUTWARD
    seeds: int = 1

    def points(self, store: Store) -> list[Point]:
        """The runs that are trained in any case, pairs first; where the store has a run to its last step, that run."""
        usual = {"evaluate.early": True, **self.options}
        grids = [
            runs(task, "paper", usual, mixer=(self.name,), d_model=(width,), lr=self.rates or RATES)
            for task in self.tasks for width in self.widths
        ]  # fmt: skip
        points = [with_seed(point, seed) for grid in grids for seed in range(self.seeds) for point in grid]
        return [_whole(point, store) for point in points]

    def outward(self, points: Sequence[Point], store: Store) -> list[Point]:
        """One more learning rate for each setting whose best run has not solved its task; none if rates were given."""
        if self.rates:
            return []
        rows = {row["run"]: row for row in rows_of(store)}
        settings: dict[tuple[Any, ...], list[Point]] = {}
        for point in points:
            config = point.config
            settings.setdefault((config.task.name, config.model.d_model, config.seed), []).append(point)
        more = []
        for group in settings.values():
            done = [point for point in group if rows.get(point.config.id, {}).get("status") == "done"]
            best = max(done, key=lambda point: [rows[point.config.id][name] or 0.0 for name in RANK], default=group[0])
            row = rows.get(best.config.id, {})
            if (row.get("dev_accuracy") or 0.0) < SOLVED:
                more.append(_whole(with_rate(best, OUTWARD[best.config.optimiser.lr]), store))
        return more


def _whole(point: Point, store: Store) -> Point:
    """The same run to its last step, if the store has it; otherwise the run itself."""
    config = point.config
    whole = replace(config, evaluate=config.evaluate.model_copy(update={"early": False}))
    return Point(point.axes, whole) if store.folder(whole.id).status()["status"] in WHOLE else point


def ask(
    cls: type[nn.Module], name: str, options: Mapping[str, Any], tasks: Sequence[str], widths: Sequence[int],
    rates: Sequence[float], seeds: int, report: str | Path | None,
) -> tuple[Asked, list[str]]:  # fmt: skip
    """Check everything before training; returns what is asked, and warnings about the mixer."""
    if report is not None:
        check_page(report)
    tasks, widths = tuple(dict.fromkeys(tasks or TASKS)), tuple(dict.fromkeys(widths or WIDTHS))
    for task in tasks:
        if task not in TASKS:
            raise UserError(f"at scale paper, mixers are compared on {' and '.join(TASKS)} (got task {task!r}).")
    if seeds < 1:
        raise UserError(f"seeds: must be at least 1 (got {seeds}).")
    inside, settings = split_options(cls, name, tasks[0], options)
    given = {**{f"mixer.{option}": value for option, value in inside.items()}, **settings}
    asked = Asked(name, given, tasks, widths, tuple(rates), seeds)
    grids = [runs(task, "paper", given, mixer=(name,), d_model=widths, lr=RATES[:1]) for task in tasks]
    for grid in grids:
        if not is_at_paper_size(grid[0].config.to_dict()):
            raise UserError("at scale paper, tasks and layers are the paper's, so that published results compare; "
                            "`mecheval train` takes others.")  # fmt: skip
    longest = max(grid[0].config.build_task().max_tokens for grid in grids)
    warnings = check_mixer(cls, inside, widths[0], longest)
    for grid in grids:
        check_in_models(cls, [point.config for point in grid])
    return asked, warnings


class Answers(Board):
    """A board that says where the mixer stands as soon as all of its runs on a task have ended."""

    def __init__(
        self, console: Console, title: str, waiting: Mapping[str, set[str]], among: Collection[str],
        paces: Sequence[tuple[RunConfig, float]] = (), before: str = "",
    ) -> None:  # fmt: skip
        super().__init__(console, title, paces=paces)
        self._left, self._among = {task: set(runs) for task, runs in waiting.items()}, among
        self._before = before  # words before a sentence

    def event(self, event: Event) -> None:
        super().event(event)
        if event.kind != "end":
            return
        for task in [task for task, left in self._left.items() if event.run in left]:
            self._left[task].discard(event.run)
            if not self._left[task]:
                with suppress(UserError):  # the end of the evaluation says what is wrong
                    for place in placings(self._store, [task], self._among):
                        for mixer in place.own():
                            said = f"{self._before}{place.sentence(mixer)}"
                            self._line(said, Text(said, "bold"))


def train(asked: Asked, store: Store, engine: Engine, console: Console) -> list[Point]:
    """Train what the store lacks, pairs before trees, then one more learning rate where it may help; all runs."""
    points = asked.points(store)
    _train(asked.name, points, points, store, engine, console, "" if asked.rates else "So far: ")
    more = asked.outward(points, store)
    _train(f"{asked.name}, one more learning rate", more, [*points, *more], store, engine, console)
    return [*points, *more]


def _train(
    name: str, points: Sequence[Point], among: Sequence[Point], store: Store, engine: Engine, console: Console,
    before: str = "",
) -> None:  # fmt: skip
    jobs = [Job(point.config) for point in points]
    todo = pending(jobs, store)
    if not todo:
        return
    waiting: dict[str, set[str]] = {}
    for job in todo:
        waiting.setdefault(job.config.task.name, set()).add(job.run)
    timed = list(timings([job.config for job in todo], store))
    for said in filter(None, (slowness(each, store) for each in timed)):
        console.print(said, markup=False)
    paces = [(each.config, each.plan.pace) for each in timed]
    board = Answers(
        console, f"{name}, at the paper's size", waiting, [point.config.id for point in among], paces, before
    )
    swept = sweep(jobs, store, engine, board, keep_order=True)
    for failure in swept.failures:
        raise UserError(f"{failure.title} failed: {failure.message}")


def collect(
    asked: Asked, points: Sequence[Point], store: Store, warnings: Sequence[str], report: str | Path | None
) -> PaperEvaluation:
    """Where the mixer stands, from the store, with a report on the store if that is wanted."""
    found = placings(store, asked.tasks, [point.config.id for point in points])
    written = None if report is None else write_report(store, report, "paper")
    return PaperEvaluation(asked.name, tuple(found), store.path, tuple(warnings), written)


def planned(asked: Asked, store: Store, workers: int) -> list[str]:
    """What an evaluation would train, how long that takes, and what it is compared with; nothing is trained."""
    points = asked.points(store)
    todo = pending([Job(point.config) for point in points], store)
    lines = [f"{asked.name} at the paper's size: {len(points)} runs, {len(points) - len(todo)} of them done", ""]
    timed = list(timings([point.config for point in points], store))
    rates = ", ".join(say("lr", rate) for rate in asked.rates or RATES)
    lasts = {}
    for each in timed:
        config, lasts[each.config.task.name, each.config.model.d_model] = each.config, each.seconds
        about = f"{NOUNS[config.task.name]:6} width {config.model.d_model:<4} learning rates {rates}"
        lines.append(f"{about}  {config.data.steps:,} steps  {duration(each.seconds)} a run")
    seconds = [lasts.get((job.config.task.name, job.config.model.d_model), 0.0) for job in todo]
    more = [] if asked.rates else [lasts[place] for place in lasts for _ in range(asked.seeds)]
    total = one_after_another(seconds, workers)
    said = f"time   at most {duration(total)} on {workers} cores; less where runs end early"
    lines += ["", said]
    if more:
        last = duration(one_after_another(more, workers))
        lines.append(f"       and at most {last} more where a third learning rate is tried")
    lines += ["", *compared_with(asked, store)]
    return [*lines, *filter(None, (slowness(each, store) for each in timed))]


def compared_with(asked: Asked, store: Store) -> list[str]:
    """The mixers with results at each task and width, as lines."""
    lines = []
    for task in asked.tasks:
        for width in asked.widths:
            mixers = published_mixers(store, task, width)
            others = named(mixers) if mixers else "no published results"
            lines.append(f"{NOUNS[task]} at width {width} are compared with {others}.")
    return lines
