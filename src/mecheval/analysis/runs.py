"""Trained runs: their models, the documents that they are judged on, and interventions that are kept with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from mecheval.analysis.measured import PLACE, Measured, beside, judged_on, measure, rows_of
from mecheval.analysis.weights import read_weights
from mecheval.config import RunConfig
from mecheval.digests import run_id
from mecheval.errors import UnknownName, UserError
from mecheval.intervene import interchange, state_sweep
from mecheval.model import LM
from mecheval.store import RunFolder, StoreError
from mecheval.store.schema import WHOLE
from mecheval.tasks import Task
from mecheval.types import CORRUPTIONS, LAST, STATES, Batch

if TYPE_CHECKING:  # slow to import
    import pandas as pd

DIRECTIONS = ("restore", "destroy", "both")
"""Directions in which a run is intervened on."""
MOST_SWEPT = 256
"""Documents on which states are swept unless another number is asked for; each is run once for every position."""


class Trained(NamedTuple):
    """A run's model with what it was trained on."""

    config: RunConfig
    task: Task
    lm: LM
    step: int


def load_run(folder: RunFolder, state: str = LAST) -> Trained:
    """The model of a finished run."""
    name = weights_of(folder, state)
    folder.check_whole()
    lm, origin = read_weights(folder.read_file(name), str(folder.path / name))
    if (origin["run"], origin.get("state")) != (folder.id, state):
        of = f"{str(origin.get('state'))[:80]} state of run {origin['run']}"
        raise StoreError(f"{folder.path / name} is damaged: it holds the {of}.")
    config = RunConfig.read(origin["config"])
    return Trained(config, config.build_task(), lm, origin["step"])


def run_config_of(folder: RunFolder) -> RunConfig:
    """The config of a run that has begun, as its status has it."""
    config = folder.status()["config"]
    if config is None or run_id(config) != folder.id:
        raise StoreError(f"the status of run {folder.id} has no config, or that of another run.")
    return RunConfig.read(config)


def weights_of(folder: RunFolder, state: str) -> str:
    """The name of a state's weights file in the run's folder, or an error that says which states the run has."""
    if state not in STATES:
        raise UnknownName("state", state, STATES)
    status = folder.status()["status"]
    files = {name: f"{folder.weights.name}/{name}.safetensors" for name in STATES}
    there = [name for name, file in files.items() if status in WHOLE and (folder.path / file).exists()]
    if state not in there:
        hint = f"it has: {', '.join(there)}" if there else f"its status is {status}"
        raise UserError(f"run {folder.id} has no {state} weights; {hint}.")
    return files[state]


def documents(
    task: Task, config: RunConfig, split: str, n: int | None = None, corruption: str = "key"
) -> tuple[Batch, Batch]:
    """Clean and corrupted documents that a run is judged on."""
    return judged_on(task, config.evaluate.documents if n is None else n, split, config.evaluate.seed, corruption)


def document(trained: Trained, number: int, split: str) -> tuple[Batch, Batch]:
    """One of those documents, clean and corrupted."""
    n = trained.config.evaluate.documents
    if not 0 <= number < n:
        raise UserError(f"there is no document {number}; the run is scored on documents 0 to {n - 1}.")
    clean, corrupted = documents(trained.task, trained.config, split)
    return clean[number : number + 1], corrupted[number : number + 1]


def probe(folder: RunFolder, state: str = LAST, split: str = "test", n: int | None = None) -> Measured:
    """Intervene on a finished run at all sites and roles.

    The effects and the verdict are stored with the run, unless they are from another number of documents (`n`) than
    it is evaluated on.
    """
    if n is None:
        folder.check_writable()  # before anything is computed that could not be kept
    trained = load_run(folder, state)
    with alone(trained.config.machine.threads):
        found = measure(trained.lm, *documents(trained.task, trained.config, split, n))
    if n is None:
        with folder.exclusive():
            tables = found.rows(state, trained.step, split)
            tables["effects"] = beside(tables["effects"], folder.read("effects"), judged=True)
            folder.replace(tables, PLACE, f"interventions on {state}, {split}")
    return found


def probe_otherwise(
    folder: RunFolder, corruption: str, direction: str, state: str = LAST, split: str = "test", n: int | None = None
) -> pd.DataFrame:
    """Intervene on a finished run with another corruption, or in another direction, than a verdict is about.

    The effects are stored with the run, beside all others, unless they are from another number of documents (`n`).
    """
    check_corruption(corruption, direction)
    if n is None:
        folder.check_writable()
    trained = load_run(folder, state)
    with alone(trained.config.machine.threads):
        pair = documents(trained.task, trained.config, split, n, corruption)
        effects = interchange(trained.lm, *pair, direction=direction)
    if n is None:
        rows = rows_of(effects.to_dict("records"), dict(zip(PLACE, (state, trained.step, split), strict=True)))
        with folder.exclusive():
            tables = {"effects": beside(rows, folder.read("effects"), judged=False)}
            folder.replace(tables, PLACE, f"interventions on {state}, {split}, {corruption}, {direction}")
    return effects


def check_corruption(corruption: str, direction: str) -> None:
    """Raise an error that names the choices unless documents can be corrupted so, and interventions go this way."""
    if corruption not in CORRUPTIONS:
        raise UnknownName("corruption", corruption, CORRUPTIONS)
    if direction not in DIRECTIONS:
        raise UnknownName("direction", direction, DIRECTIONS)


def probe_states(
    folder: RunFolder, corruption: str = "key", state: str = LAST, split: str = "test", n: int | None = None
) -> tuple[pd.DataFrame, dict[str, int]]:
    """What the clean state of each layer of a finished run restores after every position (`state_sweep`).

    Also the roles that stand at one distance from the key in all of its documents, with that distance.
    """
    check_corruption(corruption, "restore")
    trained = load_run(folder, state)
    n = min(trained.config.evaluate.documents, MOST_SWEPT) if n is None else n
    with alone(trained.config.machine.threads):
        clean, corrupted = documents(trained.task, trained.config, split, n, corruption)
        swept = state_sweep(trained.lm, clean, corrupted)
    offsets = {role: (clean.roles[role] - clean.roles["key"]).unique() for role in ("key", "value", "next_key")}
    return swept, {role: int(each) for role, each in offsets.items() if len(each) == 1}


@contextmanager
def alone(threads: int) -> Iterator[None]:
    """Inside, torch computes on so many threads and draws random numbers of its own; afterwards all is as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(before)
