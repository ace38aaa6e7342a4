"""Single documents under interventions, from the weights of a few runs: what the explorer of the page shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures.grammar import derivation_of
from mecheval.figures.heatmap import arranged, in_depth
from mecheval.report.page import tidy
from mecheval.report.runs import SPLIT, is_mapped, layout_of, three
from mecheval.store import RunFolder, Store
from mecheval.tasks import ATR, Task
from mecheval.tasks.base import places_of
from mecheval.types import LAST, ROLES, in_order

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.analysis.runs import Trained
    from mecheval.intervene.explain import Answers
    from mecheval.types import Batch

RUNS, DOCUMENTS = 24, 6
"""Most runs whose documents are shown, and most documents of each."""
LOOK, LONGEST = 48, 48
"""How many documents are searched for short ones, and up to how many tokens a document is easily read."""
TOP = 3
"""How many answers are listed, besides the right one."""


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
    return sorted((_explore(store.folder(run)) for run in runs), key=lambda run: "problem" in run)


def _explore(folder: RunFolder) -> dict[str, Any]:
    published = (folder.path.parents[1] / "weights").is_dir()
    if not published and not (folder.weights / f"{LAST}.safetensors").exists():  # known without torch, which is slow
        return {"run": folder.id, "problem": f"run {folder.id} has no {LAST} weights."}
    from mecheval.analysis.pretrained import published_model
    from mecheval.analysis.runs import alone, load_run

    try:
        trained = (published_model(folder) if published else None) or load_run(folder, LAST)
        with alone(1):
            return {"run": folder.id, **_documents(trained)}
    except UserError as error:
        return {"run": folder.id, "problem": str(error)}
    except Exception as error:  # a custom mixer may have changed since, or be broken; the report goes without it
        return {"run": folder.id, "problem": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def _documents(trained: Trained) -> dict[str, Any]:
    import torch

    from mecheval.analysis.runs import documents
    from mecheval.intervene import interchange
    from mecheval.intervene.effects import default_sites
    from mecheval.intervene.explain import explain, likeliest, patched_logits

    given = trained.config.evaluate
    clean, corrupted = documents(trained.task, trained.config, SPLIT, min(LOOK, given.documents))
    rows = torch.tensor(_readable(clean.lengths.tolist()))
    clean, corrupted = clean[rows], corrupted[rows]
    sites = [site for site in default_sites(trained.lm) if is_mapped(site)]
    effects = interchange(trained.lm, clean, corrupted, sites, list(clean.roles), per_document=True)
    said = {(str(site), role): logits for site, role, logits in
            patched_logits(trained.lm, clean, corrupted, sites, list(clean.roles))}  # fmt: skip
    shown: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    for row in range(len(clean)):
        own = arranged(effects[effects["document"] == int(clean.index[row])])
        layout = layout_of(in_depth(sites), own["role"])
        both = clean[row : row + 1], corrupted[row : row + 1]
        answered = explain(trained.lm, trained.task, *both, sites=[], roles=[], top=TOP)
        right = int(clean.answers[row])
        patched = [
            _answers(likeliest(trained.task, said[site, role][row], right, TOP))
            for site, role in zip(own["site"].astype(str), own["role"], strict=True)
        ]
        shown.append({
            **_text(trained.task, clean, row, given.seed), "substitute": answered.substitute,
            "answers": [_answers(answered.clean), _answers(answered.corrupted)], "patched": patched,
            "original": tidy(own["original"].iloc[0]), "corrupted": tidy(own["corrupted"].iloc[0]),
            "values": three(own["restored"].to_numpy(float)),
        })  # fmt: skip
    return {"layout": layout, "documents": shown}


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


def _answers(answers: Answers) -> list[list[Any]]:
    """[symbol, probability, whether it is right], the likeliest first."""
    return [[each.symbol, tidy(round(each.p, 4)), each.right] for each in answers]
