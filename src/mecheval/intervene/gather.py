"""Gathers the evidence for a verdict: the interventions on one model that decide, document by document.

The sites come from the model, never from what a user happened to ask for. Documents count if key, value and query are
at different positions and the query is beyond the reach of a short convolution (otherwise the positions in between
could not be distinguished from the query). A position with two names in a document counts for the one that restores
more in all documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.intervene.answering import answering, evaluating
from mecheval.intervene.effects import (
    BUDGET_MB,
    check_same,
    corruption_of,
    cut_after_prediction,
    document_slices,
)
from mecheval.intervene.finding import Finding
from mecheval.intervene.mechanism import Cell, Depths, Rule, depths_of, retrieving, route
from mecheval.intervene.places import NEAR
from mecheval.intervene.reading import MIN_GAP, read_each
from mecheval.intervene.readings import both
from mecheval.intervene.trial import Trial, change
from mecheval.model import LM
from mecheval.sites import Site
from mecheval.types import FRAMED, Batch, Meaning, first_of, has_role, last_of

if TYPE_CHECKING:
    import pandas as pd

    from mecheval.intervene.sentences import Verdict

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Evidence:
    """The likelihoods of the answer in every document that counts, under the interventions that decide.

    It says all that a verdict rests on, so a changed rule judges again without the model: `evidence.verdict(rule)`.
    """

    cells: tuple[Cell, ...]
    sites: dict[str, Site]
    original: Floats  # (n,)
    corrupted: dict[str, Floats]  # corruption -> (n,)
    edited: Floats  # (cells, n), NaN where a document does not have the role
    chance: Floats  # (n,)
    index: NDArray[np.int64]  # (n,) numbers of the documents
    given: int  # number of documents, including those that do not count
    depths: Depths
    inner: str | None  # the first site inside the retrieving layer at which key and value have met
    apart: Floats  # (4, m) likelihood, accuracy, chance, corrupted likelihood; if key, value and query are apart
    meaning: Meaning = FRAMED
    distance: NDArray[np.int64] | None = None  # (n,) from key to value; None if there is no value
    ahead: int | None = None  # the first layer whose input depends on later tokens, if the model looks ahead
    searched: int | None = None  # the layer inside which was looked for where key and value meet

    @property
    def n(self) -> int:
        """The number of documents that count."""
        return len(self.original)

    def verdict(self, rule: Rule = Rule(), *, resamples: int = 1000, seed: int = 0) -> Verdict:  # noqa: B008 (frozen)
        """The mechanism that this evidence shows by the rule, whose limits are its fields: `Rule(trace=0.1)`."""
        from mecheval.intervene.judging import judged

        return judged([self], rule, resamples, seed)

    def parts(self) -> tuple[Floats, Floats]:
        """What each cell restores or destroys, and what the corruption loses, (cells, n) each; NaN if missing."""
        each = [
            change(cell, edited, self.original, self.corrupted)
            for cell, edited in zip(self.cells, self.edited, strict=True)
        ]
        effect, lost = np.stack(each, axis=1)
        return effect, lost

    def table(self) -> pd.DataFrame:
        """A row for each cell, with the columns of `interchange`."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        effect, _ = self.parts()
        for cell, edited, each in zip(self.cells, self.edited, effect, strict=True):
            there = ~np.isnan(edited)
            site = self.sites[cell.site]
            original = float(self.original[there].mean()) if there.any() else float("nan")
            corrupted = float(self.corrupted[cell.corruption][there].mean()) if there.any() else float("nan")
            restored = float(edited[there].mean()) if there.any() else float("nan")
            attribution = float(each[there].mean()) if there.any() else float("nan")
            gap = original - corrupted
            rows.append({
                "site": str(site), "block": site.block, "part": site.part, "kind": site.kind, "role": cell.role,
                "corruption": cell.corruption, "direction": cell.direction, "original": original,
                "corrupted": corrupted, "restored": restored, "attribution": attribution,
                "share": attribution / gap if gap > 0 else float("nan"), "n": int(there.sum()),
            })  # fmt: skip
        return pd.DataFrame(rows)


def evidence(
    model: nn.Module,
    clean: Batch,
    corrupted: Batch,
    *,
    depths: Depths | None = None,
    seed: int = 0,
    budget_mb: float = BUDGET_MB,
) -> Evidence:
    """Make the interventions that decide on a verdict: the likelihoods of the answer by document.

    They are made at the sites that the model has, not at ones that a user chooses: at the input of every layer but the
    first, and, where key and value may meet inside one layer, inside it. `corrupted` has other keys:
    `task.corrupt(clean)`. Of a module that is not an `LM`, `depths` names the sites. `budget_mb` bounds the memory of
    stacked activations, `seed` chooses the positions of the role `random`.
    """
    found = measured(model, clean, corrupted, depths=depths, seed=seed, budget_mb=budget_mb)
    if isinstance(found, str):
        raise UserError(f"evidence: {found}.")
    return found


