"""From a model, or a trained run, to effects and a verdict (`measure`, `probe`), and how the store keeps them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from mecheval.analysis.weights import read_weights, state_weights
from mecheval.config import RunConfig
from mecheval.errors import UnknownName, UserError
from mecheval.intervene import Depths, Evidence, Rule, Verdict, ablate, evidence, interchange, state_sweep, verdicts_by
from mecheval.intervene.edits import edit_of
from mecheval.intervene.packed import packed, unpacked
from mecheval.model import LM
from mecheval.store import RunFolder, StoreError
from mecheval.store.bounds import ON_THE_WAY
from mecheval.store.published import is_published, publish
from mecheval.tasks import Task
from mecheval.types import CORRUPTIONS, LAST, Batch, is_on_maps, last_of

if TYPE_CHECKING:  # slow to import
    import pandas as pd

DIRECTIONS = ("restore", "destroy", "both")
"""The directions of interventions on a run."""
MOST_SWEPT = 256
"""Default number of documents for a sweep of states; each is run once for every position."""
CELL = ["site", "role", "corruption", "direction"]
"""Columns that identify one intervention on one model."""
FINDING = ("label", "layer", "stored_by", "stored_at", "found_by")
"""Parts of a finding that have their own columns."""
STANDARD = ("key", "restore")
"""The corruption and the direction on which verdicts are based, as in the paper."""
Row = dict[str, Any]
"""A row of one of the store's tables, by column."""
INTERVAL = ("share_low", "share_high", "share_apart")
"""Columns of table effects about the documents that count for a verdict: an interval and its share."""
PLACE = ("state", "step", "split")
"""Columns that identify one evaluation among those of the same run."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The effects of interventions on a model at every site and role, the evidence that decides, and the verdict."""

    effects: pd.DataFrame
    evidence: Evidence
    verdict: Verdict

    def rows(self, state: str, step: int, split: str) -> dict[str, list[dict[str, Any]]]:
        """Rows of the store's tables `effects` and `verdicts`; NaN becomes None."""
        import pandas as pd

        place = dict(zip(PLACE, (state, step, split), strict=True))
        more = state != ON_THE_WAY and self.evidence.cells
        tables = [self.effects, self.evidence.table()] if more else [self.effects]
        every = pd.concat(tables, ignore_index=True).drop_duplicates(CELL)
        names = {"low": "share_low", "high": "share_high", "share": "share_apart"}
        intervals = self.verdict.shares.rename(columns=names)
        joined = every.merge(intervals, on=CELL, how="left").to_dict("records")
        return {"effects": rows_of(joined, place), "verdicts": [verdict_row(self.verdict, place)]}


def verdict_row(found: Verdict, place: Mapping[str, Any]) -> Row:
    """A verdict as a row of the store's table, with the state, step and split of `place`."""
    return {
        **place, **{name: getattr(found.finding, name) for name in FINDING}, "agreement": found.agreement,
        "chance": _plain(found.chance), "n": found.n, "places": ", ".join(found.finding.places) or None,
        "summary": str(found.finding), "evidence": "\n".join(found.evidence),
    }  # fmt: skip


def judged_on(task: Task, n: int, split: str, seed: int, corruption: str = "key") -> tuple[Batch, Batch]:
    """Clean and corrupted documents for judging a model, each about one of its queries, all queries in turn."""
    clean = task.each_query_in_turn(task.sample(n, split, seed))
    return clean, task.corrupt(clean, seed, corruption)


def measure(
    model: nn.Module, clean: Batch, corrupted: Batch, sites: Sequence[str] | None = None, depths: Depths | None = None
) -> Measured:
    """Patch clean activations into the corrupted run at all roles and sites (or these), and judge the effects."""
    effects = interchange(model, clean, corrupted, sites)
    found = evidence(model, clean, corrupted, depths=depths)
    return Measured(effects, found, found.verdict())


def rows_of(effects: Sequence[Mapping[str, Any]], place: Mapping[str, Any]) -> list[Row]:
    """Effects as rows of the store's table, with the state, step and split of `place`; NaN becomes None."""
    blank = dict.fromkeys(INTERVAL)
    return [{**place, **blank, **{name: _plain(value) for name, value in row.items()}} for row in effects]


