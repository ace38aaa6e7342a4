"""Attribution patching: what interchange interventions would restore, estimated from gradients.

For a small change of an activation, the change of the answer's likelihood is the gradient times the change. So one
backward pass estimates the effects of all sites and roles at once, whereas exact patching needs a run for each. For
large changes, the gradient at one point is misleading, because a likelihood near 0 or 1 hardly moves. Integrated
gradients therefore average the gradient along a line: either between the two activations of the site itself, or between
the embeddings of the corrupted and the clean documents. The first converges to the exact effect as the number of steps
grows, because an integral of slopes is a difference, but it needs separate runs for every site and role. The second is
cheap, because the same runs serve all of them, and far less accurate.

n documents, L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mecheval.errors import UnknownName, UserError
from mecheval.intervene.answering import answering, evaluating
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
from mecheval.intervene.grid import Likelihoods
from mecheval.intervene.places import Listener, Roles, listening, place, positions
from mecheval.intervene.reading import MEASURES, Measure, read
from mecheval.model import LM
from mecheval.types import NOWHERE, Batch, has_role

if TYPE_CHECKING:
    import pandas as pd

LINES = ("sites", "inputs")
"""What moves along the line from the corrupted to the clean documents."""
STEPS = 5
"""Default number of points on the line at which gradients are taken."""


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
    """The table of `interchange`, with estimates from gradients of what is restored.

    Gradients are taken at `steps` points between the corrupted and the clean documents (integrated gradients);
    `steps=1` takes them half-way. By default (`along="sites"`), each row has its own line, on which only its site moves
    at its role; this takes `steps` runs for each row. With `along="inputs"`, the embeddings move, and `steps` runs
    serve all rows, which is cheap but reliable only for the largest effects. `inputs` is then the site that moves: by
    default the input of an `LM`'s first block; for any other module, name the output of its embedding, e.g.
    `transformer.wte.output`. `measure` is "likelihood", "log" (its logarithm) or "logit" of the answer; in a model that
    is linear up to its logits, estimates for "logit" are exact. An estimate may lie outside [0, 1]. Estimates do not
    give a verdict.
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
        for rows in document_slices(model, clean, budget_mb / 4):  # a backward pass keeps every activation
            own, base = (cut_after_prediction(batch[rows]) for batch in (clean, corrupted))
            there = {role: at[rows] for role, at in where.items()}
            run = _Runs(model, own, base, asked, there, MEASURES[measure])
            shares = [(step + 0.5) / steps for step in range(steps)]
            estimates = run.along_sites(shares) if moved is None else run.along_inputs(moved, shares)
            for r, at in enumerate(there.values()):
                estimates[:, r, ~has_role(at).cpu()] = torch.nan
            parts.append((run.original, run.lost, run.lost + estimates))
    original, lost, restored = (torch.cat(each, dim=-1) for each in zip(*parts, strict=True))
    likelihoods = Likelihoods(lost, restored)
    return summarise(Documents(asked, list(where), original, likelihoods, corruption=corruption_of(clean, corrupted)))


class _Runs:
    """Some documents, with the activations that are read once and used in all runs."""

    def __init__(
        self, model: nn.Module, clean: Batch, corrupted: Batch, sites: Sequence[str], where: dict[str, Tensor],
        measure: Measure,
    ) -> None:  # fmt: skip
        self.model, self.clean, self.corrupted, self.measure = model, clean, corrupted, measure
        self.sites, self.where = sites, where
        self.axes = {site: place(model, site).axis for site in sites}
        with torch.no_grad():
            self.original, own = read(model, clean, sites, where, measure)[:2]
            self.lost, self.others, self.inputs = read(model, corrupted, sites, where, measure)
        self.changes = {(site, role): own[site][role] - self.others[site][role] for site in sites for role in where}
        self.estimates = torch.zeros(len(sites), len(where), len(clean), dtype=torch.float64)

    def along_sites(self, shares: Sequence[float]) -> Tensor:
        """(sites, roles, n) estimates; each place moves by itself. Blocks of an `LM` before its site are not rerun."""
        for s, site in enumerate(self.sites):
            block = place(self.model, site).site.block or 0
            for r, (role, at) in enumerate(self.where.items()):
                change = self.changes[site, role]
                for share in shares if change.any() else []:
                    line = (self.others[site][role] + share * change).requires_grad_()
                    with torch.enable_grad(), listening(self.model, {site: _placed(self.axes[site], at, line)}):
                        [slope] = torch.autograd.grad(self.answer(block), line)
                    self.estimates[s, r] += (change * slope).flatten(1).sum(1).double().cpu() / len(shares)
        return self.estimates

    def along_inputs(self, moved: str, shares: Sequence[float]) -> Tensor:
        """(sites, roles, n) estimates; the inputs move, and the gradients of all sites are taken together."""
        everywhere = torch.arange(self.clean.tokens.shape[1], device=self.clean.tokens.device)
        at = {"all": everywhere.expand(len(self.clean), -1)}
        with torch.no_grad():
            start, end = (read(self.model, b, [moved], at)[1][moved]["all"] for b in (self.corrupted, self.clean))
        for share in shares:
            line, seen = torch.lerp(start, end, share).requires_grad_(), dict[str, Tensor]()
            hears = {site: _keeper(site, seen) for site in self.sites}
            put_in = {moved: _placed(place(self.model, moved).axis, at["all"], line)}
            with torch.enable_grad(), listening(self.model, put_in), listening(self.model, hears):
                answered, wanted = self.answer(0), [seen[site] for site in self.sites]
            slopes = torch.autograd.grad(answered, wanted, allow_unused=True, materialize_grads=True)
            for s, (site, slope) in enumerate(zip(self.sites, slopes, strict=True)):
                for r, (role, there) in enumerate(self.where.items()):
                    change = self.changes[site, role] * at_positions(slope, self.axes[site], there)
                    if there.ndim == 2:  # a span counts only where the document has it
                        change = change * (there != NOWHERE).view(*there.shape, *[1] * (change.ndim - 2))
                    self.estimates[s, r] += change.flatten(1).sum(1).double().cpu() / len(shares)
        return self.estimates

    def answer(self, block: int) -> Tensor:
        """The sum of the documents' measures; an `LM` is run only from the input of `block` on."""
        model, at = self.model, self.corrupted.predict_at[:, 0]
        if isinstance(model, LM):
            logits = model.resume(block, self.inputs[block], at)
        else:
            logits = model(self.corrupted.tokens)[torch.arange(len(at), device=at.device), at]
        return self.measure(logits, self.corrupted.answers).sum()


def _placed(axis: int, at: Tensor, values: Tensor) -> Listener:
    """A listener that writes values at positions; the run has gradients from there on."""

    def change(x: Tensor) -> Tensor:
        y = x.detach().clone()
        put(y, axis, at, values)
        return y

    return change


def _keeper(site: str, seen: dict[str, Tensor]) -> Listener:
    return lambda x: seen.setdefault(site, x.clone())
