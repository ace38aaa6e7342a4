"""The likelihood of the answer under single interventions on a grid of sites and roles, or under any combinations.

One pass over the base documents reads the input of every block and the activations to be edited. An edit inside block i
changes nothing before block i, so it is computed from that block's input on; many edits of one block are stacked and
run together, and the head is computed only at the answer's position. An edit that changes nothing is not run.

The state of a mixer after position t is everything that it carries from the positions up to t to later ones. For any
mixer, it is a function of the inputs up to t. So the state is replaced by letting the mixer read the other document's
inputs up to t and its own from there on, while its own outputs up to t are kept.

n documents, L tokens, D width, P edits in one stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.intervene.edits import Edit, Intervention, Take, at_positions, patch, put
from mecheval.intervene.places import Listener, listening, place
from mecheval.model import LM
from mecheval.model.block import AFTER_MIXER
from mecheval.sites import Site
from mecheval.types import Batch, has_role, joined

WIDTHS, LENGTHS = 64, 8
"""Generous estimate of a block's memory per token: WIDTHS times the width plus LENGTHS times the length."""

Positions = Mapping[str, Tensor]  # role -> (n,) or (n, m)
Edits = Callable[[str, str], Edit]  # (site, role) -> edit
Cell = tuple[str, str]  # site, role


class Observed(NamedTuple):
    """The results of one pass over documents."""

    likelihood: Tensor  # (n,) likelihood of the answer, in double precision on the CPU
    values: dict[str, dict[str, Tensor]]  # site -> role -> (n, ...); for a state, all inputs of its mixer (n, L, D)
    inputs: dict[int, Tensor]  # block of an LM -> its input (n, L, D)


@dataclass(frozen=True)
class Likelihoods:
    """p(answer) of every document, on the CPU in double precision."""

    base: Tensor  # (n,) without intervention
    edited: Tensor  # (sites, roles, n); NaN if a document does not have the role


def document_bytes(lm: LM, length: int) -> int:
    """The memory in bytes that a block needs for one document."""
    return lm.embed.weight.element_size() * length * (WIDTHS * lm.d_model + LENGTHS * length)


def answer_likelihood(logits: Tensor, answers: Tensor) -> Tensor:
    """p(answer) (n,) from logits (n, V)."""
    return logits.log_softmax(-1).gather(-1, answers[:, None])[:, 0].double().exp().cpu()


def right(logits: Tensor, answers: Tensor) -> Tensor:
    """(n,) 1 if the answer is the likeliest token, else 0, from logits (n, V)."""
    return (logits.argmax(-1) == answers).double().cpu()


Measure = Callable[[Tensor, Tensor], Tensor]  # logits (n, V), answers (n,) -> (n,)
MEASURES: dict[str, Measure] = {
    "likelihood": answer_likelihood,
    "log": lambda logits, answers: logits.log_softmax(-1).gather(-1, answers[:, None])[:, 0].double().cpu(),
    "logit": lambda logits, answers: logits.gather(-1, answers[:, None])[:, 0].double().cpu(),
}
"""The measures of an answer, by name."""


@torch.no_grad()
def likelihood(model: nn.Module, batch: Batch, measure: Measure = answer_likelihood) -> Tensor:
    """p(answer) (n,) at the first query, for any module that maps tokens (n, L) to logits (n, L, V)."""
    tokens, at = batch.tokens, batch.predict_at[:, 0]
    if isinstance(model, LM):
        return measure(model(tokens, at=at), batch.answers)
    return measure(model(tokens)[torch.arange(len(tokens), device=tokens.device), at], batch.answers)


def read(
    model: nn.Module, batch: Batch, sites: Sequence[str], where: Positions, measure: Measure = answer_likelihood
) -> Observed:
    """Run a batch, and keep only the activations of these sites at these roles and the inputs of blocks."""
    values: dict[str, dict[str, Tensor]] = {}
    inputs: dict[int, Tensor] = {}

    def reader(site: str, axis: int | None) -> Listener:
        def listener(x: Tensor) -> Tensor:
            if axis is not None and not isinstance(model, LM):
                _check(site, x, batch.tokens, axis, again=site in values)
            if axis is None:
                values[site] = dict.fromkeys(where, x.clone())
            else:
                values[site] = {role: at_positions(x, axis, at).clone() for role, at in where.items()}
            return x

        return listener

    def keeper(block: int) -> Listener:
        return lambda h: inputs.setdefault(block, h)

    blocks = {f"blocks.{i}.input": keeper(i) for i in range(model.n_layers)} if isinstance(model, LM) else {}
    with ExitStack() as stack:
        for name in sites:
            found = place(model, name)
            if found.site.kind == "state":
                of = Site(found.site.block, "mixer.input", "mixer")
                stack.enter_context(listening(model, {of: reader(name, None)}))
            else:
                stack.enter_context(listening(model, {name: reader(name, found.axis)}))
        stack.enter_context(listening(model, blocks))
        answered = likelihood(model, batch, measure)
    missing = [site for site in sites if site not in values]
    if missing:
        raise UserError(f"the model ran without passing through {', '.join(missing)}.")
    return Observed(answered, values, inputs)


def read_each(
    model: nn.Module, batches: Mapping[str, Batch], sites: Sequence[str], where: Positions, at_once: int
) -> dict[str, Observed]:
    """Read variants of the same documents, all in one pass if that has at most `at_once` documents.

    The time of a pass over few documents is that of its operations, so two of them cost little more than one.
    """
    n = len(next(iter(batches.values())))
    if len(batches) * n > at_once:
        return {name: read(model, batch, sites, where) for name, batch in batches.items()}
    stacked = {role: at.repeat(len(batches), *[1] * (at.ndim - 1)) for role, at in where.items()}
    found, values, inputs = read(model, joined(list(batches.values())), sites, stacked)
    return {
        name: Observed(
            found[rows],
            {site: {role: x[rows] for role, x in at.items()} for site, at in values.items()},
            {block: x[rows] for block, x in inputs.items()},
        )
        for name, rows in ((name, slice(i * n, (i + 1) * n)) for i, name in enumerate(batches))
    }


