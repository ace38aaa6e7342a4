"""Evaluates a custom mixer: plans its runs, checks it, trains it, intervenes on it and compares it with others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from torch import nn

from mecheval.analysis.runs import alone, documents, kept_evidence, load_run
from mecheval.config import RunConfig
from mecheval.config.presets import place
from mecheval.custom import file_of, line_in
from mecheval.errors import UnknownName, UserError, said
from mecheval.evaluation.checks import arguments_of, check_mixer
from mecheval.evaluation.result import Evaluation, summarised
from mecheval.intervene import Evidence, evidence, interchange, verdict
from mecheval.report import check_page, write_report
from mecheval.store import Store
from mecheval.studies import SCALES, Study, get_study, study_table, with_seed
from mecheval.studies.learning import learning
from mecheval.studies.scales import BASE, QUICK, RATES, at_block_1, at_scale, one_width, preferred, runs
from mecheval.sweep import Engine, Job, Point, sweep
from mecheval.sweep.board import Board
from mecheval.sweep.driver import pending
from mecheval.tasks import TASKS
from mecheval.training.plan import plan as time_steps

if TYPE_CHECKING:  # slow to import
    import pandas as pd

FIXED = {
    "d_model": "the width is given separately (--widths, widths=), at scale paper",
    "layer": "it is the number of the block",
    "lr": "learning rates are given separately (--lr, lr=)",
    "seed": "seeds are given separately (--seeds, seeds=)",
    "name": "in a config, this is the name of the mixer",
    "mixer": "the mixer is what is evaluated",
    "task": "the task is given separately (--task, task=)",
    "preset": "the scale is given separately (--scale, scale=)",
}
"""Names that cannot be options of a custom mixer, and the reason."""


@dataclass(frozen=True)
class Trials:
    """The runs of an evaluation; nothing is trained yet."""

    name: str  # the name of the custom mixer
    study: Study  # the study that defines the readings
    scale: str
    own: tuple[Point, ...]
    others: tuple[Point, ...]

    @property
    def title(self) -> str:
        return f"{self.name} on {self.study.name} ({self.scale})"

    def jobs(self, points: Sequence[Point]) -> list[Job]:
        return [Job(point.config, self.study.splits) for point in points]


def make_trials(
    cls: type[nn.Module], name: str, task: str, scale: str, options: Mapping[str, Any], seeds: int,
    rates: Sequence[float], compare: bool,
) -> Trials:  # fmt: skip
    """The runs of a registered mixer at a scale, and of the built-in ones with the same settings."""
    if scale not in SCALES:
        raise UnknownName("scale", scale, SCALES)
    meaning = TASKS.get(task).meaning
    if seeds < 1:
        raise UserError(f"seeds: must be at least 1 (got {seeds}).")
    inside, settings = split_options(cls, name, task, options)
    given = {**{f"mixer.{option}": value for option, value in inside.items()}, **settings}
    rates = tuple(rates) or at_scale(RATES, task, scale)
    base = QUICK if (task, scale) == ("ar", "laptop") else {}  # so that the quickstart's runs serve as the comparison
    own = runs(task, scale, {**base, **given}, mixer=(name,), **one_width(task, scale), lr=rates)
    others = preferred(task, scale, {**base, **settings}) if compare else []
    study = replace(get_study("ar"), name=task, readings=at_block_1(meaning))
    return Trials(name, study, scale, _seeded(own, seeds), _seeded(others, seeds))


def split_options(
    cls: type[nn.Module], name: str, task: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the mixer, and settings of the run (`steps`, `task.pairs`), which the other mixers share.

    A name that both have means the mixer's option; with its part, as in `data.steps`, it means the run's.
    """
    arguments, any_name = arguments_of(cls)
    inside, settings = {}, {}
    for option, value in options.items():
        part, dot, field = option.partition(".")
        mine = field if dot and part == "mixer" else option
        if mine in FIXED:
            raise UserError(f"{cls.__name__}: {mine!r} cannot be an option: {FIXED[mine]}.")
        if mine in arguments or (mine != option and any_name):
            inside[mine] = _plain(cls, mine, value)
        elif mine != option:
            raise UnknownName(f"option of {cls.__name__}", mine, arguments)
        else:
            try:
                place(option, task, name)
                settings[option] = value
            except UnknownName as error:
                if dot:
                    raise
                if not any_name:
                    choices = {*arguments, *error.choices} - FIXED.keys()
                    raise UnknownName(f"option of {cls.__name__}", option, choices) from None
                inside[option] = _plain(cls, option, value)
    return inside, settings


