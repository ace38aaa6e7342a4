"""Attribution patching: what interchange interventions would restore, estimated from gradients.

For a small change of an activation, the change of the answer's likelihood is the gradient times the change. So one run
backwards estimates the effects of all sites and roles at once, where exact patching needs a run for each. Far from
small changes the gradient at one point misleads: a likelihood that is near 0 or 1 hardly moves. Integrated gradients
take the mean gradient along a line instead: between the two activations of the site itself, or between the embeddings
of the corrupted and the clean documents. The first is the exact effect in the limit of many steps, by the theorem that
an integral of slopes is a difference, but needs runs for every site and role of its own. The second is cheap, because
the same runs serve all of them, and far less accurate.

n documents, L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mecheval.errors import UnknownName, UserError
from mecheval.intervene.edits import at_positions, put
from mecheval.intervene.effects import (
    BUDGET_MB,
    Documents,
    asked_sites,
    before_the_answer,
    check_same,
    corruption_of,
    cut_after_prediction,
    document_slices,
    summarise,
)  # fmt: skip
from mecheval.intervene.grid import MEASURES, Likelihoods, Measure, read
from mecheval.intervene.places import Listener, Roles, answering, evaluating, listening, place, positions
from mecheval.model import LM
from mecheval.types import NOWHERE, Batch, has_role

if TYPE_CHECKING:
    import pandas as pd

LINES = ("sites", "inputs")
"""What moves from the corrupted to the clean documents."""
STEPS = 5
"""Points of the line at which gradients are taken, unless another number is asked for."""


def attribute(
    model: nn.Module,
    clean: Batch,
    corrupted: Batch,
    sites: Sequence[str] | None = None,
    roles: Roles | None = None,
    *,
    heads: bool = False,
    steps: int = STEPS,
    along: str = "sites",
    inputs: str | None = None,
    measure: str = "likelihood",
    seed: int = 0,
    budget_mb: float = BUDGET_MB,
) -> pd.DataFrame:
    """The table of `interchange`, with estimates of what is restored, from gradients.

    Gradients are taken at `steps` points between corrupted and clean documents (integrated gradients); `steps=1` takes
    them half-way. By default (`along="sites"`) each row has a line of its own, on which only its site moves at its
    role: `steps` runs for each row. With `along="inputs"` the embeddings move, and `steps` runs serve all rows: cheap,
    and good for the largest effects only. `inputs` is then the site that moves: of an `LM`, the input of its first
    block; of any other module, name the output of its embedding, e.g. `transformer.wte.output`. `measure` is
    "likelihood", "log" (its logarithm) or "logit" of the answer: in a model that is linear up to its logits, estimates
    of the latter are exact. An estimate may lie outside 0 and 1. No verdict is made of estimates.
    """
    check_same(clean, corrupted)
    if steps < 1:
        raise UserError(f"attribute: steps must be positive (got {steps}).")
    if measure not in MEASURES:
        raise UnknownName("measure", measure, MEASURES)
    model = answering(model)
    if along not in LINES:
        raise UnknownName("line to move along", along, LINES)
    if inputs is not None and along != "inputs":
        raise UserError('attribute: `inputs` is the site that moves with along="inputs".')
    if inputs is None and along == "inputs" and not isinstance(model, LM):
        raise UserError("attribute: name the output of the embedding of a module that is not an LM as `inputs`.")
    moved = (inputs or "blocks.0.input") if along == "inputs" else None
    asked = asked_sites(model, sites, heads)
    if unfit := [site for site in asked if site.kind == "state"]:
        raise UserError(f"attribute: {unfit[0]} has no gradient, because a state is not one activation.")
    where = before_the_answer(clean, positions(clean, roles, seed))
    parts = []
    with evaluating(model):
        for rows in document_slices(model, clean, budget_mb / 4):  # a run backwards keeps every activation
            own, base = (cut_after_prediction(batch[rows]) for batch in (clean, corrupted))
            there = {role: at[rows] for role, at in where.items()}
            parts.append(_slice(model, own, base, asked, there, moved, steps, MEASURES[measure]))
    original, lost, restored = (torch.cat(each, dim=-1) for each in zip(*parts, strict=True))
    likelihoods = Likelihoods(lost, restored)
    return summarise(Documents(asked, list(where), original, likelihoods, corruption=corruption_of(clean, corrupted)))


def _slice(
    model: nn.Module, clean: Batch, corrupted: Batch, sites: Sequence[str], where: dict[str, Tensor],
    moved: str | None, steps: int, measure: Measure,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The measure of clean and corrupted documents (n,), and estimates after each intervention (sites, roles, n).

    `moved` is the site of the inputs that move; without it, each site moves by itself.
    """
    all_of_it = {"all": torch.arange(clean.tokens.shape[1], device=clean.tokens.device).expand(len(clean), -1)}
    with torch.no_grad():
        original, values = read(model, clean, sites, where, measure)[:2]
        lost, others = read(model, corrupted, sites, where, measure)[:2]
        ends = [read(model, b, [moved], all_of_it)[1][moved]["all"] for b in (corrupted, clean)] if moved else []
    axes = {site: place(model, site).axis for site in [*sites, *([moved] if moved else [])]}
    restored, slopes = lost.expand(len(sites), len(where), len(clean)).clone(), dict[str, Tensor]()
    for share in ((step + 0.5) / steps for step in range(steps)):
        if moved:
            line = _placed(axes[moved], all_of_it["all"], torch.lerp(ends[0], ends[1], share))
            slopes = dict(zip(sites, _slopes(model, corrupted, sites, {moved: line}, measure), strict=True))
        for s, site in enumerate(sites):
            for r, (role, at) in enumerate(where.items()):
                change = values[site][role] - others[site][role]
                if not change.any():
                    continue
                if not moved:
                    line = _placed(axes[site], at, others[site][role] + share * change)
                    [slopes[site]] = _slopes(model, corrupted, [site], {site: line}, measure)
                slope = at_positions(slopes[site], axes[site], at)
                if at.ndim == 2:  # a span: only where the document has it
                    change = change * (at != NOWHERE).view(*at.shape, *[1] * (change.ndim - 2))
                restored[s, r] += (change * slope).flatten(1).sum(1).double().cpu() / steps
    for r, at in enumerate(where.values()):
        restored[:, r, ~has_role(at).cpu()] = torch.nan
    return original, lost, restored


def _placed(axis: int, at: Tensor, values: Tensor) -> Listener:
    """A listener that puts values at positions, and asks for gradients there."""

    def change(x: Tensor) -> Tensor:
        y = x.detach().clone()
        put(y, axis, at, values)
        return y.requires_grad_()

    return change


def _slopes(
    model: nn.Module, batch: Batch, sites: Sequence[str], moved: dict[str, Listener], measure: Measure
) -> tuple[Tensor, ...]:
    """The gradient of the sum of the documents' measures at each site, in a run in which something is `moved`."""
    seen: dict[str, Tensor] = {}

    def keeper(site: str) -> Listener:
        return lambda x: seen.setdefault(site, x.clone())

    with torch.enable_grad(), listening(model, moved), listening(model, {site: keeper(site) for site in sites}):
        at = batch.predict_at[:, 0]
        if isinstance(model, LM):
            logits = model(batch.tokens, at=at)
        else:
            logits = model(batch.tokens)[torch.arange(len(batch), device=batch.tokens.device), at]
        answered = measure(logits, batch.answers).sum()
        wanted = [seen[site] for site in sites]
        return torch.autograd.grad(answered, wanted, allow_unused=True, materialize_grads=True)
