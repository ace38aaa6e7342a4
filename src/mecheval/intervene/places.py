"""Where one can intervene: activations by the name of their site, positions by the name of their role."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mecheval import rng
from mecheval.errors import UnknownName, UserError
from mecheval.model import LM
from mecheval.sites import Site, Tap
from mecheval.types import ROLES, Batch

Listener = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Place:
    """An activation with a name. `axis` is its position axis; axis 0 is the document."""

    site: Site
    axis: int
    readonly: bool
    attach: Callable[[Listener], Callable[[], None]]  # returns what detaches the listener again


def place(model: nn.Module, name: str) -> Place:
    """The activation called `name`: a site of an `LM`, or `<submodule>.output` / `<submodule>.input` of any module.

    An output or input that is a tuple is represented by its first tensor, as is usual for layers that also return
    a cache or weights.
    """
    if isinstance(model, LM):
        taps = model.taps()
        if name not in taps:
            raise UnknownName("site", name, taps)
        tap, site = taps[name], next(site for site in model.sites() if site == name)
        return Place(site, tap.position_axis, tap.readonly, lambda listener: _attach_tap(tap, listener))
    path, _, end = name.rpartition(".")
    modules = dict(model.named_modules())
    if end in ("input", "output") and path in modules:
        module, at_input = modules[path], end == "input"
    elif name in modules:
        module, at_input = modules[name], False
    else:
        raise UnknownName("site", name, [f"{path}.output" for path in modules if path])
    site = name if isinstance(name, Site) else Site(None, name)
    return Place(site, 1, False, lambda listener: _attach_hook(module, at_input, listener))


@contextmanager
def listening(model: nn.Module, listeners: Mapping[str, Listener]) -> Iterator[None]:
    """Inside, the model continues with what each listener returns for its site; afterwards no listener is left."""
    with ExitStack() as stack:
        for name, listener in listeners.items():
            stack.callback(place(model, name).attach(listener))
        yield


def _attach_tap(tap: Tap, listener: Listener) -> Callable[[], None]:
    before = tap.listener
    tap.listener = listener if before is None else lambda x: listener(before(x))

    def detach() -> None:
        tap.listener = before

    return detach


def _attach_hook(module: nn.Module, at_input: bool, listener: Listener) -> Callable[[], None]:
    if at_input:
        return module.register_forward_pre_hook(
            lambda _, arguments, named: _first_argument(listener, arguments, named), with_kwargs=True
        ).remove
    return module.register_forward_hook(lambda _, arguments, output: _first(listener, output)).remove


def _first_argument(listener: Listener, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The listener's answer to the first tensor that a module is called with, by place or by name."""
    if not arguments:
        for name, value in named.items():
            if isinstance(value, Tensor):
                return arguments, {**named, name: listener(value)}
    return _first(listener, arguments), named


def _first(listener: Listener, value: Any) -> Any:
    """The listener's answer to a tensor, or to the first tensor of a tuple."""
    if isinstance(value, Tensor):
        return listener(value)
    if isinstance(value, tuple) and value and isinstance(value[0], Tensor):
        return (listener(value[0]), *value[1:])
    raise UserError(f"an intervention needs a tensor, or a tuple that starts with one (got {type(value).__name__}).")


RANDOM = "random"
"""A control: a position of the body that is none of key, value and next_key, drawn for each document."""

ALL_ROLES = ("key", "value", "next_key", "divider", "query", "bos", RANDOM)
NOWHERE = -1
"""The position of a role that a document does not have; it takes no part in that role's numbers."""

Roles = Sequence[str | int] | Mapping[str, Tensor]


def positions(batch: Batch, roles: Roles, seed: int = 0) -> dict[str, Tensor]:
    """Name -> (n,) positions: of roles by name, of plain positions (counted from the end below 0), or as given."""
    device = batch.tokens.device
    if isinstance(roles, Mapping):
        return {str(name): _checked(batch, str(name), where).to(device) for name, where in roles.items()}
    found = {}
    for role in roles:
        if isinstance(role, int):
            where = torch.full_like(batch.lengths, role) if role >= 0 else batch.lengths + role
            found[str(role)] = _checked(batch, str(role), where)
        elif role == RANDOM:
            found[role] = _random(batch, seed).to(device)
        elif role in batch.roles:
            found[role] = batch.roles[role]
        else:
            raise UnknownName("role", role, [*ROLES, RANDOM])
    return found


def _checked(batch: Batch, name: str, where: Tensor) -> Tensor:
    if where.shape != (len(batch),):
        raise UserError(
            f"role {name!r}: give one position for each of {len(batch)} documents (got {tuple(where.shape)})."
        )
    if ((where >= batch.lengths) | (where < NOWHERE)).any():
        raise UserError(f"role {name!r}: a position lies outside its document.")
    return where


def _random(batch: Batch, seed: int) -> Tensor:
    """Uniform over the other positions of the body; it depends on the seed and the document's number alone."""
    key = rng.key(seed, "control")
    taken = torch.stack([batch.roles[role] for role in ("key", "value", "next_key")], dim=1).tolist()
    drawn = []
    for number, divider, others in zip(batch.index.tolist(), batch.roles["divider"].tolist(), taken, strict=True):
        free = [place for place in range(1, divider) if place not in others]
        draw = rng.below(rng.generator(rng.derived(key, number)), len(free)) if free else 0
        drawn.append(free[draw] if free else NOWHERE)
    return torch.tensor(drawn, dtype=torch.int64)
