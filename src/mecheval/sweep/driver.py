"""Drives a sweep: has an engine do the unfinished jobs, reports progress and estimates the time left."""

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
from mecheval.store.location import check_writable, remove_stale, unmoved
from mecheval.store.schema import WHOLE
from mecheval.sweep.engine import Engine
from mecheval.sweep.job import Event, Job
from mecheval.tasks import build_task

FEW = 16
"""Number of documents from which the length of documents is estimated."""
SLOW = {"d_state", "filter_order", "expand_v", "lru_width", "lambda_lower_bound"}
"""Options of mixers whose steps take long, and which are not known to learn in a few of them."""
LAYER_SECONDS, WEIGHT_SECONDS, OPERATIONS, LONGER, EARLY = 1e-3, 2e-9, 9e10, 2.0, 0.5
"""Constants for a guess when nothing has been measured: seconds per step and layer; seconds per step and weight of the
head; operations per second; how many times longer a step takes with mixers that carry a state or have long
convolutions; and the fraction of its steps that a run with early stopping takes."""


class SweepWatcher(Protocol):
    """Is notified of what happens in a sweep."""

    def begin(self, jobs: Sequence[Job], todo: Sequence[Job], store: Store, workers: int) -> None:
        """Called before the sweep starts on `todo`, the unfinished part of `jobs`."""

    def event(self, event: Event) -> None:
        """Called for each event of a run."""

    def end(self) -> None:
        """Called when the sweep has ended or was stopped."""


@dataclass(frozen=True)
class Failure:
    """A run that failed; running the same sweep again retries it."""

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


def sweep(
    jobs: Iterable[Job], store: Store, engine: Engine, watcher: SweepWatcher, *, keep_order: bool = False
) -> Swept:
    """Finish every job: skip runs that are done, resume interrupted ones and retry failed ones.

    Jobs are taken in the order that ends soonest, or with `keep_order` as they are given. A store that cannot be
    written is an error before anything is computed.
    """
    jobs = merged(jobs)
    todo = pending(jobs, store)
    todo = todo if keep_order else in_order(todo, store)
    ended: dict[str, Event] = {}
    runs = store.path / "runs"

    def hear(event: Event) -> None:
        if not is_same():  # the next runs would begin a new store here
            raise StoreError(f"the store {store.path} was moved or removed; where it is now, the same command resumes.")
        if event.kind == "end":
            ended[event.run] = event
        watcher.event(event)

    if todo:
        check_writable(runs, "store")
    is_same = unmoved(runs)
    watcher.begin(jobs, todo, store, engine.workers)
    try:
        if todo:
            engine.run(todo, str(store.path), hear)
    finally:
        watcher.end()
        remove_stale(store.path)  # files left by a killed cluster sweep, which this one may have finished
    failures = [Failure(job.run, job.config.title, ended[job.run].message) for job in todo
                if job.run in ended and ended[job.run].status == "failed"]  # fmt: skip
    states = statuses(store)
    diverged = sum(states.get(job.run) == "diverged" for job in jobs)
    return Swept(len(jobs), len(todo), diverged, tuple(failures))


def merged(jobs: Iterable[Job]) -> list[Job]:
    """The jobs without repetition: each run once, with all splits that any of its jobs asks for."""
    found: dict[str, Job] = {}
    for job in jobs:
        if job.run in found:
            job = replace(job, splits=tuple(dict.fromkeys((*found[job.run].splits, *job.splits))))
        found[job.run] = job
    return list(found.values())


def in_order(jobs: Sequence[Job], store: Store) -> list[Job]:
    """Sort jobs: runs already begun first, then the longest, because a long last run would leave other workers idle."""
    rows = rows_of(store)
    begun, estimate = {row["run"] for row in rows}, Estimate(rows)
    return sorted(jobs, key=lambda job: (job.run not in begun, -estimate.seconds(job.config)))


def pending(jobs: Sequence[Job], store: Store) -> list[Job]:
    """The jobs that are not finished."""
    is_done = done_in(store)
    return [job for job in jobs if not is_done(job)]


def done_in(store: Store) -> Callable[[Job], bool]:
    """A function that says whether a job is finished, according to the present content of the store."""
    states = statuses(store)
    judged = store.judged() if states else set()

    def is_done(job: Job) -> bool:
        state = states.get(job.run)
        return state == "diverged" or (state in WHOLE and all((job.run, split) in judged for split in job.splits))

    return is_done


def rows_of(store: Store) -> list[dict[str, Any]]:
    """The rows of the table `runs`, or none if the store does not exist yet."""
    try:
        return store.rows() if store.exists() else []
    except OSError as error:  # for example, a parent folder without read permission
        raise StoreError(f"cannot read {store.path}: {error.strerror or error}.") from error


def statuses(store: Store) -> dict[str, str]:
    """The status of every run, by run id."""
    return {row["run"]: row["status"] for row in rows_of(store)}


