"""The likelihood of the answer under every intervention of a grid of sites and roles, each by itself.

One pass over the clean documents reads what is to be put back, one over the corrupted ones reads the input of every
block. An edit inside block i leaves everything before block i as it was, so it is computed from that input on; many
edits of one block are stacked and run together, and of the head only the answer's position is computed.

n documents, L tokens, D width, P edits in one stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mecheval.intervene.edits import Edit, Intervention, Take, at_positions, patch
from mecheval.intervene.places import listening, place
from mecheval.intervene.roles import NOWHERE
from mecheval.model import LM
from mecheval.types import Batch

WORKSPACE = 64
"""Numbers of one token, in units of the width, that a block has in memory at once; measured generously."""

AFTER_MIXING = ("mixer.output", "mlp.input", "mlp.output", "output")
"""Sites of a block after which nothing moves between positions any more."""


@dataclass(frozen=True)
class Likelihoods:
    """p(answer) of every document, on the CPU in double precision."""

    base: Tensor  # (n,) without intervention
    edited: Tensor  # (sites, roles, n); NaN where a document does not have the role


def answer_likelihood(logits: Tensor, answers: Tensor) -> Tensor:
    """p(answer) (n,) from logits (n, V)."""
    return logits.log_softmax(-1).gather(-1, answers[:, None])[:, 0].double().exp().cpu()


@torch.no_grad()
def likelihood(model: nn.Module, batch: Batch) -> Tensor:
    """P(answer) (n,) at the first query, for any module that maps tokens (n, L) to logits (n, L, V)."""
    tokens, at = batch.tokens, batch.predict_at[:, 0]
    if isinstance(model, LM):
        return answer_likelihood(model(tokens, at=at), batch.answers)
    return answer_likelihood(model(tokens)[torch.arange(len(tokens), device=tokens.device), at], batch.answers)


def run_grid(
    model: nn.Module, base: Batch, edits: Callable[[str, str], Edit], sites: Sequence[str],
    where: dict[str, Tensor], budget: int,
) -> Likelihoods:  # fmt: skip
    """Run `base` with each (site, role) edited by `edits(site, role)`, one at a time; `budget` in bytes."""
    runner = _stacked if isinstance(model, LM) else _one_by_one
    return runner(model, base, edits, sites, where, budget)  # type: ignore[arg-type]


@torch.no_grad()
def _one_by_one(
    model: nn.Module, base: Batch, edits: Callable[[str, str], Edit], sites: Sequence[str],
    where: dict[str, Tensor], budget: int,
) -> Likelihoods:  # fmt: skip
    """The plain way, for any module, and the reference for the fast one: a whole run for each edit."""
    edited = torch.full((len(sites), len(where), len(base)), torch.nan, dtype=torch.float64)
    known = Batch(**{**vars(base), "roles": {**base.roles, **where}})
    for s, site in enumerate(sites):
        for r, (role, places) in enumerate(where.items()):
            there = places.cpu() != NOWHERE
            with patch(model, [Intervention(site, role, edits(site, role))], known):
                edited[s, r, there] = likelihood(model, base)[there]
    return Likelihoods(likelihood(model, base), edited)


@dataclass(frozen=True)
class Job:
    """One edit of a stack: where its answers go, and what it does."""

    row: tuple[int, int]  # site, role
    site: str
    places: Tensor  # (n,)
    edit: Edit


@torch.no_grad()
def _stacked(
    lm: LM, base: Batch, edits: Callable[[str, str], Edit], sites: Sequence[str], where: dict[str, Tensor], budget: int,
) -> Likelihoods:  # fmt: skip
    """The fast way, for an `LM`: the same numbers to rounding."""
    at, answers = base.predict_at[:, 0], base.answers
    n, length = base.tokens.shape
    inputs: dict[int, Tensor] = {}

    def keeper(block: int) -> Callable[[Tensor], Tensor]:
        return lambda h: inputs.setdefault(block, h)

    with listening(lm, {f"blocks.{i}.input": keeper(i) for i in range(lm.n_layers)}):
        unedited = answer_likelihood(lm(base.tokens, at=at), answers)
    edited = torch.full((len(sites), len(where), n), torch.nan, dtype=torch.float64)
    by_block: dict[int, list[Job]] = {}
    for s, asked in enumerate(sites):
        site = asked
        block, inner = _parse(site)
        if inner == "output" and block + 1 < lm.n_layers:  # the same tensor, with less to compute after it
            block, inner, site = block + 1, "input", f"blocks.{block + 1}.input"
        for r, (role, places) in enumerate(where.items()):
            if block == lm.n_layers - 1 and inner in AFTER_MIXING and not (places == at).any():
                edited[s, r] = unedited  # exactly: nothing leads from there to the answer
            else:
                job = Job((s, r), site, places.clamp(min=0), edits(asked, role))
                by_block.setdefault(block, []).append(job)
    stack = max(1, budget // (4 * WORKSPACE * lm.d_model * n * length))
    for block, jobs in by_block.items():
        for first in range(0, len(jobs), stack):
            part = jobs[first : first + stack]
            found = _run_stack(lm, block, inputs[block], part, at, answers)
            for job, likelihoods in zip(part, found, strict=True):
                edited[job.row] = likelihoods
    for r, places in enumerate(where.values()):
        edited[:, r, places.cpu() == NOWHERE] = torch.nan
    return Likelihoods(unedited, edited)


def _run_stack(lm: LM, block: int, h: Tensor, jobs: Sequence[Job], at: Tensor, answers: Tensor) -> Tensor:
    """(P, n) likelihoods: the documents P times, each time with another edit inside the block."""
    n, P = len(h), len(jobs)

    def listener(site: str) -> Callable[[Tensor], Tensor]:
        axis = place(lm, site).axis

        def change(x: Tensor) -> Tensor:
            y = x.clone()
            for p, job in enumerate(jobs):
                if job.site == site:
                    mine, rows = slice(p * n, (p + 1) * n), torch.arange(n, device=x.device)
                    y[mine].movedim(axis, 1)[rows, job.places] = job.edit(at_positions(x[mine], axis, job.places))
            return y

        return change

    with listening(lm, {site: listener(site) for site in {job.site for job in jobs}}):
        logits = lm.resume(block, h.repeat(P, 1, 1), at.repeat(P))
    return answer_likelihood(logits, answers.repeat(P)).view(P, n)


def _parse(site: str) -> tuple[int, str]:
    """blocks.1.mixer.conv -> (1, mixer.conv)."""
    found = re.fullmatch(r"blocks\.(\d+)\.(.+)", site)
    assert found is not None  # `place` has checked the name
    return int(found[1]), found[2]


def taken(
    model: nn.Module, source: Batch, sites: Sequence[str], where: dict[str, Tensor]
) -> dict[str, dict[str, Take]]:
    """Site -> role -> the activations of a run on `source`, to be put elsewhere; only these are kept."""
    kept: dict[str, dict[str, Take]] = {}

    def reader(name: str) -> Callable[[Tensor], Tensor]:
        axis = place(model, name).axis

        def read(x: Tensor) -> Tensor:
            kept[name] = {role: Take(at_positions(x, axis, at.clamp(min=0)).clone()) for role, at in where.items()}
            return x

        return read

    with listening(model, {name: reader(name) for name in sites}), torch.no_grad():
        model(source.tokens)
    return kept