def beside(new: Sequence[Row], before: Sequence[Row], *, judged: bool) -> list[Row]:
    """New rows of table `effects`, and the rows of `before`, of the same state and split, that are kept.

    Rows of other corruptions and directions are kept, those of heads unless heads are new, and a verdict's evidence
    (roles that maps do not show, or rows with an interval) unless a new verdict was `judged`. Of one intervention that
    is in both, the row with more documents is kept, with the known interval.
    """
    rows = {tuple(row[name] for name in CELL): row for row in new}
    places = {tuple(row[name] for name in PLACE) for row in new}
    about = {(*STANDARD, False)} if judged else {_about(row) for row in new}
    for old in before:
        if tuple(old[name] for name in PLACE) not in places:
            continue
        cell = tuple(old[name] for name in CELL)
        if cell in rows:
            found = rows[cell]
            interval = found if found["share_low"] is not None else old
            more = old if (old["n"] or 0) > found["n"] else found
            rows[cell] = {**more, **{name: interval.get(name) for name in INTERVAL}}
        else:
            evidence = not is_on_maps(old["role"]) or old["share_low"] is not None
            if _about(old) not in about or (evidence and not judged):
                rows[cell] = old
    return list(rows.values())


def _about(row: Row) -> tuple[str, str, bool]:
    """The group of a row: its corruption and direction, and whether it is about a head."""
    return row["corruption"], row["direction"], row["kind"] == "head"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


class Trained(NamedTuple):
    """A run's model with its config and task."""

    config: RunConfig
    task: Task
    lm: LM
    step: int


def load_run(folder: RunFolder, state: str = LAST) -> Trained:
    """The model of a finished run, or of a published run, which has only the last state."""
    content, name = state_weights(folder, state)
    lm, origin = read_weights(content, name)
    if (origin["run"], origin.get("state")) != (folder.id, state):
        of = f"{str(origin.get('state'))[:80]} state of run {origin['run']}"
        raise StoreError(f"{name} is damaged: it contains the {of}.")
    config = RunConfig.read(origin["config"])
    return Trained(config, config.build_task(), lm, origin["step"])


def documents(
    task: Task, config: RunConfig, split: str, n: int | None = None, corruption: str = "key"
) -> tuple[Batch, Batch]:
    """The clean and corrupted documents on which a run is judged."""
    return judged_on(task, config.evaluate.documents if n is None else n, split, config.evaluate.seed, corruption)


def document(trained: Trained, number: int, split: str) -> tuple[Batch, Batch]:
    """One of those documents, clean and corrupted."""
    n = trained.config.evaluate.documents
    if not 0 <= number < n:
        raise UserError(f"there is no document {number}; the run is evaluated on documents 0 to {n - 1}.")
    clean, corrupted = documents(trained.task, trained.config, split)
    return clean[number : number + 1], corrupted[number : number + 1]


def probe(folder: RunFolder, state: str = LAST, split: str = "test", n: int | None = None) -> Measured:
    """Intervene on a finished run at all sites and roles.

    The effects and the verdict are stored with the run, unless the number of documents (`n`) differs from the one that
    the run is evaluated on, or the run is a published one.
    """
    keep = n is None and not is_published(folder)
    if keep:
        folder.check_writable()  # before anything is computed that could not be stored
    trained = load_run(folder, state)
    with alone(trained.config.machine.threads):
        found = measure(trained.lm, *documents(trained.task, trained.config, split, n))
    if keep:
        with folder.saving():
            _keep(folder, found, state, trained.step, split)
    return found


def judge_again(folder: RunFolder, results: Path) -> None:
    """Intervene on a published run of which the weights are there, and publish the effects and the verdict anew."""
    trained = load_run(folder)
    for split in sorted({row["split"] for row in folder.read("verdicts") if row["state"] == LAST}):
        with alone(trained.config.machine.threads):
            found = measure(trained.lm, *documents(trained.task, trained.config, split))
        _keep(folder, found, LAST, trained.step, split)
    publish(folder, results)


def _keep(folder: RunFolder, found: Measured, state: str, step: int, split: str) -> None:
    tables = found.rows(state, step, split)
    tables["effects"] = beside(tables["effects"], folder.read("effects"), judged=True)
    folder.write_files(
        {evidence_file(state, split): packed(found.evidence)}
    )  # before the verdict, which makes it count
    folder.replace(tables, PLACE, f"interventions on {state}, {split}")


def evidence_file(state: str, split: str) -> str:
    """The name of the file of a run's folder that keeps the evidence for a verdict, document by document."""
    return f"evidence-{state}-{split}.npz"


def kept_evidence(folder: RunFolder, state: str = LAST, split: str = "test") -> Evidence | None:
    """The evidence that is kept with a run; None if it has none, as runs that were judged by an earlier version."""
    name = evidence_file(state, split)
    if not (folder.path / name).is_file():
        return None
    try:
        return unpacked(folder.read_file(name))
    except ValueError as error:
        raise StoreError(f"{folder.path / name} is damaged: {error}.") from None


