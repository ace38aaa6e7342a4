"""Interchange interventions: put the clean activation of one site at one role back into a corrupted run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.intervene.edits import Edit, Take
from mecheval.intervene.grid import Likelihoods, document_bytes, read, run_grid
from mecheval.intervene.places import ALL_ROLES, Roles, place, positions
from mecheval.model import LM
from mecheval.sites import Site
from mecheval.types import Batch

if TYPE_CHECKING:
    import pandas as pd

BUDGET_MB = 64
"""Larger stacks are not faster: they leave the cache."""
SLICE = 64
"""Documents at once for a module that is not an `LM`."""
MIN_GAP = 0.01
"""Below this difference of original and corrupted likelihood there is nothing to restore, and no share of it."""

KEY = "documents"


class Documents:
    """Likelihoods of every document behind a table of effects, from which intervals are computed.

    They travel with the table as `effects.attrs["documents"]`; two are equal only if they are the same object.
    """

    def __init__(self, sites: Sequence[Site], roles: Sequence[str], original: Tensor, found: Likelihoods) -> None:
        self.sites, self.roles = list(sites), list(roles)
        self._place = {(str(site), role): (s, r) for s, site in enumerate(sites) for r, role in enumerate(roles)}
        self.original, self.corrupted = original, found.base  # (n,)
        self.restored = found.edited  # (sites, roles, n)

    def at(self, site: str, role: str) -> Tensor:
        """Restored likelihoods (n,) of one intervention."""
        return self.restored[self._place[site, role]]


def default_sites(model: nn.Module) -> list[Site]:
    """Inputs and outputs of every block, mixer and MLP, and all sites inside the mixers that can be replaced."""
    if not isinstance(model, LM):
        raise UserError("name the sites of a module that is not an LM: `<submodule>.output` or `<submodule>.input`.")
    return [site for site in model.sites() if not model.taps()[site].readonly]


def interchange(
    model: nn.Module,
    clean: Batch,
    corrupted: Batch,
    sites: Sequence[str] | None = None,
    roles: Roles = ALL_ROLES,
    *,
    per_document: bool = False,
    seed: int = 0,
    budget_mb: float = BUDGET_MB,
) -> pd.DataFrame:
    """A row for each site and role: what putting the clean activation back into the corrupted run restores.

    Columns: site, block, part, kind (see `Site`), role; original, corrupted, restored (mean likelihoods of the answer),
    attribution = restored - corrupted, share = attribution / (original - corrupted), n documents. `per_document` gives
    a row for each document instead, with its number as `document`. `model` is an `LM`, or any module that maps tokens
    (n, L) to logits (n, L, V) with `sites` named by submodule, e.g. `layers.0.attn.output`; for those every edit is a
    whole run. `budget_mb` bounds the memory of the activations; `seed` chooses the positions of the role `random`.
    """
    _check(clean, corrupted)
    asked = default_sites(model) if sites is None else [_replaceable(model, site) for site in sites]
    where = _before_the_answer(clean, positions(clean, roles, seed))
    training = model.training
    model.eval()
    try:
        parts = []
        for rows in _document_slices(model, clean, budget_mb):
            there = {role: at[rows] for role, at in where.items()}
            parts.append(_slice(model, _cut(clean[rows]), _cut(corrupted[rows]), asked, there, budget_mb))
    finally:
        model.train(training)
    original = torch.cat([part[0] for part in parts])
    found = Likelihoods(
        torch.cat([part[1].base for part in parts]), torch.cat([part[1].edited for part in parts], dim=-1)
    )
    documents = Documents(asked, list(where), original, found)
    return _rows_of_documents(documents, clean.index) if per_document else summarise(documents)


def _replaceable(model: nn.Module, name: str) -> Site:
    """The site of this name, or an error if the model does not compute with what is there."""
    found = place(model, name)
    if found.readonly:
        raise UserError(f"site {name} can only be read: the model does not compute with it.")
    return found.site


def _slice(
    model: nn.Module, clean: Batch, corrupted: Batch, sites: Sequence[str], where: dict[str, Tensor], budget_mb: float
) -> tuple[Tensor, Likelihoods]:
    with torch.no_grad():
        original, values = read(model, clean, sites, where)[:2]  # its inputs of blocks are not needed

    def edits(site: str, role: str) -> Edit:
        return Take(values[site][role])

    return original, run_grid(model, corrupted, edits, sites, where, int(budget_mb * 2**20))


def _document_slices(model: nn.Module, batch: Batch, budget_mb: float) -> list[slice]:
    """As many documents at once as fit into the budget together with the inputs of all blocks."""
    length = batch.tokens.shape[1]
    if isinstance(model, LM):
        inputs = model.n_layers * length * model.d_model * model.embed.weight.element_size()
        size = max(1, int(budget_mb * 2**20) // (document_bytes(model, length) + inputs))
    else:  # its size is not known: few documents at once
        size = SLICE
    return [slice(first, first + size) for first in range(0, len(batch), size)]


def columns_of(site: Site) -> dict[str, Any]:
    """A site as columns of a table."""
    return {"site": str(site), "block": site.block, "part": site.part, "kind": site.kind}


def summarise(documents: Documents) -> pd.DataFrame:
    """Means over documents; over those that have the role."""
    import pandas as pd

    rows: list[Mapping[str, Any]] = []
    for s, site in enumerate(documents.sites):
        for r, role in enumerate(documents.roles):
            there = ~documents.restored[s, r].isnan()
            n = int(there.sum())
            original, corrupted, restored = (
                float(p[there].mean()) for p in (documents.original, documents.corrupted, documents.restored[s, r])
            )
            gap, attribution = original - corrupted, restored - corrupted
            rows.append({
                **columns_of(site), "role": role, "original": original, "corrupted": corrupted, "restored": restored,
                "attribution": attribution, "share": attribution / gap if gap >= MIN_GAP else float("nan"), "n": n,
            })  # fmt: skip
    frame = pd.DataFrame(rows)
    frame.attrs[KEY] = documents
    return frame


def _rows_of_documents(documents: Documents, index: Tensor) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    shape = documents.restored.shape
    n = shape[-1]

    def spread(values: Tensor) -> Any:
        return values.expand(shape).reshape(-1).numpy()

    original, corrupted, restored = map(spread, (documents.original, documents.corrupted, documents.restored))
    gap = original - corrupted
    each = pd.DataFrame([columns_of(site) for site in documents.sites])
    columns = each.loc[np.repeat(each.index, len(documents.roles) * n)].reset_index(drop=True)
    return columns.assign(**{
        "role": np.tile(np.repeat(documents.roles, n), len(documents.sites)),
        "document": spread(index.cpu()),
        "original": original,
        "corrupted": corrupted,
        "restored": restored,
        "attribution": restored - corrupted,
        "share": np.where(gap >= MIN_GAP, (restored - corrupted) / np.where(gap >= MIN_GAP, gap, 1), np.nan),
        "n": 1,
    })  # fmt: skip


def ablate(
    model: nn.Module,
    batch: Batch,
    edit: Edit,
    sites: Sequence[str] | None = None,
    roles: Roles = ALL_ROLES,
    *,
    seed: int = 0,
    budget_mb: float = BUDGET_MB,
) -> pd.DataFrame:
    """A row for each site and role: what becomes of the likelihood of the answer when `edit` acts there.

    `edit` is Zero(), Mean(), Noise(1.0) or any function of the activations (n, ...); the documents are run together, so
    that `Mean` is over all of them. Columns: site, block, part, kind, role; original, edited, drop = original - edited,
    n.
    """
    import pandas as pd

    asked = default_sites(model) if sites is None else [place(model, site).site for site in sites]
    where = _before_the_answer(batch, positions(batch, roles, seed))
    training = model.training
    model.eval()
    try:
        found = run_grid(model, _cut(batch), lambda site, role: edit, asked, where, int(budget_mb * 2**20))
    finally:
        model.train(training)
    rows = []
    for s, site in enumerate(asked):
        for r, role in enumerate(where):
            there = ~found.edited[s, r].isnan()
            original, edited = float(found.base[there].mean()), float(found.edited[s, r, there].mean())
            rows.append({
                **columns_of(site), "role": role, "original": original, "edited": edited, "drop": original - edited,
                "n": int(there.sum()),
            })  # fmt: skip
    return pd.DataFrame(rows)


def _before_the_answer(batch: Batch, where: dict[str, Tensor]) -> dict[str, Tensor]:
    for role, places in where.items():
        if (places > batch.predict_at[:, 0]).any():
            raise UserError(f"role {role!r}: a position lies after the prediction; nothing there can change it.")
    return where


def _cut(batch: Batch) -> Batch:
    """Without what follows the last first prediction: no model may see it before it answers."""
    return replace(batch, tokens=batch.tokens[:, : int(batch.predict_at[:, 0].max()) + 1].contiguous())


def _check(clean: Batch, corrupted: Batch) -> None:
    if clean.tokens.shape != corrupted.tokens.shape or not torch.equal(clean.answers, corrupted.answers):
        raise UserError("clean and corrupted must be the same documents: corrupted = task.corrupt(clean).")
