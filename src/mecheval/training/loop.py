"""The training loop: from a config to a finished run in the store, however often it is interrupted."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mecheval.analysis import Scores, judged_on, measure, score
from mecheval.analysis.runs import alone
from mecheval.analysis.weights import weights_file
from mecheval.config import RunConfig
from mecheval.intervene.mechanism import depths_of
from mecheval.kernels import check_compiled
from mecheval.machine import Request, changed, stop_requests
from mecheval.store import DEFAULT_STORE, RunFolder, Store, StoreError
from mecheval.store.bounds import ON_THE_WAY
from mecheval.store.guard import check_tree
from mecheval.store.schema import RUNS, WHOLE
from mecheval.tasks import Task
from mecheval.training.checkpoint import read_checkpoint, write_checkpoint
from mecheval.training.early import ending, guess_level
from mecheval.training.state import Training, TrainingData, evaluation_set
from mecheval.training.watch import Start, Watcher, Watchers
from mecheval.types import LAST, Questions

SHOWN = ("dev_likelihood", "dev_accuracy", "test_likelihood", "test_accuracy")
"""Columns of table `runs` that watchers receive at the end."""


class Interrupted(Exception):
    """A signal stopped the run. Its progress is saved, and training the same config again resumes it."""

    def __init__(self, folder: RunFolder, step: int, signal: int) -> None:
        self.folder, self.step, self.signal = folder, step, signal
        super().__init__(f"run {folder.id} is saved at step {step}; run the same command again to resume it.")


def train(
    config: RunConfig,
    store: Store | str | Path = DEFAULT_STORE,
    watchers: Sequence[Watcher] = (),
    checkpoint_seconds: float = 30.0,
) -> RunFolder:
    """Train `config` and store the run in `store`; resume it if it was interrupted, and skip it if it is finished.

    The results depend only on the config, and not on interruptions or on when checkpoints are written. A checkpoint is
    written every `checkpoint_seconds`.
    """
    store = store if isinstance(store, Store) else Store(store)
    folder = store.folder(config.id)
    if folder.status()["status"] in WHOLE:
        _remove_checkpoints(folder)  # a process killed at the very end may have left them
        return folder
    check_compiled()
    task = config.build_task()
    with alone(config.machine.threads):
        state = Training(config, task)  # built before the folder, so that an invalid config leaves nothing behind
        with folder.exclusive(), stop_requests() as request:
            if folder.status()["status"] not in WHOLE:  # another process may have finished it meanwhile
                watcher = Watchers(watchers)
                _begin(folder, state, watcher)
                with _ending(folder, state, watcher):
                    data, dev = TrainingData(config, task), evaluation_set(config, task, "dev")
                    guess = guess_level(config, task) if config.evaluate.early else 0.0
                    status = _steps(folder, state, data, dev, watcher, checkpoint_seconds, request, guess)
                    why = ending(state.history, config.data.steps, guess) if config.evaluate.early else None
                    _finish(
                        folder,
                        state,
                        status,
                        {"dev": dev, "test": evaluation_set(config, task, "test")},
                        str(why or ""),
                    )
    return folder


def _begin(folder: RunFolder, state: Training, watcher: Watcher) -> None:
    """Restore the newest intact checkpoint, if there is one, and announce the run."""
    config = state.config
    folder.check_tables()
    said: list[str] = []
    checkpoint = read_checkpoint(folder.checkpoints, config.id, said.append)
    if checkpoint is not None:
        state.restore(checkpoint)
    before = folder.environments()
    folder.set_status(
        status="running", task=config.task.name, mixer=config.mixer.name, d_model=config.model.d_model,
        n_layers=config.model.n_layers, lr=config.optimiser.lr, seed=config.seed, steps=config.data.steps,
        step=state.step, parameters=state.lm.n_parameters, config=config.to_dict(), message=None,
    )  # fmt: skip
    files = folder.environment_file(f"training from step {state.step}")
    folder.write_files({"config.yaml": config.to_yaml().encode(), **files})
    watcher.begin(
        Start(config.id, config.title, config.to_dict(), state.step, config.data.steps, state.lm.n_parameters)
    )
    if state.step and (moved := changed(before, folder.environments())):
        said.append(f"this run resumes {moved}; its bytes may differ from those of a run on one machine.")
    for message in said:
        watcher.say(message)


def _steps(
    folder: RunFolder, state: Training, data: TrainingData, dev: list[Questions], watcher: Watcher, pause: float,
    request: Request, guess: float,
) -> str:  # fmt: skip
    """Train until the end, an early stop or a loss that is not finite; return `done` or `diverged`.

    `guess` is the accuracy of the best guess, which runs that may end early are held against.
    """
    config = state.config
    steps, every = config.data.steps, config.evaluate.every
    saved = time.monotonic()
    began = saved - state.seconds
    while state.step < steps and not _stops_early(state, guess):
        loss = state.advance(data.batch(state.step))
        if not math.isfinite(loss):
            return "diverged"
        watcher.step(state.step, loss)
        if state.step % every == 0 or state.step == steps:
            row = state.record(score(state.lm, dev))
            watcher.row(row)
            if not math.isfinite(row["dev_loss"]):
                return "diverged"
        if config.evaluate.interchange_every and state.step % config.evaluate.interchange_every == 0:
            _probe(state, data.task)
        now = time.monotonic()
        state.seconds = now - began
        if request or now - saved >= pause:
            folder.check_here()
            write_checkpoint(folder.checkpoints, config.id, state.checkpoint())
            folder.set_status(step=state.step, seconds=state.seconds)
            saved = time.monotonic()
        if request.signal is not None:
            raise Interrupted(folder, state.step, request.signal)
    return "done"


def _probe(state: Training, task: Task) -> None:
    """Intervene on the current model with dev documents; the state keeps the rows until the run ends.

    Only the sites that charts of training show (`figures/over_time.py`) are patched: between layers and after short
    convolutions. All sites would take two to six times as long. In a model of one layer, all sites are patched.
    """
    began = time.monotonic()
    given, every = state.config.evaluate, state.lm.sites()
    clean, corrupted = judged_on(task, given.interchange_documents, "dev", given.seed)
    between = depths_of(every).boundaries
    sites = [*between, *(site for site in every if site.kind == "short_conv")] if between else None
    measured = measure(state.lm, clean.to(state.device), corrupted.to(state.device), sites)
    found = measured.rows(ON_THE_WAY, state.step, "dev")
    state.effects += found["effects"]
    state.verdicts += found["verdicts"]
    state.probing += time.monotonic() - began


def _stops_early(state: Training, guess: float) -> bool:
    """Whether the last evaluation ends the run: by `stop_at`, `patience`, or the rule of `training/early.py`."""
    given = state.config.evaluate
    if not state.history or state.history[-1]["step"] != state.step:
        return False
    if given.early and ending(state.history, state.config.data.steps, guess):
        return True
    if given.stop_at is not None and state.history[-1]["dev_accuracy"] >= given.stop_at:
        return True
    return given.patience is not None and state.stale >= given.patience


def _finish(folder: RunFolder, state: Training, status: str, splits: dict[str, list[Questions]], why: str) -> None:
    """Evaluate the run and write its weights and tables, and then the status, which makes the run count as finished.

    `why` says that and why it ended early, if it did.
    """
    states = {LAST: (state.step, state.weights())} if status == "done" else {}
    if state.best is not None:
        states["best"] = (state.best.step, state.best.weights)
    rows, scores = [], {}
    for name, (step, weights) in states.items():
        state.lm.load_state_dict(weights)
        for split, pieces in splits.items():
            result = score(state.lm, pieces)
            rows += result.rows(name, step, split)
            scores[name, split] = result
        folder.write_files({f"weights/{name}.safetensors": weights_file(state.config, name, step, weights)})
    folder.write("history", state.history)
    folder.write("scores", rows)
    if state.effects:
        folder.write("effects", state.effects)
        folder.write("verdicts", state.verdicts)
    moved = changed(folder.environments())
    message = "; ".join(filter(None, (why, f"trained {moved}" if moved else None))) or None
    if status != "done":
        message = f"the loss was not finite after step {state.step}"
    folder.set_status(
        status=status, step=state.step, seconds=state.seconds, message=message,
        **_columns("dev", scores.get((LAST, "dev"))), **_columns("test", scores.get((LAST, "test"))),
        best_step=state.best and state.best.step, **_columns("best_dev", scores.get(("best", "dev"))),
    )  # fmt: skip
    _remove_checkpoints(folder)


def _remove_checkpoints(folder: RunFolder) -> None:
    """Remove the run's checkpoints, without following a link or opening a FIFO of that name."""
    if os.path.lexists(folder.checkpoints):
        check_tree(folder.path, folder.path.parent)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)


def _columns(prefix: str, scores: Scores | None) -> dict[str, float]:
    """The metrics that have a column in table `runs`."""
    named = {} if scores is None else {f"{prefix}_{name}": value for name, value in scores.values.items()}
    return {column.name: named[column.name] for column in RUNS.columns if column.name in named}


@contextmanager
def _ending(folder: RunFolder, state: Training, watcher: Watcher) -> Iterator[None]:
    """Record in the status how the run ends, and notify the watchers."""
    status, scores = "failed", {}
    try:
        yield
        found = folder.status()
        status, scores = found["status"], {name: found[name] for name in SHOWN if found[name] is not None}
        if state.probing:
            scores["interchange_seconds"] = state.probing
    except (Interrupted, KeyboardInterrupt):
        status = "interrupted"
        folder.set_status(status=status)
        raise
    except StoreError:  # the store cannot be written, so the run keeps the status of its last checkpoint
        raise
    except Exception as error:
        folder.set_status(status=status, message=f"{type(error).__name__}: {error}", step=state.step)
        raise
    finally:
        watcher.end(status, scores)