def judge(folder: RunFolder, rule: Rule, state: str = LAST, split: str = "test") -> Verdict:
    """The verdict by a rule on the evidence that is kept with a run; neither weights nor interventions are needed."""
    found = kept_evidence(folder, state, split)
    if found is None:
        options = f" --state {state}" * (state != LAST) + f" --split {split}" * (split != "test")
        way = f"`mecheval intervene {folder.id}{options}` measures it, if its weights are there"
        if is_published(folder):
            way = "it was published without"
        raise UserError(f"run {folder.id} keeps no evidence for a verdict on {state}, {split}; {way}.")
    return found.verdict(rule)


def ablation(
    folder: RunFolder, edit: str, state: str = LAST, split: str = "test", n: int | None = None
) -> pd.DataFrame:
    """Edit a finished run's activations, one site and role at a time; `edit` is as in `edit_of`, e.g. zero or noise=1.

    The effects are stored with the run in table `ablations`, as `probe` does.
    """
    change = edit_of(edit)
    keep = n is None and not is_published(folder)
    if keep:
        folder.check_writable()
    trained = load_run(folder, state)
    with alone(trained.config.machine.threads):
        found = ablate(trained.lm, documents(trained.task, trained.config, split, n)[0], change)
    if keep:
        place = {"state": state, "step": trained.step, "split": split, "edit": edit}
        rows = [{**place, **row} for row in found.to_dict("records")]
        with folder.saving():
            folder.replace({"ablations": rows}, tuple(place), f"{edit} on {state}, {split}")
    return found


def probe_otherwise(
    folder: RunFolder, corruption: str, direction: str, state: str = LAST, split: str = "test", n: int | None = None,
    *, heads: bool = False,
) -> pd.DataFrame:  # fmt: skip
    """Intervene on a finished run with another corruption or direction than for a verdict, or only on its `heads`.

    The effects are added to those stored with the run, unless the number of documents (`n`) differs.
    """
    check_corruption(corruption, direction)
    keep = n is None and not is_published(folder)
    if keep:
        folder.check_writable()
    trained = load_run(folder, state)
    with alone(trained.config.machine.threads):
        pair = documents(trained.task, trained.config, split, n, corruption)
        effects = interchange(trained.lm, *pair, [] if heads else None, direction=direction, heads=heads)
    if keep:
        rows = rows_of(effects.to_dict("records"), dict(zip(PLACE, (state, trained.step, split), strict=True)))
        about = f"{corruption}, {direction}{', heads' * heads}"
        with folder.saving():
            tables = {"effects": beside(rows, folder.read("effects"), judged=False)}
            folder.replace(tables, PLACE, f"interventions on {state}, {split}, {about}")
    return effects


def probe_by(
    folder: RunFolder, fact: str, state: str = LAST, split: str = "test", n: int | None = None
) -> dict[str, Verdict]:
    """The verdict on a finished run for each group of documents with about the same value of a fact."""
    trained = load_run(folder, state)
    with alone(trained.config.machine.threads):
        return verdicts_by(trained.lm, *documents(trained.task, trained.config, split, n), fact)


def check_corruption(corruption: str, direction: str) -> None:
    """Raise an error that names the choices if the corruption or the direction is unknown."""
    if corruption not in CORRUPTIONS:
        raise UnknownName("corruption", corruption, CORRUPTIONS)
    if direction not in DIRECTIONS:
        raise UnknownName("direction", direction, DIRECTIONS)


def probe_states(
    folder: RunFolder, corruption: str = "key", state: str = LAST, split: str = "test", n: int | None = None
) -> tuple[pd.DataFrame, dict[str, int]]:
    """What the clean state of each layer of a finished run restores after every position (`state_sweep`).

    Also returns the roles whose distance from the key is the same in all documents, with that distance.
    """
    check_corruption(corruption, "restore")
    trained = load_run(folder, state)
    n = min(trained.config.evaluate.documents, MOST_SWEPT) if n is None else n
    with alone(trained.config.machine.threads):
        clean, corrupted = documents(trained.task, trained.config, split, n, corruption)
        swept = state_sweep(trained.lm, clean, corrupted)
    meaning, key = clean.meaning, last_of(clean.roles[clean.meaning.key])
    named = [role for role in (meaning.key, meaning.value, *meaning.places) if role in clean.roles]
    offsets = {role: (last_of(clean.roles[role]) - key).unique() for role in named if role is not None}
    return swept, {role: int(each) for role, each in offsets.items() if len(each) == 1}


@contextmanager
def alone(threads: int) -> Iterator[None]:
    """While the context lasts, torch uses `threads` threads and a separate random state."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(before)
