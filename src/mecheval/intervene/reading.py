"""Reading a model: the likelihoods of answers, and activations, in one pass over documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.intervene.edits import at_positions
from mecheval.intervene.places import Listener, listening, place
from mecheval.model import LM
from mecheval.sites import Site
from mecheval.types import Batch, joined

MIN_GAP = 0.01
"""Smallest difference between original and corrupted likelihood for which a share is computed."""

Positions = Mapping[str, Tensor]  # role -> (n,) or (n, m)


class Observed(NamedTuple):
    """The results of one pass over documents."""

    likelihood: Tensor  # (n,) likelihood of the answer, in double precision on the CPU
    values: dict[str, dict[str, Tensor]]  # site -> role -> (n, ...); for a state, all inputs of its mixer (n, L, D)
    inputs: dict[int, Tensor]  # block of an LM -> its input (n, L, D)


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
    model: nn.Module, batches: Mapping[str, Batch], sites: Sequence[str], where: Positions, at_once: int,
    measure: Measure = answer_likelihood,
) -> dict[str, Observed]:  # fmt: skip
    """Read variants of the same documents, all in one pass if that has at most `at_once` documents.

    The time of a pass over few documents is that of its operations, so two of them cost little more than one.
    """
    n = len(next(iter(batches.values())))
    if len(batches) * n > at_once:
        return {name: read(model, batch, sites, where, measure) for name, batch in batches.items()}
    stacked = {role: at.repeat(len(batches), *[1] * (at.ndim - 1)) for role, at in where.items()}
    found, values, inputs = read(model, joined(list(batches.values())), sites, stacked, measure)
    return {
        name: Observed(
            found[..., rows],
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
