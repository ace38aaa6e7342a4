"""The likelihood of the answer under single interventions on a grid of sites and roles, or under any combinations.

One pass over the base documents reads the input of every block and the activations to be edited. An edit inside block i
changes nothing before block i, so it is computed from that block's input on; many edits of one block are stacked and
run together, and the head is computed only at the answer's position. A document in which an edit changes nothing, or
which lacks the role, is not run.

The state of a mixer after position t is everything that it carries from the positions up to t to later ones. For any
mixer, it is a function of the inputs up to t. So the state is replaced by letting the mixer read the other document's
inputs up to t and its own from there on, while its own outputs up to t are kept.

n documents, L tokens, D width, R rows of a stack: documents, each with one edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mecheval.intervene.edits import Edit, Intervention, Take, at_positions, patch, put
from mecheval.intervene.places import Listener, listening, place
from mecheval.intervene.reading import Measure, Observed, Positions, answer_likelihood, likelihood, read
from mecheval.model import LM
from mecheval.model.block import AFTER_MIXER
from mecheval.sites import Site
from mecheval.types import Batch, has_role

WIDTHS, LENGTHS = 64, 8
"""Generous estimate of a block's memory per token: WIDTHS times the width plus LENGTHS times the length."""

Edits = Callable[[str, str], Edit]  # (site, role) -> edit
Cell = tuple[str, str]  # site, role


@dataclass(frozen=True)
class Likelihoods:
    """p(answer) of every document, on the CPU in double precision."""

    base: Tensor  # (n,) without intervention
    edited: Tensor  # (sites, roles, n); NaN if a document does not have the role


def document_bytes(lm: LM, length: int) -> int:
    """The memory in bytes that a block needs for one document."""
    return lm.embed.weight.element_size() * length * (WIDTHS * lm.d_model + LENGTHS * length)


