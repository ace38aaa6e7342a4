"""Drives a sweep: an engine does what is missing of a list of jobs; how far it is, and how long the rest takes."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from mecheval.config import RunConfig
from mecheval.mixers.options import LONG
from mecheval.store import Store, StoreError
from mecheval.store.location import check_writable, remove_stale
from mecheval.store.schema import WHOLE
from mecheval.sweep.engine import Engine
from mecheval.sweep.job import Event, Job
from mecheval.tasks import build_task

FEW = 16
"""Documents from which the length of a padded one is guessed."""
LAYER_SECONDS, OPERATIONS, LONGER, EARLY = 1e-3, 9e10, 2.0, 0.5
"""For a guess where nothing is measured: seconds per layer and step, operations per second, how many times longer a
step takes with mixers that carry a state along the document or convolve over all of it, and the part of its steps that
a run takes which stops once it has learnt."""


class SweepWatcher(Protocol):
    """Hears what happens in a sweep."""

    def begin(self, jobs: Sequence[Job], todo: Sequence[Job], store: Store, workers: int) -> None:
        """The sweep is about to work on `todo`, the part of `jobs` that is missing."""

    def event(self, event: Event) -> None:
        """Something happened to a run."""

    def end(self) -> None:
        """The sweep has ended or was stopped."""


@dataclass(frozen=True)
class Failure:
    """A run that could not be done; the same sweep tries it again."""

    run: str
    title: str
    message: str


@dataclass(frozen=True)
class Swept:
    """The outcome of a sweep."""

    jobs: int
    worked_on: int  # the others were done before
    diverged: int
    failures: tuple[Failure, ...]


def sweep(jobs: Iterable[Job], store: Store, engine: Engine, watcher: SweepWatcher, address: str = "") -> Swept:
    """Bring every job to its end: done runs are left alone, interrupted ones resume, failed ones are tried again.

    `address` is what workers open when the store is a local copy of one that is elsewhere. A store that cannot be
    written is refused before anything is computed.
    """
    jobs = merged(jobs)
    todo = in_order(pending(jobs, store), store)
    ended: dict[str, Event] = {}

    def hear(event: Event) -> None:
        if event.kind == "end":
            ended[event.run] = event
        watcher.event(event)

    if todo:
        check_writable(store.path / "runs", "store")
    watcher.begin(jobs, todo, store, engine.workers)
    try:
        if todo:
            engine.run(todo, address or str(store.path), hear)
    finally:
        watcher.end()
        remove_stale(store.path)  # of a sweep on a cluster that was killed, and that this one may have finished
    failures = [Failure(job.run, job.config.title, ended[job.run].message) for job in todo
                if job.run in ended and ended[job.run].status == "failed"]  # fmt: skip
    states = statuses(store)
    diverged = sum(states.get(job.run) == "diverged" for job in jobs)
    return Swept(len(jobs), len(todo), diverged, tuple(failures))


def merged(jobs: Iterable[Job]) -> list[Job]:
    """Each run once, with all splits that any of the jobs asks for."""
    found: dict[str, Job] = {}
    for job in jobs:
        if job.run in found:
            job = replace(job, splits=tuple(dict.fromkeys((*found[job.run].splits, *job.splits))))
        found[job.run] = job
    return list(found.values())


def in_order(jobs: Sequence[Job], store: Store) -> list[Job]:
    """Runs that were begun come first, then the longest: a long run at the end would leave all workers but one idle."""
    rows = rows_of(store)
    begun, estimate = {row["run"] for row in rows}, Estimate(rows)
    return sorted(jobs, key=lambda job: (job.run not in begun, -estimate.seconds(job.config)))


def pending(jobs: Sequence[Job], store: Store) -> list[Job]:
    """The jobs with something left to do."""
    is_done = done_in(store)
    return [job for job in jobs if not is_done(job)]


def done_in(store: Store) -> Callable[[Job], bool]:
    """A function that says whether a job has nothing left to do, by what is in the store now."""
    states = statuses(store)
    found = store.query("select distinct run, split from verdicts where state = 'last'") if states else None
    judged = set() if found is None else set(zip(found["run"], found["split"], strict=True))

    def is_done(job: Job) -> bool:
        state = states.get(job.run)
        return state == "diverged" or (state in WHOLE and all((job.run, split) in judged for split in job.splits))

    return is_done


def rows_of(store: Store) -> list[dict[str, Any]]:
    """Rows of table runs; none where there is no store yet."""
    try:
        return store.rows() if store.exists() else []
    except OSError as error:  # such as a folder above it that one may not look into
        raise StoreError(f"cannot read {store.path}: {error.strerror or error}.") from error


def statuses(store: Store) -> dict[str, str]:
    """Every run's status."""
    return {row["run"]: row["status"] for row in rows_of(store)}


