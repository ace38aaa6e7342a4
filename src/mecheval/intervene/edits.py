"""Interventions as values (a site, a role and an edit), and the two tools that use them, `capture` and `patch`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.intervene.answering import uncompiled
from mecheval.intervene.places import Roles, listening, place, positions
from mecheval.model import LM
from mecheval.registry import Registry
from mecheval.types import NOWHERE, Batch

Edit = Callable[[Tensor], Tensor]
"""A function from activations at one role (n, ...) to their replacements (n, ...); the usual ones are below."""
EDITS: Registry[Callable[..., Edit]] = Registry("edit", "mecheval.edits")
"""Edits that a command can name, with numbers as arguments: `zero`, or `noise=0.5`. Each is one class."""


def edit_of(text: str) -> Edit:
    """The edit that `text` names, such as `mean`, or `noise=0.5` for an edit that needs a number (`a=1,2` for two)."""
    name, _, given = text.partition("=")
    make = EDITS.get(name)
    needs = [each.name for each in inspect.signature(make).parameters.values() if each.default is each.empty]
    try:
        numbers = [float(number) for number in given.split(",")] if given else []
    except ValueError:
        numbers = [math.nan]
    if len(numbers) != len(needs) or not all(0 <= number < math.inf for number in numbers):
        usage = f"{name}={','.join(f'<{each}>' for each in needs)}" if needs else name
        raise UserError(f"edit {text!r} does not have the numbers that it needs; write {usage}.")
    return make(*numbers)


@dataclass(frozen=True, eq=False)
class Take:
    """Replace activations by those of another run, (n, ...), as interchange interventions do."""

    values: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return self.values.to(x)


@EDITS.register("zero")
@dataclass(frozen=True)
class Zero:
    """Replace activations by zeros."""

    def __call__(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@EDITS.register("mean")
@dataclass(frozen=True)
class Mean:
    """Replace activations by their mean over the batch's documents, which removes what is particular to each."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True).expand_as(x)


@EDITS.register("noise")
@dataclass(frozen=True)
class Noise:
    """Add Gaussian noise."""

    std: float
    seed: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Add noise, drawn from the seed at every call, on the CPU, so that it is the same on every device."""
        generator = torch.Generator().manual_seed(self.seed)
        return x + self.std * torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)


@dataclass(frozen=True, eq=False)
class Intervention:
    """Replaces the activation x of `site` at `role` by `edit(x)`."""

    site: str
    role: str | int
    edit: Edit


def at_positions(x: Tensor, axis: int, where: Tensor) -> Tensor:
    """The activations of x (n, .., L, ..) at positions (n,) or (n, m) of each document: (n, ...) or (n, m, ...)."""
    rows = torch.arange(len(x), device=x.device)
    return x.movedim(axis, 1)[rows if where.ndim == 1 else rows[:, None], where.to(x.device).clamp(min=0)]


def put(x: Tensor, axis: int, where: Tensor, values: Tensor) -> None:
    """Write values (n, ...) or (n, m, ...) into x (n, .., L, ..) at positions (n,) or (n, m), except for NOWHERE."""
    there = (where != NOWHERE).to(x.device)
    row = torch.arange(len(x), device=x.device)
    rows = row if where.ndim == 1 else row[:, None].expand(where.shape)
    x.movedim(axis, 1)[rows[there], where.to(x.device)[there]] = values.to(x)[there]


@overload
def capture(model: nn.Module, batch: Batch, sites: Sequence[str], roles: None = None) -> dict[str, Tensor]: ...


@overload
def capture(
    model: nn.Module, batch: Batch, sites: Sequence[str], roles: Roles, seed: int = 0
) -> dict[str, dict[str, Tensor]]: ...


def capture(
    model: nn.Module, batch: Batch, sites: Sequence[str], roles: Roles | None = None, seed: int = 0
) -> dict[str, Tensor] | dict[str, dict[str, Tensor]]:
    """Run `model` on a batch and return activations.

    Without `roles`, the result maps site -> whole activation; with roles, site -> role -> (n, ...).
    """
    model = uncompiled(model)
    where = None if roles is None else positions(batch, roles, seed)
    seen: dict[str, Tensor] = {}

    def reader(name: str) -> Callable[[Tensor], Tensor]:
        def read(x: Tensor) -> Tensor:
            seen[name] = x.detach().clone()
            return x

        return read

    asked = {"at": batch.predict_at[:, 0]} if isinstance(model, LM) else {}  # the logits are not needed
    with listening(model, {name: reader(name) for name in sites}), torch.no_grad():
        model(batch.tokens, **asked)
    missing = [name for name in sites if name not in seen]
    if missing:
        raise UserError(f"the model ran without passing through {', '.join(missing)}.")
    if where is None:
        return {name: seen[name] for name in sites}
    axes = {name: place(model, name).axis for name in sites}
    return {name: {role: at_positions(seen[name], axes[name], at) for role, at in where.items()} for name in sites}


@contextmanager
def patch(model: nn.Module, interventions: Sequence[Intervention], batch: Batch, seed: int = 0) -> Iterator[None]:
    """Apply interventions to `model` while the context lasts; it must be run on documents with the roles of `batch`.

    Several interventions act together; those on the same site are applied in the given order.
    """
    listeners: dict[str, Callable[[Tensor], Tensor]] = {}
    for each in interventions:
        if place(model, each.site).readonly:
            raise UserError(f"site {each.site} can only be read: the model does not compute with it.")
        [where] = positions(batch, [each.role], seed).values()
        change = _change(each.edit, place(model, each.site).axis, where)
        before = listeners.get(each.site)
        listeners[each.site] = change if before is None else _after(before, change)
    with listening(model, listeners):
        yield


def _change(edit: Edit, axis: int, where: Tensor) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        y = x.clone()
        put(y, axis, where, edit(at_positions(x, axis, where)))
        return y

    return change


def _after(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: second(first(x))