def measured(
    model: nn.Module, clean: Batch, corrupted: Batch, *, depths: Depths | None = None, seed: int = 0,
    budget_mb: float = BUDGET_MB,
) -> Evidence | str:  # fmt: skip
    """The same, or a sentence that says why these documents or this model can have no verdict."""
    check_same(clean, corrupted)
    model = answering(model)
    decides = depths or (depths_of(model.sites()) if isinstance(model, LM) else None)
    if decides is None:
        return "name the sites that decide about a module that is not an LM: depths= (evaluate finds them by itself)"
    if (kind := corruption_of(clean, corrupted)) not in ("key", "other"):
        return f"a verdict needs documents with corrupted keys, task.corrupt(clean) (got a corrupted {kind})"
    with evaluating(model):
        at_once = document_slices(model, clean, budget_mb)[0].stop if len(clean) else 1
        own, base = cut_after_prediction(clean), cut_after_prediction(corrupted)
        found = gather(model, own, base, decides, int(budget_mb * 2**20), at_once, seed)
    return found or "a verdict needs documents whose roles and whose likelihood of a guess are known"


@torch.no_grad()
def gather(
    model: nn.Module, clean: Batch, corrupted: Batch, depths: Depths, budget: int, at_once: int, seed: int = 0
) -> Evidence | None:
    """The evidence about a model, with `at_once` documents in one pass; None if they lack the roles it needs."""
    meaning = clean.meaning
    needed = [role for role in (meaning.key, meaning.value, meaning.query) if role is not None]
    if not set(needed) <= set(clean.roles) or not len(clean):
        return None
    if clean.chance is None and "pairs" not in clean.facts:  # a batch made by hand, whose chance level is unknown
        return None
    apart, far = _stand_apart(clean)
    rows = (far if far.sum() >= max(Rule().documents, int(apart.sum())) // 4 else apart).nonzero()[:, 0]
    given, rest = len(clean), (apart & ~torch.isin(torch.arange(len(apart), device=apart.device), rows)).nonzero()[:, 0]
    others, spoilt = clean[rest], corrupted[rest]
    clean, corrupted = clean[rows], corrupted[rows]
    tried = Trial(model, clean, corrupted, depths, budget, at_once, seed)
    chance = chance_of(clean)
    every = [np.stack([tried.original, tried.right, chance, tried.lost["key"]])]
    for first in range(0, len(rest), at_once):
        some = slice(first, first + at_once)
        known = read_each(model, {"": others[some], "key": spoilt[some]}, [], {}, at_once, both)
        (found, hits), (lost, _) = known[""].likelihood.numpy(), known["key"].likelihood.numpy()
        every.append(np.stack([found, hits, chance_of(others[some]), lost]))
    rule, inner, layer = Rule(), None, None
    if meaning.value is not None and len(rows) and float((tried.original - tried.lost["key"]).mean()) >= MIN_GAP:
        tried.boundaries(rule)
        path = route(tried.shares(), depths, rule, meaning)
        if not isinstance(path, Finding):
            tried.asked(retrieving(path))
        if not isinstance(path, Finding) and "between" not in path:
            layer = retrieving(path)
            inner = tried.inside(depths.inside[layer], rule) or tried.operation_inside(layer, rule)
    return Evidence(
        tuple(tried.found), tried.sites, tried.original, tried.lost,
        np.stack(list(tried.found.values())) if tried.found else np.empty((0, len(rows))),
        chance, clean.index.cpu().numpy(), given, depths, inner, np.concatenate(every, axis=1), meaning,
        _distance(clean), tried.ahead, layer,
    )  # fmt: skip


def _stand_apart(batch: Batch) -> tuple[Tensor, Tensor]:
    """(n,) whether key and value are apart and before the query; (n,) whether it is also beyond a short convolution.

    In a task in which key and value are always the same token, they count as apart.
    """
    meaning = batch.meaning
    key, query = batch.roles[meaning.key], first_of(batch.roles[meaning.query])
    value = key if meaning.value is None else batch.roles[meaning.value]
    apart = (last_of(key) < first_of(value)) | (last_of(value) < first_of(key))
    if bool((first_of(key) == first_of(value)).all()):
        apart = torch.ones_like(apart)
    last = torch.maximum(last_of(key), last_of(value))
    apart = apart & has_role(key) & has_role(value) & (last < query)
    return apart, apart & (last + NEAR < query)


def _distance(batch: Batch) -> NDArray[np.int64] | None:
    """(n,) how many positions the value stands after the key."""
    if batch.meaning.value is None:
        return None
    return (first_of(batch.roles[batch.meaning.value]) - first_of(batch.roles[batch.meaning.key])).cpu().numpy()


def chance_of(batch: Batch) -> Floats:
    """(n,) the likelihood of the answer under the best guess that recalls nothing."""
    known = batch.chance[:, 0] if batch.chance is not None else 1 / batch.facts["pairs"].clamp(min=1)
    return known.double().cpu().numpy()