def run_edits(
    model: nn.Module, base: Batch, edits: Edits, cells: Sequence[Sequence[Cell]], where: Positions, budget: int,
    measure: Measure = answer_likelihood, known: Observed | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Likelihoods (n,) without an edit and (cells, n) with each; `budget` is in bytes, `known` a reading of `base`."""
    if isinstance(model, LM):
        return run_cells(model, base, edits, cells, where, budget, measure, known)
    return one_by_one(model, base, edits, cells, where, measure, known)


@torch.no_grad()
def one_by_one(
    model: nn.Module, base: Batch, edits: Edits, cells: Sequence[Sequence[Cell]], where: Positions,
    measure: Measure = answer_likelihood, known: Observed | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The plain way, for any module: a whole run for each combination of cells. It is the reference for `run_cells`."""
    edited = torch.full((len(cells), len(base)), torch.nan, dtype=torch.float64)
    named = replace(base, roles={**base.roles, **where})
    for c, together in enumerate(cells):
        there = _have_all(together, where)
        with ExitStack() as stack:
            for site, role in together:
                found = place(model, site)
                if found.site.kind == "state":
                    edit = edits(site, role)
                    assert isinstance(model, LM)
                    assert isinstance(edit, Take)
                    listeners = _state_listeners(model, found.site, [(0, len(base), where[role], edit.values)])
                    stack.enter_context(listening(model, listeners))
                else:
                    stack.enter_context(patch(model, [Intervention(site, role, edits(site, role))], named))
            edited[c, there] = likelihood(model, base, measure)[there]
    return likelihood(model, base, measure) if known is None else known.likelihood, edited


def _have_all(together: Sequence[Cell], where: Positions) -> Tensor:
    return torch.stack([has_role(where[role]) for _, role in together]).all(0).cpu()


class Edited(NamedTuple):
    """The values that an edit puts at a site, and the documents in which that can change the answer."""

    site: Site
    places: Tensor  # (n,) or (n, m)
    values: Tensor  # (n, ...) or (n, m, ...); for a state (n, L, D)
    rows: Tensor  # (n,) bool
    mixed: bool  # whether the values are those of a mixer's output, with the block's input added


@dataclass(frozen=True)
class Joint:
    """Edits that act together."""

    parts: tuple[Edited, ...]
    rows: Tensor  # (r,) numbers of the documents in which they can change the answer
    cells: list[int]  # numbers of the cells whose result this is

    @property
    def group(self) -> tuple[int, str]:
        """The block from which it is computed, and the kind of edits that may be stacked with it.

        An edit after a mixer makes its block compute all positions to the end, so it is not stacked with earlier ones.
        """
        block = min(part.site.block or 0 for part in self.parts)
        if any(part.site.kind == "state" for part in self.parts):
            return block, "state"
        if all(part.site.block == block and part.site.part == "input" for part in self.parts):
            return block, "input"
        return block, "after" if any(part.site.part in AFTER_MIXER for part in self.parts) else "before"


@torch.no_grad()
def run_cells(
    lm: LM, base: Batch, edits: Edits, cells: Sequence[Sequence[Cell]], where: Positions, budget: int,
    measure: Measure, known: Observed | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The fast way, for an `LM`: the results of `one_by_one` up to rounding."""
    at, answers = base.predict_at[:, 0], base.answers
    n, length = base.tokens.shape
    asked = list(dict.fromkeys(site for together in cells for site, _ in together))
    unedited, values, inputs = known or read(lm, base, asked, where, measure)
    edited = unedited.expand(len(cells), n).clone()
    settled = lm.settled()
    every = {cell for together in cells for cell in together}
    parts = {cell: _edited(lm, cell, edits(*cell), values, where, at, settled, inputs) for cell in every}
    jobs: dict[tuple[object, ...], Joint] = {}
    for c, together in enumerate(cells):
        edited[c, ~_have_all(together, where)] = torch.nan
        active = tuple(part for cell in together if (part := parts[cell]) is not None)
        if active:  # otherwise the result is exactly that without an edit
            rows = torch.stack([part.rows for part in active]).any(0) & _have_all(together, where).to(at.device)
            same = tuple((part.site, part.places.data_ptr(), part.mixed) for part in active)
            jobs.setdefault(same, Joint(active, rows.nonzero()[:, 0], [])).cells.append(c)
    most = max(n, budget // document_bytes(lm, length))
    for group in sorted({job.group for job in jobs.values()}):
        for some in _stacks([job for job in jobs.values() if job.group == group], most):
            rows = torch.cat([job.rows for job in some])
            found = _run_stack(lm, group, inputs[group[0]][rows], some, at[rows], answers[rows], measure)
            for job, likelihoods in zip(some, found.split([len(job.rows) for job in some]), strict=True):
                edited[torch.tensor(job.cells)[:, None], job.rows.cpu()] = likelihoods
    return unedited, edited


def _stacks(jobs: Sequence[Joint], most: int) -> Iterator[list[Joint]]:
    """The jobs in order, with at most so many rows together (or one job)."""
    some: list[Joint] = []
    for job in jobs:
        if some and sum(len(each.rows) for each in some) + len(job.rows) > most:
            yield some
            some = []
        some.append(job)
    if some:
        yield some


def _edited(
    lm: LM, cell: Cell, edit: Edit, values: dict[str, dict[str, Tensor]], where: Positions, at: Tensor,
    settled: set[str], inputs: Mapping[int, Tensor],
) -> Edited | None:  # fmt: skip
    """The values of an edit and their places; None if it cannot change the answer."""
    asked, role = cell
    site, places = place(lm, asked).site, where[role]
    assert site.block is not None  # all sites of an LM are inside its blocks
    old = values[asked][role]
    new = edit(old)
    rows = (new != old).flatten(1).any(1) & has_role(places)
    block, inner = site.block, site.part
    if block == lm.n_layers - 1 and inner in settled:
        rows = rows & (places == (at if places.ndim == 1 else at[:, None])).view(len(at), -1).any(1)
    if not rows.any():
        return None
    if site.kind == "state":
        return Edited(site, places, new, rows, False)
    mixed = inner == "mixer.output" and lm.ends_with_mixer(block)
    if mixed:  # the same at the output, after which there is less to do
        new, inner = at_positions(inputs[block], 1, places) + new.to(old), "output"
    if inner == "output" and block + 1 < lm.n_layers:  # the same tensor, but with less to compute after it
        block, inner = block + 1, "input"
    return Edited(Site(block, inner), places, new.to(old), rows, mixed)


def _run_stack(
    lm: LM, group: tuple[int, str], stacked: Tensor, jobs: Sequence[Joint], at: Tensor, answers: Tensor,
    measure: Measure,
) -> Tensor:  # fmt: skip
    """(R,) likelihoods of the documents of all jobs, from their inputs (R, L, D) of a block on; these are changed."""
    todo: dict[Site, list[tuple[int, int, Tensor, Tensor]]] = {}  # first row, last row, positions, values
    first = 0
    for job in jobs:
        last = first + len(job.rows)
        for site, places, values, *_ in job.parts:
            if group[1] == "input":  # without a listener, the last block computes only what the answer needs
                put(stacked[first:last], 1, places[job.rows], values[job.rows])
            else:
                todo.setdefault(site, []).append((first, last, places[job.rows], values[job.rows]))
        first = last

    def listener(site: Site) -> Listener:
        axis = place(lm, site).axis

        def change(x: Tensor) -> Tensor:
            y = x.clone()
            for first, last, places, values in todo[site]:
                put(y[first:last], axis, places, values)
            return y

        return change

    with ExitStack() as entered:
        for site in todo:
            state = site.kind == "state"
            entered.enter_context(
                listening(lm, _state_listeners(lm, site, todo[site]) if state else {site: listener(site)})
            )
        logits = lm.resume(group[0], stacked, at)
    return measure(logits, answers)


def _state_listeners(lm: LM, site: Site, edits: Sequence[tuple[int, int, Tensor, Tensor]]) -> dict[str, Listener]:
    """Listeners that replace the state of a block's mixer after a position of each document.

    An edit is (first row, last row, positions (n,), inputs (n, L, D) that produce the other state).
    """
    mixer, kept = lm.get_submodule(f"blocks.{site.block}.mixer"), dict[str, Tensor]()

    def keep(x: Tensor) -> Tensor:
        return kept.setdefault("input", x)

    def change(y: Tensor) -> Tensor:
        x = kept.pop("input")
        read_, kept_own = x.clone(), torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        for first, last, places, values in edits:
            until = places if places.ndim == 1 else places.max(1).values
            past = torch.arange(x.shape[1], device=x.device) <= until[:, None]
            read_[first:last] = torch.where(past[..., None], values.to(x), x[first:last])
            kept_own[first:last] = past
        return torch.where(kept_own[..., None], y, mixer(read_))

    assert site.block is not None
    return {Site(site.block, "mixer.input", "mixer"): keep, Site(site.block, "mixer.output", "mixer"): change}
