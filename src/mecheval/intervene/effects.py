"""Interchange interventions: patch the clean activation of one site at one role into a corrupted run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn

from mecheval.errors import UnknownName, UserError
from mecheval.intervene.answering import Answering, answering, evaluating
from mecheval.intervene.edits import Edit, Take, edit_of
from mecheval.intervene.grid import Cell, Likelihoods, document_bytes, run_edits
from mecheval.intervene.places import STATE, Roles, place, positions
from mecheval.intervene.reading import MIN_GAP, read, right
from mecheval.model import LM
from mecheval.sites import Site
from mecheval.types import NOWHERE, Batch, Direction

if TYPE_CHECKING:  # slow to import
    import pandas as pd

BUDGET_MB = 64
"""Default memory in megabytes for stacked activations; larger stacks do not fit the cache and are not faster."""
SLICE = 64
"""Number of documents run at once by a module that is not an `LM`."""


class Documents:
    """The likelihoods of every document from which a table of effects is computed."""

    def __init__(
        self, sites: Sequence[Site], roles: Sequence[str], original: Tensor, found: Likelihoods,
        direction: str = "restore", corruption: str = "key", hits: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.sites, self.roles, self.direction, self.corruption = list(sites), list(roles), direction, corruption
        self.original, self.corrupted = original, found.base  # (n,)
        self.restored = found.edited  # (sites, roles, n): likelihoods after each intervention
        self.hits = hits  # (sites, roles, n): for swapped documents, whether it gives the counterfactual answer


def default_sites(model: nn.Module) -> list[Site]:
    """Inputs and outputs of every block, mixer and MLP, and all sites inside the mixers that can be replaced."""
    if not isinstance(model, LM):
        raise UserError("name the sites of a module that is not an LM: `<submodule>.output` or `<submodule>.input`.")
    return [site for site in model.sites() if not model.taps()[site].readonly]


def asked_sites(model: nn.Module, sites: Sequence[str] | None, heads: bool) -> list[Site]:
    """The sites of these names, or the default ones; `heads` adds every head of an `LM`'s mixers."""
    asked = default_sites(model) if sites is None else [_replaceable(model, site) for site in sites]
    found = model.heads() if isinstance(model, LM) else []
    if heads and not found:
        raise UserError(
            "heads: no mixer of this model has known heads; name them as parts of a site, `<site>.part.0/4`."
        )
    return [*asked, *found] if heads else asked


def interchange(
    model: nn.Module,
    clean: Batch,
    corrupted: Batch,
    sites: Sequence[str] | None = None,
    roles: Roles | None = None,
    *,
    heads: bool = False,
    direction: str = "restore",
    joint: Sequence[tuple[str, str]] | None = None,
    per_document: bool = False,
    seed: int = 0,
    budget_mb: float = BUDGET_MB,
) -> pd.DataFrame:
    """A row for each site and role: what patching the clean activation into the corrupted run restores.

    Columns: site, block, part, kind (see `Site`), role; corruption and direction; original, corrupted, restored (mean
    likelihoods of the answer in clean documents, in corrupted ones and after the intervention), attribution (the change
    by the intervention), share = attribution / (original - corrupted), and n, the number of documents. `direction` is
    "restore", "destroy" (patch the corrupted activation into the clean run) or "both". `joint` replaces several (site,
    role) together, in one row whose role is "joint". For documents whose values were swapped, `hits` is the share of
    documents in which the clean run with the swapped activation gives the swapped document's answer ("destroy").

    `model` is an `LM`, or any module that maps tokens (n, L) to logits (n, L, V) or to an object with `.logits`; its
    `sites` are then named by submodule, e.g. `layers.0.attn.output`, and every edit is a whole run. The site
    `blocks.1.mixer.state` is everything that the mixer carries beyond a position; `heads` adds a row for every head of
    an `LM`'s mixers. `per_document` gives a row for each document instead, with its number as `document`. `budget_mb`
    bounds the memory of the activations; `seed` chooses the positions of the role `random`. Without `roles`, all roles
    of the documents and `random` are used. `mecheval.heatmap` draws the table; `verdict` needs other interventions.
    """
    import pandas as pd

    check_same(clean, corrupted)
    directions = ["restore", "destroy"] if direction == "both" else [direction]
    for name in directions:
        if name not in get_args(Direction):
            raise UnknownName("direction", name, ["restore", "destroy", "both", "control"])
    model = answering(model)
    asked = asked_sites(model, () if sites is None and joint else sites, heads)
    where = before_the_answer(clean, positions(clean, roles, seed))
    if joint is not None:
        where |= before_the_answer(clean, positions(clean, [role for _, role in joint if role not in where], seed))
    with evaluating(model):
        found = [_both(model, clean, corrupted, asked, where, joint, name, budget_mb) for name in directions]
    tables = [rows_of_documents(each, clean.index) if per_document else summarise(each) for each in found]
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)