class Estimate:
    """Seconds that runs take on one core, from what was measured.

    A run takes as many steps as runs of the same shape that are done, at the pace of runs of the same kind: the pace in
    this sweep, else the fastest in the store, because a busy machine makes runs slow and nothing makes them fast. Only
    where there is neither is the time guessed from parameters and tokens, which is good enough to begin with the
    longest run.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._steps: dict[str, list[int]] = defaultdict(list)  # of done runs, by shape
        self._before, self._now = dict[str, float](), dict[str, float]()  # seconds per step, by kind
        for row in rows:
            seconds, steps = row["seconds"] or 0.0, row["step"] or 0
            if seconds > 0 and steps > 0 and row["config"]:  # the row may be another program's
                if row["status"] in WHOLE:
                    self._steps[_shape(row["config"])].append(steps)
                kind, pace = _kind(row["config"]), seconds / steps
                self._before[kind] = min(pace, self._before.get(kind, pace))

    def learn(self, config: RunConfig, seconds: float, steps: int, done: bool = False) -> None:
        """Note how long a run of this sweep took for some steps, and whether they were all that it needs."""
        plain = config.to_dict()
        self._now[_kind(plain)] = seconds / steps
        if done:
            self._steps[_shape(plain)].append(steps)

    def seconds(self, config: RunConfig) -> float:
        """How long the whole run is expected to take."""
        plain = config.to_dict()
        kind, known = _kind(plain), self._steps.get(_shape(plain))
        pace = self._now.get(kind) or self._before.get(kind, 0.0) * self._slowdown()
        return pace * (statistics.fmean(known) if known else config.data.steps) if pace else _guess(config)

    def _slowdown(self) -> float:
        """How many times as long as before a step takes in this sweep, where both are known."""
        both = self._now.keys() & self._before
        return statistics.median(self._now[kind] / self._before[kind] for kind in both) if both else 1.0


def _shape(config: Mapping[str, Any]) -> str:
    """All that the time depends on: not the seed, and the learning rate only through when a run may stop."""
    kept = {name: part for name, part in config.items() if name not in ("seed", "optimiser")}
    return json.dumps(kept, sort_keys=True)


def _kind(config: Mapping[str, Any]) -> str:
    """What the time of a step depends on: the task, the mixer, the sizes of the model and of a batch."""
    data = config.get("data")
    batch = data.get("batch_size") if isinstance(data, dict) else None  # the config may be another program's
    return json.dumps([config.get("task"), config.get("mixer"), config.get("model"), batch], sort_keys=True)


def _guess(config: RunConfig) -> float:
    model, data = config.model, config.data
    options = {name.rpartition(".")[2]: value for name, value in config.mixer.options.items()}  # mamba.d_conv
    vocabulary, length = _sizes(json.dumps(config.task.data(), sort_keys=True), data.batch_size)
    parameters = model.d_model * (vocabulary + 12 * model.d_model * model.n_layers)
    step = LAYER_SECONDS * model.n_layers + 6 * parameters * data.batch_size * length / OPERATIONS
    is_long = {"d_state", "filter_order"} & options.keys() or LONG in np.atleast_1d(options.get("kernel_size", 0))
    return data.steps * step * (LONGER if is_long else 1) * (1 if config.evaluate.stop_at is None else EARLY)


@lru_cache
def _sizes(task: str, batch_size: int) -> tuple[int, int]:
    """Vocabulary, and tokens of a padded document; a few documents are written without kernels, which load slowly."""
    options = json.loads(task)
    made = build_task(options.pop("name"), **options)
    return made.vocab_size, int(np.diff(made.reference(min(batch_size, FEW), "dev").starts).max())


@dataclass(frozen=True)
class RunningRun:
    """A run that a process is training; the step is that of its last checkpoint."""

    run: str
    title: str
    step: int
    steps: int


@dataclass(frozen=True)
class Standing:
    """The runs of a sweep by their state in the store, and the seconds that the rest takes."""

    runs: int
    done: int
    running: tuple[RunningRun, ...]
    failed: int  # the same sweep tries them again
    left: int  # not begun, or interrupted
    seconds: float


def standing(jobs: Sequence[Job], store: Store, workers: int) -> Standing:
    """How far a sweep is, by its store: also while another process, or another machine, works on it.

    `workers` is how many runs are worked on at once.
    """
    jobs = merged(jobs)
    todo = pending(jobs, store)
    rows = {row["run"]: row for row in rows_of(store)}
    estimate, states = Estimate(rows.values()), Counter(rows[job.run]["status"] for job in todo if job.run in rows)
    rest = [_seconds(job, rows.get(job.run, {"status": None}), estimate) for job in todo]
    running = tuple(
        RunningRun(job.run, job.config.title, rows[job.run]["step"] or 0, job.config.data.steps)
        for job in todo if job.run in rows and rows[job.run]["status"] == "running"
    )  # fmt: skip
    left = len(todo) - len(running) - states["failed"]
    return Standing(len(jobs), len(jobs) - len(todo), running, states["failed"], left, time_left(rest, workers))


def time_left(rest: Sequence[float], workers: int) -> float:
    """Seconds to the end of runs that need so long each: shared by the workers, but no less than the longest."""
    return max([sum(rest) / max(1, workers), *rest], default=0.0)


def _seconds(job: Job, row: dict[str, Any], estimate: Estimate) -> float:
    """Seconds that are left of a run: at its own pace while it is trained, else by the pace of runs like it."""
    step, steps = row.get("step") or 0, job.config.data.steps
    if row["status"] == "done":  # only interventions are missing
        return 0.0
    if row["status"] == "running" and step and row["seconds"]:
        return float(row["seconds"]) / step * (steps - step)
    return estimate.seconds(job.config) * (1 - step / steps)
