"""Results that somebody contributes: are they what their weights give?

A folder of published results has tables, weights and, for custom mixers, the source files of these. The check rebuilds
every model, loads its weights, and computes scores and the verdict anew. It executes no file of the folder: a custom
mixer is one that the user has named, as everywhere (`mecheval.custom`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mecheval import custom
from mecheval.analysis import score
from mecheval.analysis.runs import alone, documents, load_run, measure
from mecheval.analysis.weights import add_pretrained, pretrained_name, run_config_of
from mecheval.errors import UserError
from mecheval.files import write_atomic
from mecheval.mixers.pattern import mixers_of
from mecheval.store import RunFolder, Store, writing
from mecheval.store.published import pretrained_file, publish
from mecheval.store.upkeep import OK, verify
from mecheval.training.state import evaluation_set
from mecheval.types import LAST

MIXERS = "mixers"
"""Folder of the source files of custom mixers."""
WITHIN = 1e-3
"""Largest difference of a mean likelihood that another order of sums explains, on another kind of CPU: a hundred times
what float32 makes of a likelihood."""
TIES = 2
"""Number of answers that may be right in one computation and wrong in the other, because two tokens are level."""
SPLIT = "test"


class Rechecked(NamedTuple):
    """A run, what was computed anew, and what differs; without problems, the tables are what the weights give."""

    run: str
    title: str
    accuracy: float
    verdict: str
    shares: int  # number of shares with an interval that were compared
    problems: tuple[str, ...]


def contribute(folders: Sequence[RunFolder], source: custom.Source, to: Path) -> list[str]:
    """Add runs of a custom mixer, their weights and its file to a folder of results; the names of the weights."""
    names: dict[str, str] = {}
    for folder in folders:
        config = run_config_of(folder)
        if source.name not in mixers_of(config.mixer.name):
            raise UserError(f"run {folder.id} is of {config.mixer.name}, and {source.path} is {source.name} now.")
        name = pretrained_name(config)
        if name in names:
            raise UserError(f"runs {names[name]} and {folder.id} would both be {name}; name the one that counts.")
        names[name] = folder.id
    file = to / MIXERS / source.path.name
    if file.exists() and file.read_bytes() != source.path.read_bytes():
        raise UserError(
            f"{file} is there already, with another content; rename {source.path.name}, or choose another --to."
        )
    for folder in folders:
        publish(folder, to)
        add_pretrained(folder, to)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, source.path.read_bytes())
    return list(names)


def recheck(results: Path) -> Iterator[Rechecked]:
    """Check every run of a folder of results, one after the other; see the module."""
    store = Store(results)
    ids = store.ids() if store.exists() else []
    if not ids:
        raise UserError(f"{results} has no runs; `mecheval results add RUN --to {results}` makes such a folder.")
    for run in ids:  # before anything is computed
        _check_named(store.folder(run), results)
    for run in ids:
        yield _rechecked(store, run)


def _check_named(folder: RunFolder, results: Path) -> None:
    """Raise an error that says what to name if a run's mixer is custom and not named yet."""
    for mixer in mixers_of(str(folder.status()["mixer"])):
        known = {source.name for source in custom.sources() if source.path.is_file()}
        if custom.MARK not in mixer or mixer in known:
            continue
        files = sorted((results / MIXERS).glob("*.py"))
        there = [
            path for path in files if path.is_file() and mixer.endswith(custom.MARK + custom.digest(path.read_bytes()))
        ]
        cls = mixer.partition(custom.MARK)[0]
        if not there:
            raise UserError(
                f"run {folder.id} is of custom mixer {mixer}, and no file in {results / MIXERS} has that digest: it is "
                "missing, or was changed after the run."
            )
        raise UserError(
            f"run {folder.id} is of custom mixer {mixer}, whose code a check executes: read {there[0]}, and then "
            f"name it, --mixer {there[0]}:{cls}."
        )


def _rechecked(store: Store, run: str) -> Rechecked:
    folder = store.folder(run)
    [found] = verify(store, [run])
    config, said = run_config_of(folder), list(found.problems)
    if found.state != OK and not said:
        said = [f"it is {found.state}."]
    if said or pretrained_file(folder) is None:
        return Rechecked(run, config.title, math.nan, "", 0, tuple(said or ["its weights are not in the folder."]))
    trained = load_run(folder)
    with alone(config.machine.threads):
        scores = score(trained.lm, evaluation_set(config, trained.task, SPLIT))
        measured = measure(trained.lm, *documents(trained.task, config, SPLIT)).rows(LAST, trained.step, SPLIT)
    told = {row["metric"]: row["value"] for row in folder.read("scores") if _here(row)}
    said += _different("test accuracy", told.get("accuracy"), scores.accuracy, WITHIN + TIES / scores.n)
    said += _different("test likelihood", told.get("likelihood"), scores.likelihood, WITHIN)
    [verdict] = measured["verdicts"]
    labels = [row["label"] for row in folder.read("verdicts") if _here(row)]
    if labels != [verdict["label"]]:
        said.append(f"verdict: published {', '.join(labels) or 'none'}, computed {verdict['label']}.")
    shares = {_cell(row): row for row in measured["effects"] if row["share_low"] is not None}
    published = {_cell(row): row for row in folder.read("effects") if _here(row) and row["share_low"] is not None}
    if shares.keys() != published.keys():
        said.append(f"shares: {len(published)} with an interval are published, {len(shares)} are computed.")
    for cell in shares.keys() & published.keys():
        row, gap = shares[cell], abs(shares[cell]["original"] - shares[cell]["corrupted"])
        within = 2 * WITHIN / gap if gap > WITHIN else math.inf  # a share is a difference, divided by the gap
        said += _different(f"share at {', '.join(cell)}", published[cell]["share"], row["share"], within)
    return Rechecked(run, config.title, scores.accuracy, verdict["label"], len(shares), tuple(said))


def _here(row: Mapping[str, object]) -> bool:
    return (row["state"], row["split"]) == (LAST, SPLIT)


def _cell(row: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("site", "role", "corruption", "direction"))


def _different(what: str, told: float | None, found: float | None, within: float) -> list[str]:
    """A sentence if the published number is missing or is not the computed one."""
    if told is None or found is None:
        return [] if told is found else [f"{what}: published {_number(told)}, computed {_number(found)}."]
    return [] if abs(told - found) <= within else [f"{what}: published {told:.4f}, computed {found:.4f}."]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