def _both(
    model: nn.Module, clean: Batch, corrupted: Batch, sites: Sequence[Site], where: dict[str, Tensor],
    joint: Sequence[tuple[str, str]] | None, direction: str, budget_mb: float,
) -> Documents:  # fmt: skip
    """All interventions of one direction."""
    roles = list(where)
    if joint is not None:
        together = [(_replaceable(model, site), role) for site, role in joint]
        cells: list[Sequence[Cell]] = [together]
        name = Site(None, " + ".join(f"{site}@{role}" for site, role in together))
        shown, roles = [name], ["joint"]
    else:
        cells = [((site, role),) for site in sites for role in where]
        shown = list(sites)
    # Documents are sorted by length, so that slices are no longer than necessary; a control uses neighbours.
    order = torch.arange(len(clean)) if direction == "control" else clean.predict_at[:, 0].argsort(stable=True).cpu()
    parts = []
    for rows in document_slices(model, clean, budget_mb):
        some = order[rows].to(clean.tokens.device)
        pair = [cut_after_prediction(batch[some]) for batch in (clean, corrupted)]
        there = {role: at[some] for role, at in where.items()}
        parts.append(_slice(model, pair[0], pair[1], cells, there, direction, int(budget_mb * 2**20)))
    shape = (len(shown), len(roles), len(clean))
    back = order.argsort()

    def joined(each: Sequence[Tensor]) -> Tensor:
        return torch.cat(tuple(each), dim=-1)[..., back]

    original, base, edited = (joined([part[i] for part in parts]) for i in range(3))  # type: ignore[misc]
    found = [part[3] for part in parts if part[3] is not None]
    hits = joined(found).view(shape) if found else None
    likelihoods = Likelihoods(base, edited.view(shape))
    return Documents(shown, roles, original, likelihoods, direction, corruption_of(clean, corrupted), hits)


def corruption_of(clean: Batch, corrupted: Batch) -> str:
    """The kind of corruption, as `Task.corrupt` names it; "other" for anything else."""
    if corrupted.counterfactual is not None:
        return "swap"
    changed = clean.tokens != corrupted.tokens
    meaning = clean.meaning
    for kind, role in (("key", meaning.key), ("value", meaning.value), ("query", meaning.query)):
        if role in clean.roles:
            where = clean.roles[role].view(len(clean), -1)
            inside = changed.gather(1, where.clamp(min=0)) & (where != NOWHERE)
            if bool((changed.sum(1) == inside.sum(1)).all()):
                return kind
    return "other"


def _replaceable(model: nn.Module, name: str) -> Site:
    """The site of this name, or an error if replacing its activation would have no effect on the model."""
    found = place(model, name)
    if found.readonly and found.site.part != STATE:
        raise UserError(f"site {name} can only be read: the model does not compute with it.")
    return found.site