def _plain(cls: type[nn.Module], option: str, value: Any) -> Any:
    """The value as JSON reads it back, because options are part of the run's id."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        what = "numbers, text, true, false, null, and lists of those"
        raise UserError(f"{cls.__name__}: option {option!r} must be plain data ({what}; got {value!r}).") from None


def _seeded(points: Sequence[Point], seeds: int) -> tuple[Point, ...]:
    return tuple(with_seed(point, seed) for point in points for seed in range(seeds))


DOCUMENTS = 4
"""Number of documents on which interventions are tried before anything is trained."""


def prepare(
    cls: type[nn.Module], name: str, task: str, scale: str, options: Mapping[str, Any], seeds: int,
    rates: Sequence[float], compare: bool, report: str | Path | None,
) -> tuple[Trials, list[str]]:  # fmt: skip
    """Check everything before training; returns the runs of a registered mixer, and warnings about it."""
    if report is not None:
        check_page(report)
    trials = make_trials(cls, name, task, scale, options, seeds, rates, compare)
    inside, _ = split_options(cls, name, task, options)
    configs = {point.config.model.d_model: point.config for point in trials.own}
    first = next(iter(configs.values()))
    warnings = check_mixer(cls, inside, first.model.d_model, first.build_task().max_tokens)
    check_in_models(cls, list(configs.values()))
    return trials, warnings


def train(trials: Trials, store: Store, engines: Sequence[Engine], console: Console) -> None:
    """Train the missing runs: all with one engine, or the custom mixer's with the first of two engines."""
    parts = [trials.own + trials.others] if len(engines) == 1 else [trials.own, trials.others]
    mine, paces = {point.config.id for point in trials.own}, timed(trials, store)
    for engine, points in zip(engines, parts, strict=True):
        if not points:
            continue
        swept = sweep(trials.jobs(points), store, engine, Board(console, trials.title, paces=paces))
        for failure in swept.failures:
            if failure.run in mine:
                raise UserError(f"{failure.title} failed: {failure.message}")
            console.print(f"failed: {failure.title}: {failure.message}", markup=False)


def timed(trials: Trials, store: Store) -> list[tuple[RunConfig, float]]:
    """Seconds per step of the custom mixer at each width still to be trained, measured in a few steps."""
    todo = {job.config.model.d_model: job.config for job in pending(trials.jobs(trials.own), store)}
    paces = []
    for config in todo.values():
        with suppress(Exception):  # a mixer that fails here also fails in its run, which reports it
            paces.append((config, time_steps(config, store).pace))
    return paces


def collect(trials: Trials, store: Store, warnings: Sequence[str], report: str | Path | None) -> Evaluation:
    """Read the table from the store, and the verdict from the custom mixer's best runs at its largest width."""
    frame = study_table(trials.study, [*trials.own, *trials.others], store).best().frame
    mine = frame[(frame["mixer"] == trials.name) & (frame["status"] == "done")]
    mine = mine[mine["d_model"] == mine["d_model"].max()]
    measured = {row["seed"]: _measured(store, row["run"]) for row in mine.to_dict("records")}
    effects = {seed: rows for seed, (rows, _) in measured.items()}
    written = None
    if report is not None:
        written = write_report(store, report, trials.scale)
    found = verdict([found for _, found in measured.values()]) if measured else None
    small = trials.scale == "laptop"
    rows, joined = summarised(frame), _joined(effects)
    notes = () if found is None or found.label != "not_learnt" else (_why_not(trials, store, mine, found.chance),)
    return Evaluation(trials.title, trials.name, rows, found, joined, tuple(warnings), written, small, notes)


def _why_not(trials: Trials, store: Store, runs: pd.DataFrame, chance: float) -> str:
    """How long the first of a mixer's best runs was trained and where its loss is, when it has not learnt."""
    folder = store.folder(runs["run"].iloc[0])
    config = next(point.config for point in trials.own if point.config.id == folder.id)
    steps = at_scale(BASE, trials.study.name, trials.scale).get("steps", config.data.steps)
    task, whose = config.build_task(), f"scale {trials.scale}'s"
    learnt = learning(folder.status(), folder.read("history"), task, chance, steps, whose)
    said = learnt.describe(sorted({point.config.optimiser.lr for point in trials.own}), "--scale paper")
    return f"{said[0].upper()}{said[1:]}"


def check_in_models(cls: type[nn.Module], configs: Sequence[RunConfig]) -> None:
    """Build a language model of each width around the mixer, and intervene at all sites of the first."""
    task = configs[0].build_task()
    clean = task.sample(DOCUMENTS, "test")
    try:
        with alone(1):
            models = [config.build_lm(task) for config in configs]
            interchange(models[0], clean, task.corrupt(clean))
    except UserError:
        raise
    except Exception as error:
        where = line_in(file_of(cls), error)
        raise UserError(f"{cls.__name__} does not work in a model under interventions{where}: {said(error)}") from None


def _measured(store: Store, run: str) -> tuple[pd.DataFrame, Evidence]:
    """A run's map, and the evidence that is kept with it, or is measured again."""
    folder = store.folder(run)
    trained, kept = load_run(folder), kept_evidence(folder)
    with alone(trained.config.machine.threads):
        clean, corrupted = documents(trained.task, trained.config, "test")
        effects = interchange(trained.lm, clean, corrupted)
        return effects, kept or evidence(trained.lm, clean, corrupted)


def _joined(effects: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    if len(effects) == 1:
        return next(iter(effects.values()))
    return pd.concat([frame.assign(seed=seed) for seed, frame in effects.items()]) if effects else pd.DataFrame()
