"""Single documents under interventions, from the weights of a few runs: what the explorer of the page shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mecheval.errors import UserError
from mecheval.figures.grammar import derivation_of
from mecheval.figures.heatmap import in_depth
from mecheval.files import write_atomic
from mecheval.report.runs import SPLIT, is_mapped, layout_of, shown_numbers
from mecheval.store import RESULTS, RunFolder, Store, writing
from mecheval.store.published import pretrained_file, pretrained_files, pretrained_origin
from mecheval.tasks import ATR, Task
from mecheval.tasks.base import places_of
from mecheval.types import LAST, NOWHERE, ROLES, in_order

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.analysis.runs import Trained
    from mecheval.intervene.explain import Answers
    from mecheval.sites import Site
    from mecheval.types import Batch

RUNS, DOCUMENTS = 24, 4
"""Largest number of runs whose documents are shown, and of documents of each."""
LOOK, LONGEST = 48, 48
"""Number of documents that are searched for short ones, and largest number of tokens that is easy to read."""
TOP = 3
"""Number of answers that are listed, besides the right one."""
HERE = "here"
"""The role of the positions that are patched, in the batch of all columns."""


def explored(best: pd.DataFrame, most: int = RUNS) -> list[str]:
    """Ids of the runs whose documents are shown, those that learnt first: one of every task and mixer, then another.

    `best` has a row for each setting; only runs that are done have weights.
    """
    done = best[best["status"] == "done"]
    ranked = done.assign(learnt=done["label"].notna() & (done["label"] != "not_learnt"), place=range(len(done)))
    ranked = ranked.sort_values("learnt", ascending=False, kind="stable")
    ranked["turn"] = ranked.groupby(["task", "mixer"], dropna=False).cumcount()
    chosen = ranked.sort_values(["learnt", "turn"], ascending=[False, True], kind="stable").head(most)
    return list(chosen.sort_values(["learnt", "place"], ascending=[False, True])["run"])


def explored_data(store: Store, runs: Sequence[str]) -> list[dict[str, Any]]:
    """For each of the runs a few documents with their maps; then those that cannot be loaded, with the reason."""
    kept = kept_documents() if store.path == RESULTS else {}
    return sorted((kept.get(run) or explore(store.folder(run)) for run in runs), key=lambda run: "problem" in run)


def kept_documents(results: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """What `keep_documents` wrote about the published models, by run; what it wrote about other weights is left out."""
    found = {}
    for path in pretrained_files(results).values():
        origin, kept = pretrained_origin(path), path.with_suffix(".json")
        read = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        if read.get("weights") == origin["tensors_sha256"]:
            found[origin["run"]] = read["shown"]
    return found


def keep_documents(name: str, results: Path = RESULTS) -> None:
    """Write what the explorer shows of a published model next to its weights, so that no report has to compute it."""
    path = pretrained_files(results)[name]
    origin = pretrained_origin(path)
    shown = explore(Store(results).folder(origin["run"]))
    if "problem" in shown:
        raise UserError(f"cannot show documents of {name}: {shown['problem']}")
    text = json.dumps({"weights": origin["tensors_sha256"], "shown": shown}, separators=(",", ":"))
    with writing(path):
        write_atomic(path.with_suffix(".json"), text + "\n")


def explore(folder: RunFolder) -> dict[str, Any]:
    """A few documents of a run with their maps, or the problem with them."""
    published = pretrained_file(folder) is not None
    if not published and not (folder.weights / f"{LAST}.safetensors").exists():  # known without torch, which is slow
        return {"run": folder.id, "problem": f"run {folder.id} has no {LAST} weights."}
    from mecheval.analysis.runs import alone, load_run

    try:
        trained = load_run(folder, LAST)
        if published:  # in double precision nothing is compiled, for which a first look would wait
            trained.lm.double()
        with alone(1):
            return {"run": folder.id, **_documents(trained)}
    except UserError as error:
        return {"run": folder.id, "problem": str(error)}
    except Exception as error:  # a custom mixer may have changed or be broken; the report is written without it
        return {"run": folder.id, "problem": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def _documents(trained: Trained) -> dict[str, Any]:
    import torch

    from mecheval.analysis.runs import documents
    from mecheval.intervene.effects import default_sites
    from mecheval.intervene.explain import explain

    given = trained.config.evaluate
    clean, corrupted = documents(trained.task, trained.config, SPLIT, min(LOOK, given.documents))
    rows = torch.tensor(_readable(clean.lengths.tolist()))
    clean, corrupted = clean[rows], corrupted[rows]
    sites = in_depth([site for site in default_sites(trained.lm) if is_mapped(site)])
    columns = [columns_of(clean, row) for row in range(len(clean))]
    patched = _patched(trained, clean, corrupted, sites, columns)
    read = _reads(trained, clean)
    names: dict[str, int] = {}
    shown: list[dict[str, Any]] = []
    for row in range(len(clean)):
        both = clean[row : row + 1], corrupted[row : row + 1]
        answered = explain(trained.lm, trained.task, *both, sites=[], roles=[], top=TOP)
        before = _answers(answered.corrupted, names)
        said = [_answers(each, names) for each in patched[row]]
        shown.append({
            **_text(trained.task, clean, row, given.seed), "substitute": answered.substitute, "columns": columns[row],
            "answers": [_answers(answered.clean, names), before],
            "patched": [None if each == before else each for each in said],
            "values": shown_numbers(np.array([_right(each) for each in patched[row]])),
            "original": _right(answered.clean), "corrupted": _right(answered.corrupted), "reads": read[row],
        })  # fmt: skip
    layout = layout_of(sites, in_order(clean.roles))
    return {"layout": layout, "names": list(names), "documents": shown}


def columns_of(clean: Batch, row: int) -> list[list[int]]:
    """What is patched together, a column each: every position up to the prediction, and roles of several positions.

    Of a document that is too long to be read, only the positions of roles.
    """
    last = int(clean.predict_at[row, 0])
    roles = [[place for place in places_of(at, row) if place <= last] for at in clean.roles.values()]
    single = range(last + 1) if last < LONGEST else sorted({place for places in roles for place in places})
    spans = {tuple(places): None for places in roles if len(places) > 1}
    return [[place] for place in single] + [list(span) for span in spans]


def _patched(
    trained: Trained, clean: Batch, corrupted: Batch, sites: Sequence[Site], columns: Sequence[Sequence[list[int]]]
) -> list[list[Answers]]:
    """For each document the answers with the clean activation of one site at one column patched in, site by site.

    All columns of all documents are one batch, in which a document stands as often as it has columns.
    """
    import torch

    from mecheval.intervene.explain import likeliest_of_each, patched_logits

    together = [(row, places) for row, own in enumerate(columns) for places in own]
    rows = [row for row, _ in together]
    widest = max(len(places) for _, places in together)
    at = torch.tensor([places + [NOWHERE] * (widest - len(places)) for _, places in together])
    stacked = [replace(batch[torch.tensor(rows)], roles={HERE: at}) for batch in (clean, corrupted)]
    found: list[list[Answers]] = [[] for _ in columns]
    right = stacked[0].answers.tolist()
    for _, _, logits in patched_logits(trained.lm, stacked[0], stacked[1], sites, [HERE]):
        for row, answers in zip(rows, likeliest_of_each(trained.task, logits, right, TOP), strict=True):
            found[row].append(answers)
    return found


def _reads(trained: Trained, clean: Batch) -> list[list[list[list[int]]] | None]:
    """For each document, layer and token the shares in % of what is read there from each token up to it.

    None for a mixer that does not say what it weighs, and for documents that are too long to be read.
    """
    from mecheval.intervene import reads

    lasts = clean.predict_at[:, 0].tolist()
    try:
        shares = reads(trained.lm, clean).shares.mul(100).round().int()
    except UserError:
        return [None] * len(lasts)
    return [
        [[layer[row, t, : t + 1].tolist() for t in range(last + 1)] for layer in shares] if last < LONGEST else None
        for row, last in enumerate(lasts)
    ]


def _readable(lengths: Sequence[int]) -> list[int]:
    """Rows of the documents to show: the first that are short enough, or else the shortest."""
    short = [row for row, length in enumerate(lengths) if length <= LONGEST][:DOCUMENTS]
    return short or sorted(sorted(range(len(lengths)), key=lambda row: lengths[row])[:DOCUMENTS])


def _text(task: Task, clean: Batch, row: int, seed: int) -> dict[str, Any]:
    """The document: its symbols, its roles, and its tree where it has one."""
    tokens = clean.tokens[row, : int(clean.lengths[row])].tolist()
    number, meaning, roles = int(clean.index[row]), task.meaning, roles_data(clean, row)
    alike = {role: name if (name := meaning.like(role)) in ROLES else "next_key" for role in roles}
    return {
        "number": number, "symbols": [task.symbol(token) for token in tokens],
        "roles": {role: roles[role] for role in in_order(roles)}, "alike": alike,
        "key": meaning.key, "query": meaning.query, "answer_at": answers_at(clean, row),
        "answer": task.symbol(int(clean.answers[row])), "tree": _tree(task, number, seed),
    }  # fmt: skip


def answers_at(batch: Batch, row: int) -> list[int]:
    """Positions right after predictions at which the document has the answer; not every task writes it down."""
    asked = zip(batch.predict_at[row].tolist(), batch.targets[row].tolist(), strict=True)
    text = batch.tokens[row, : int(batch.lengths[row])].tolist()
    return [at + 1 for at, answer in asked if at + 1 < len(text) and text[at + 1] == answer]


def roles_data(batch: Batch, row: int) -> dict[str, int | list[int]]:
    """The position of each role in a document, or a list of several; roles that it lacks are left out."""
    places = {role: places_of(at, row) for role, at in batch.roles.items()}
    return {role: at[0] if len(at) == 1 else at for role, at in places.items() if at}


def _tree(task: Task, number: int, seed: int) -> dict[str, Any] | None:
    """Parents by position, and the nonterminal that each head expands; None where there is no readable tree."""
    if not isinstance(task, ATR):
        return None
    try:
        drawn = derivation_of(task, number, SPLIT, seed)
    except UserError:
        return None
    return {"parents": list(drawn.parents), "asked": drawn.asked(), "owners": list(drawn.owners)}


def _right(answers: Answers) -> float:
    """The probability of the right answer."""
    return round(next(each.p for each in answers if each.right), 4)


def _answers(answers: Answers, names: dict[str, int]) -> list[int]:
    """Symbol, probability, symbol, probability, the likeliest first: symbols by number, probabilities per mille."""
    return [part for each in answers for part in (names.setdefault(each.symbol, len(names)), round(1000 * each.p))]