def _slice(
    model: nn.Module, clean: Batch, corrupted: Batch, cells: Sequence[Sequence[Cell]], where: dict[str, Tensor],
    direction: str, budget: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Likelihoods of clean and corrupted documents (n,) and after each intervention (cells, n); and hits (cells, n)."""
    base, source = (clean, corrupted) if direction == "destroy" else (corrupted, clean)
    sites = list(dict.fromkeys(site for together in cells for site, _ in together))
    with torch.no_grad():
        read_likelihood, values = read(model, source, sites, where)[:2]  # the inputs of blocks are not needed
    if direction == "control":
        values = {site: {role: x.roll(1, 0) for role, x in at.items()} for site, at in values.items()}

    def edits(site: str, role: str) -> Edit:
        return Take(values[site][role])

    base_likelihood, edited = run_edits(model, base, edits, cells, where, budget)
    ends = (base_likelihood, read_likelihood)
    original, lost = ends if direction == "destroy" else ends[::-1]
    hits = None
    if corrupted.counterfactual is not None and direction == "destroy":
        asks = replace(base, answers=corrupted.counterfactual)
        hits = run_edits(model, asks, edits, cells, where, budget, right)[1]
    return original, lost, edited, hits


def document_slices(model: nn.Module, batch: Batch, budget_mb: float) -> list[slice]:
    """Slices of as many documents as fit into the budget, together with the inputs of all blocks."""
    length = batch.tokens.shape[1]
    if isinstance(model, LM):
        inputs = model.n_layers * length * model.d_model * model.embed.weight.element_size()
        size = max(1, int(budget_mb * 2**20) // (document_bytes(model, length) + inputs))
    else:  # its size is unknown, so few documents at once, and fewer if the logits are large
        each = 4 * length * (model.vocabulary if isinstance(model, Answering) else 0)
        size = max(1, min(SLICE, int(budget_mb * 2**20) // max(1, each)))
    return [slice(first, first + size) for first in range(0, len(batch), size)]


def columns_of(site: Site) -> dict[str, Any]:
    """A site as columns of a table."""
    return {"site": str(site), "block": site.block, "part": site.part, "kind": site.kind}


def summarise(documents: Documents) -> pd.DataFrame:
    """Means over the documents that have the role, one row for each intervention."""
    import pandas as pd

    there = ~documents.restored.isnan()  # (sites, roles, n)
    n = there.sum(-1)

    def mean(values: Tensor) -> list[float]:
        found: list[float] = (torch.where(there, values, 0).sum(-1) / n).flatten().tolist()
        return found

    means = zip(*map(mean, (documents.original, documents.corrupted, documents.restored)), strict=True)
    hits = [None] * n.numel() if documents.hits is None else mean(documents.hits)
    cells = itertools.product([columns_of(site) for site in documents.sites], documents.roles)
    rows: list[Mapping[str, Any]] = []
    for (of, role), (original, corrupted, restored), hit, count in zip(
        cells, means, hits, n.flatten().tolist(), strict=True
    ):
        gap = original - corrupted
        attribution = original - restored if documents.direction == "destroy" else restored - corrupted
        rows.append({
            **of, "role": role, "corruption": documents.corruption, "direction": documents.direction,
            "original": original, "corrupted": corrupted, "restored": restored, "attribution": attribution,
            "share": attribution / gap if gap >= MIN_GAP else float("nan"), "n": count,
            **({} if hit is None else {"hits": hit}),
        })  # fmt: skip
    return pd.DataFrame(rows)


def rows_of_documents(documents: Documents, index: Tensor) -> pd.DataFrame:
    """A row for each intervention and document; `index` (n,) has the documents' numbers."""
    import numpy as np
    import pandas as pd

    shape = documents.restored.shape
    n = shape[-1]

    def spread(values: Tensor) -> Any:
        return values.expand(shape).reshape(-1).numpy()

    original, corrupted, restored = map(spread, (documents.original, documents.corrupted, documents.restored))
    gap = original - corrupted
    attribution = original - restored if documents.direction == "destroy" else restored - corrupted
    each = pd.DataFrame([columns_of(site) for site in documents.sites])
    columns = each.loc[np.repeat(each.index, len(documents.roles) * n)].reset_index(drop=True)
    table: pd.DataFrame = columns.assign(**{
        "role": np.tile(np.repeat(documents.roles, n), len(documents.sites)),
        "corruption": documents.corruption,
        "direction": documents.direction,
        "document": spread(index.cpu()),
        "original": original,
        "corrupted": corrupted,
        "restored": restored,
        "attribution": attribution,
        "share": np.where(gap >= MIN_GAP, attribution / np.where(gap >= MIN_GAP, gap, 1), np.nan),
        "n": 1,
    })  # fmt: skip
    return table


def ablate(
    model: nn.Module,
    batch: Batch,
    edit: Edit | str,
    sites: Sequence[str] | None = None,
    roles: Roles | None = None,
    *,
    seed: int = 0,
    budget_mb: float = BUDGET_MB,
) -> pd.DataFrame:
    """A row for each site and role: how the likelihood of the answer changes when `edit` is applied there.

    `edit` is Zero(), Mean(), Noise(1.0), the name of one as for `mecheval intervene --edit` ("zero", "noise=1") or any
    function of the activations (n, ...); all documents are run together, so that `Mean` is over all of them. Columns:
    site, block, part, kind, role, original, edited, drop = original - edited and n.
    """
    import pandas as pd

    acts = edit_of(edit) if isinstance(edit, str) else edit
    model = answering(model)
    asked = default_sites(model) if sites is None else [place(model, site).site for site in sites]
    if any(site.part == STATE for site in asked):
        raise UserError("ablate: a state can be replaced by another document's (interchange), not edited.")
    where = before_the_answer(batch, positions(batch, roles, seed))
    cut, cells = cut_after_prediction(batch), [((site, role),) for site in asked for role in where]
    with evaluating(model):
        if not isinstance(model, LM):
            read(model, cut, asked, where)  # raises an error if a site does not fit
        base, found = run_edits(model, cut, lambda site, role: acts, cells, where, int(budget_mb * 2**20))
    rows = []
    for ((site, role),), likelihoods in zip(cells, found, strict=True):
        there = ~likelihoods.isnan()
        original, edited = float(base[there].mean()), float(likelihoods[there].mean())
        rows.append({
            **columns_of(site), "role": role, "original": original, "edited": edited, "drop": original - edited,
            "n": int(there.sum()),
        })  # fmt: skip
    return pd.DataFrame(rows)


def before_the_answer(batch: Batch, where: dict[str, Tensor]) -> dict[str, Tensor]:
    """`where` itself, or an error if a position lies after the prediction."""
    for role, places in where.items():
        if (places > (batch.predict_at[:, 0] if places.ndim == 1 else batch.predict_at[:, :1])).any():
            raise UserError(f"role {role!r}: a position lies after the prediction; nothing there can change it.")
    return where


def cut_after_prediction(batch: Batch) -> Batch:
    """The batch without the tokens after the last first prediction, which cannot affect any answer."""
    return replace(batch, tokens=batch.tokens[:, : int(batch.predict_at[:, 0].max()) + 1].contiguous())


def check_same(clean: Batch, corrupted: Batch) -> None:
    """Raise an error unless `corrupted` has the same documents as `clean`."""
    if clean.tokens.shape != corrupted.tokens.shape or not torch.equal(clean.answers, corrupted.answers):
        raise UserError("clean and corrupted must be the same documents: corrupted = task.corrupt(clean).")