class Estimate:
    """Estimates the seconds that runs take on one core, from measured runs.

    A run is expected to take as many steps as finished runs of the same shape, at the pace of runs of the same kind.
    The pace is the one in this sweep or, failing that, the fastest in the store, because a busy machine only ever
    slows runs down. If neither is known, the time is guessed from the numbers of parameters and tokens, which is good
    enough to start with the longest run.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._steps: dict[str, list[int]] = defaultdict(list)  # steps of finished runs, by shape
        self._before, self._now = dict[str, float](), dict[str, float]()  # seconds per step, by kind
        for row in rows:
            seconds, steps = row["seconds"] or 0.0, row["step"] or 0
            if seconds > 0 and steps > 0 and row["config"]:  # another program may have written the row
                if row["status"] in WHOLE:
                    self._steps[_shape(row["config"])].append(steps)
                kind, pace = _kind(row["config"]), seconds / steps
                self._before[kind] = min(pace, self._before.get(kind, pace))

    def learn(self, config: RunConfig, seconds: float, steps: int, done: bool = False) -> None:
        """Record that a run of this sweep took `seconds` for `steps` steps, and whether that was the whole run."""
        plain = config.to_dict()
        self._now[_kind(plain)] = seconds / steps
        if done:
            self._steps[_shape(plain)].append(steps)

    def seconds(self, config: RunConfig) -> float:
        """The expected number of seconds for the whole run."""
        plain = config.to_dict()
        kind, known = _kind(plain), self._steps.get(_shape(plain))
        pace = self._now.get(kind) or self._before.get(kind, 0.0) * self._slowdown()
        return pace * (statistics.fmean(known) if known else config.data.steps) if pace else _guess(config)

    def _slowdown(self) -> float:
        """The ratio of this sweep's time per step to the stored one; 1 if no kind of run has both."""
        both = self._now.keys() & self._before
        return statistics.median(self._now[kind] / self._before[kind] for kind in both) if both else 1.0


def _shape(config: Mapping[str, Any]) -> str:
    """A key for everything that the number of steps depends on, leaving out the seed and the learning rate."""
    kept = {name: part for name, part in config.items() if name not in ("seed", "optimiser")}
    return json.dumps(kept, sort_keys=True)


def _kind(config: Mapping[str, Any]) -> str:
    """A key for everything that the time per step depends on: task, mixer, model size and batch size."""
    data = config.get("data")
    batch = data.get("batch_size") if isinstance(data, dict) else None  # another program may have written the config
    return json.dumps([config.get("task"), config.get("mixer"), config.get("model"), batch], sort_keys=True)


def _guess(config: RunConfig) -> float:
    """A guess of a run's seconds from its size alone."""
    model, data = config.model, config.data
    options = {name.rpartition(".")[2]: value for name, value in config.mixer.options.items()}  # mamba.d_conv
    vocabulary, length, predictions = _sizes(json.dumps(config.task.data(), sort_keys=True), data.batch_size)
    head, body = model.d_model * vocabulary, 12 * model.d_model**2 * model.n_layers
    operations = 6 * data.batch_size * (head * predictions + body * length)  # the head only answers
    step = LAYER_SECONDS * model.n_layers + WEIGHT_SECONDS * head + operations / OPERATIONS
    is_long = SLOW & options.keys() or LONG in np.atleast_1d(options.get("kernel_size", 0))
    return data.steps * step * (LONGER if is_long else 1) * (1 if config.evaluate.stop_at is None else EARLY)


@lru_cache
def _sizes(task: str, batch_size: int) -> tuple[int, float, int]:
    """The vocabulary size, the mean length and the predictions of a document, from a few drawn without slow imports."""
    options = json.loads(task)
    made = build_task(options.pop("name"), **options)
    few = made.reference(min(batch_size, FEW), "dev")
    return made.vocab_size, float(np.diff(few.starts).mean()), few.predict_at.shape[1]


@dataclass(frozen=True)
class RunningRun:
    """A run that some process is training; `step` is the step of its last checkpoint."""

    run: str
    title: str
    step: int
    steps: int


@dataclass(frozen=True)
class Standing:
    """The numbers of runs of a sweep by their state in the store, and the estimated seconds for the rest."""

    runs: int
    done: int
    running: tuple[RunningRun, ...]
    failed: int  # running the same sweep again retries them
    left: int  # not begun or interrupted
    seconds: float


def standing(jobs: Sequence[Job], store: Store, workers: int) -> Standing:
    """The progress of a sweep according to its store, even while another process or machine works on it.

    `workers` is the number of runs worked on at once.
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
    """The seconds until runs with the times `rest` are done: their share per worker, but at least the longest."""
    return max([sum(rest) / max(1, workers), *rest], default=0.0)


def _seconds(job: Job, row: dict[str, Any], estimate: Estimate) -> float:
    """The seconds that a run still needs, at its own pace while it is trained, otherwise at that of similar runs."""
    step, steps = row.get("step") or 0, job.config.data.steps
    if row["status"] == "done":  # only interventions are missing
        return 0.0
    if row["status"] == "running" and step and row["seconds"]:
        return float(row["seconds"]) / step * (steps - step)
    return estimate.seconds(job.config) * (1 - step / steps)