def _check(site: str, x: Tensor, tokens: Tensor, axis: int, again: bool) -> None:
    """Raise an error unless a module's activation has the axes of documents and positions and occurs only once."""
    n, length = tokens.shape
    if again:
        raise UserError(f"the model passes through {site} several times in one run; interventions need exactly once.")
    positions = x.shape[axis] if x.ndim > axis else 0
    if len(x) != n or positions < length or (axis == 1 and positions > length):
        raise UserError(
            f"{site} has shape {tuple(x.shape)} for {n} documents of {length} tokens; documents must come first and "
            "positions second, (n, L, ...); PyTorch's layers do so with batch_first=True."
        )


def run_edits(
    model: nn.Module, base: Batch, edits: Edits, cells: Sequence[Sequence[Cell]], where: Positions, budget: int,
    measure: Measure = answer_likelihood, known: Observed | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Likelihoods (n,) without an edit and (cells, n) with each; `budget` is in bytes, `known` a reading of `base`."""
    if isinstance(model, LM):
        return run_cells(model, base, edits, cells, where, budget, measure, known)
    return one_by_one(model, base, edits, cells, where, measure)


@torch.no_grad()
def one_by_one(
    model: nn.Module, base: Batch, edits: Edits, cells: Sequence[Sequence[Cell]], where: Positions,
    measure: Measure = answer_likelihood,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The plain way, for any module: a whole run for each combination of cells. It is the reference for `run_cells`."""
    edited = torch.full((len(cells), len(base)), torch.nan, dtype=torch.float64)
    known = replace(base, roles={**base.roles, **where})
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
                    stack.enter_context(patch(model, [Intervention(site, role, edits(site, role))], known))
            edited[c, there] = likelihood(model, base, measure)[there]
    return likelihood(model, base, measure), edited


def _have_all(together: Sequence[Cell], where: Positions) -> Tensor:
    return torch.stack([has_role(where[role]) for _, role in together]).all(0).cpu()


class Edited(NamedTuple):
    """The values that an edit puts at a site."""

    site: Site
    places: Tensor  # (n,) or (n, m)
    values: Tensor  # (n, ...) or (n, m, ...); for a state (n, L, D)


@dataclass(frozen=True)
class Joint:
    """Edits that act together, as one part of a stack."""

    parts: tuple[Edited, ...]
    rows: list[int]  # numbers of the cells whose result this is

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
    parts = {cell: _edited(lm, cell, edits(*cell), values, where, at, settled) for cell in every}
    jobs: dict[tuple[object, ...], Joint] = {}
    for c, together in enumerate(cells):
        active = tuple(part for cell in together if (part := parts[cell]) is not None)
        if active:  # otherwise the result is exactly that without an edit
            same = tuple((part.site, part.places.data_ptr()) for part in active)
            jobs.setdefault(same, Joint(active, [])).rows.append(c)
    stack = max(1, budget // (n * document_bytes(lm, length)))
    for group in sorted({job.group for job in jobs.values()}):
        todo = [job for job in jobs.values() if job.group == group]
        for first in range(0, len(todo), stack):
            some = todo[first : first + stack]
            found = _run_stack(lm, group, inputs[group[0]], some, at, answers, measure)
            for job, likelihoods in zip(some, found, strict=True):
                edited[job.rows] = likelihoods
    for c, together in enumerate(cells):
        edited[c, ~_have_all(together, where)] = torch.nan
    return unedited, edited


def _edited(
    lm: LM, cell: Cell, edit: Edit, values: dict[str, dict[str, Tensor]], where: Positions, at: Tensor,
    settled: set[str],
) -> Edited | None:  # fmt: skip
    """The values of an edit and their places; None if it cannot change the answer."""
    asked, role = cell
    site, places = place(lm, asked).site, where[role]
    assert site.block is not None  # all sites of an LM are inside its blocks
    old = values[asked][role]
    new = edit(old)
    if torch.equal(new, old):
        return None
    if site.kind == "state":
        return Edited(site, places, new)
    block, inner = site.block, site.part
    if inner == "output" and block + 1 < lm.n_layers:  # the same tensor, but with less to compute after it
        block, inner = block + 1, "input"
    answers_there = (places == (at if places.ndim == 1 else at[:, None])).any()
    if block == lm.n_layers - 1 and inner in settled and not answers_there:
        return None
    return Edited(Site(block, inner), places, new.to(old))


def _run_stack(
    lm: LM, group: tuple[int, str], h: Tensor, jobs: Sequence[Joint], at: Tensor, answers: Tensor, measure: Measure
) -> Tensor:
    """(P, n) likelihoods of P copies of the documents, each with other edits, computed from a block on."""
    n, P = len(h), len(jobs)
    stacked = h.repeat(P, 1, 1)
    todo: dict[Site, list[tuple[int, int, Tensor, Tensor]]] = {}  # first row, last row, positions, values
    for p, job in enumerate(jobs):
        for site, places, values in job.parts:
            if group[1] == "input":  # without a listener, the last block computes only what the answer needs
                put(stacked[p * n : (p + 1) * n], 1, places, values)
            else:
                todo.setdefault(site, []).append((p * n, (p + 1) * n, places, values))

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
        logits = lm.resume(group[0], stacked, at.repeat(P))
    return measure(logits, answers.repeat(P)).view(P, n)


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
