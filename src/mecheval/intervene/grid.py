"""The likelihood of the answer under every intervention of a grid of sites and roles, each by itself.

One pass over the base documents reads the input of every block and what is to be edited. An edit inside block i leaves
everything before block i as it was, so it is computed from that input on; many edits of one block are stacked and run
together, and of the head only the answer's position is computed. An edit that changes nothing is not run.

n documents, L tokens, D width, P edits in one stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.intervene.edits import Edit, Intervention, at_positions, patch
from mecheval.intervene.places import NOWHERE, Listener, listening, place
from mecheval.model import LM
from mecheval.sites import Site
from mecheval.types import Batch

WIDTHS, LENGTHS = 64, 8
"""What a block has in memory at once for one token, generously: so many times the width, and the length (attention)."""

Positions = Mapping[str, Tensor]  # role -> (n,)
Edits = Callable[[str, str], Edit]  # of a site and a role


class Reading(NamedTuple):
    """What one pass over documents gives."""

    likelihood: Tensor  # (n,) of the answer, double, on the CPU
    values: dict[str, dict[str, Tensor]]  # site -> role -> (n, ...)
    inputs: dict[int, Tensor]  # of every block of an LM, (n, L, D)


@dataclass(frozen=True)
class Likelihoods:
    """p(answer) of every document, on the CPU in double precision."""

    base: Tensor  # (n,) without intervention
    edited: Tensor  # (sites, roles, n); NaN where a document does not have the role


def document_bytes(lm: LM, length: int) -> int:
    """Memory that a block needs for one document."""
    return lm.embed.weight.element_size() * length * (WIDTHS * lm.d_model + LENGTHS * length)


def answer_likelihood(logits: Tensor, answers: Tensor) -> Tensor:
    """p(answer) (n,) from logits (n, V)."""
    return logits.log_softmax(-1).gather(-1, answers[:, None])[:, 0].double().exp().cpu()


@torch.no_grad()
def likelihood(model: nn.Module, batch: Batch) -> Tensor:
    """p(answer) (n,) at the first query, for any module that maps tokens (n, L) to logits (n, L, V)."""
    tokens, at = batch.tokens, batch.predict_at[:, 0]
    if isinstance(model, LM):
        return answer_likelihood(model(tokens, at=at), batch.answers)
    return answer_likelihood(model(tokens)[torch.arange(len(tokens), device=tokens.device), at], batch.answers)


def read(model: nn.Module, batch: Batch, sites: Sequence[str], where: Positions) -> Reading:
    """Run a batch and keep the activations of sites at roles, and no more of the run than that."""
    values: dict[str, dict[str, Tensor]] = {}
    inputs: dict[int, Tensor] = {}

    def reader(site: str, axis: int) -> Listener:
        def listener(x: Tensor) -> Tensor:
            values[site] = {role: at_positions(x, axis, at.clamp(min=0)).clone() for role, at in where.items()}
            return x

        return listener

    def keeper(block: int) -> Listener:
        return lambda h: inputs.setdefault(block, h)

    listeners = {site: reader(site, place(model, site).axis) for site in sites}
    blocks = {f"blocks.{i}.input": keeper(i) for i in range(model.n_layers)} if isinstance(model, LM) else {}
    with listening(model, listeners), listening(model, blocks):
        found = likelihood(model, batch)
    missing = [site for site in sites if site not in values]
    if missing:
        raise UserError(f"the model ran without passing through {', '.join(missing)}.")
    return Reading(found, values, inputs)


def run_grid(
    model: nn.Module, base: Batch, edits: Edits, sites: Sequence[str], where: Positions, budget: int
) -> Likelihoods:
    """Run `base` with each (site, role) edited by `edits(site, role)`, one at a time; `budget` in bytes."""
    if isinstance(model, LM):
        return _stacked(model, base, edits, sites, where, budget)
    return one_by_one(model, base, edits, sites, where)


@torch.no_grad()
def one_by_one(model: nn.Module, base: Batch, edits: Edits, sites: Sequence[str], where: Positions) -> Likelihoods:
    """The plain way, for any module, and the reference for the fast one: a whole run for each edit."""
    edited = torch.full((len(sites), len(where), len(base)), torch.nan, dtype=torch.float64)
    known = replace(base, roles={**base.roles, **where})
    for s, site in enumerate(sites):
        for r, (role, places) in enumerate(where.items()):
            there = places.cpu() != NOWHERE
            with patch(model, [Intervention(site, role, edits(site, role))], known):
                edited[s, r, there] = likelihood(model, base)[there]
    return Likelihoods(likelihood(model, base), edited)


@dataclass(frozen=True)
class Job:
    """One edit of a stack."""

    site: str
    places: Tensor  # (n,)
    values: Tensor  # (n, ...) that are put there
    rows: list[tuple[int, int]]  # (site, role) in the grid that it is the answer to


@torch.no_grad()
def _stacked(lm: LM, base: Batch, edits: Edits, sites: Sequence[str], where: Positions, budget: int) -> Likelihoods:
    """The fast way, for an `LM`: the same numbers to rounding."""
    at, answers = base.predict_at[:, 0], base.answers
    n, length = base.tokens.shape
    unedited, values, inputs = read(lm, base, sites, where)
    edited = unedited.expand(len(sites), len(where), n).clone()
    jobs: dict[tuple[int, str, str], Job] = {}
    settled = lm.settled()
    for s, asked in enumerate(sites):
        site = place(lm, asked).site
        assert site.block is not None  # all sites of an LM are inside its blocks
        block, inner = site.block, site.part
        if inner == "output" and block + 1 < lm.n_layers:  # the same tensor, with less to compute after it
            block, inner = block + 1, "input"
        last = block == lm.n_layers - 1
        for r, (role, places) in enumerate(where.items()):
            new = edits(asked, role)(values[asked][role])
            nothing_follows = last and inner in settled and not (places == at).any()
            if nothing_follows or torch.equal(new, values[asked][role]):
                continue  # exactly as without the edit
            job = Job(Site(block, inner), places.clamp(min=0), new.to(values[asked][role]), [])
            jobs.setdefault((block, inner, role), job).rows.append((s, r))
    stack = max(1, budget // (n * document_bytes(lm, length)))
    for block in range(lm.n_layers):
        for at_input in (True, False):
            todo = [job for (b, inner, _), job in jobs.items() if b == block and (inner == "input") == at_input]
            for first in range(0, len(todo), stack):
                part = todo[first : first + stack]
                found = _run_stack(lm, block, inputs[block], part, at, answers, at_input)
                for job, likelihoods in zip(part, found, strict=True):
                    for row in job.rows:
                        edited[row] = likelihoods
    for r, places in enumerate(where.values()):
        edited[:, r, places.cpu() == NOWHERE] = torch.nan
    return Likelihoods(unedited, edited)


def _run_stack(
    lm: LM, block: int, h: Tensor, jobs: Sequence[Job], at: Tensor, answers: Tensor, at_input: bool
) -> Tensor:
    """(P, n) likelihoods: the documents P times, each time with another edit inside the block."""
    n, P = len(h), len(jobs)
    rows = torch.arange(n, device=h.device)
    stacked = h.repeat(P, 1, 1)

    def listener(site: str) -> Listener:
        axis = place(lm, site).axis

        def change(x: Tensor) -> Tensor:
            y = x.clone()
            for p, job in enumerate(jobs):
                if job.site == site:
                    y[p * n : (p + 1) * n].movedim(axis, 1)[rows, job.places] = job.values
            return y

        return change

    if at_input:  # with nobody listening, the last block computes only what the answer needs
        listeners = {}
        for p, job in enumerate(jobs):
            stacked[p * n + rows, job.places] = job.values
    else:
        listeners = {site: listener(site) for site in {job.site for job in jobs}}
    with listening(lm, listeners):
        logits = lm.resume(block, stacked, at.repeat(P))
    return answer_likelihood(logits, answers.repeat(P)).view(P, n)
