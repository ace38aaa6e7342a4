"""The places of interventions: activations by the name of their site, positions by the name of their role."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mecheval import rng
from mecheval.errors import UnknownName, UserError
from mecheval.intervene.answering import kind_of, uncompiled
from mecheval.model import LM
from mecheval.sites import Site, Tap
from mecheval.types import NOWHERE, OFFSET, RANDOM, SPANS, Batch, first_of, has_role, in_order, last_of

Listener = Callable[[Tensor], Tensor]

STATE = "mixer.state"
"""The part of a block that stands for everything its mixer carries from one position to the next."""


@dataclass(frozen=True)
class Place:
    """An activation with a name. `axis` is its position axis; axis 0 is the document."""

    site: Site
    axis: int
    readonly: bool
    attach: Callable[[Listener], Callable[[], None]]  # returns a function that detaches the listener


PART = re.compile(r"(.+)\.part\.(\d{1,9})/(\d{1,9})")
"""The name of one of several equal parts of a site's channels: `mixer.q.part.0/4` is the first quarter."""


def place(model: nn.Module, name: str) -> Place:
    """The activation called `name`: a site of an `LM`, or `<submodule>.output` / `<submodule>.input` of any module.

    An output or input that is a tuple, or an output object of transformers, is represented by its first tensor, because
    layers often also return a cache or weights. A head of an `LM` is `blocks.0.mixer.heads.3`; the channels of any site
    can be divided: `transformer.h.0.attn.c_proj.input.part.3/12` is head 3 of 12 of a GPT-2.
    """
    model = uncompiled(model)
    if part := PART.fullmatch(name):
        return _part(place(model, part[1]), f".part.{part[2]}/{part[3]}", int(part[2]), int(part[3]))
    if isinstance(model, LM):
        return _place_in_lm(model, name)
    path, _, end = name.rpartition(".")
    modules = dict(model.named_modules())
    if end in ("input", "output") and path in modules:
        module, at_input = modules[path], end == "input"
    elif name in modules:
        module, at_input = modules[name], False
    else:
        raise UnknownName("site", name, [f"{path}.output" for path in modules if path])
    site = name if isinstance(name, Site) else Site(None, name)
    axis = 2 if isinstance(module, nn.Conv1d) and not at_input else 1  # the channels of a convolution come first
    return Place(site, axis, False, lambda listener: attach_hook(module, at_input, listener))


def _place_in_lm(model: LM, name: str) -> Place:
    if found := model.find(name):
        site, tap = found
        return Place(site, tap.position_axis, tap.readonly, lambda listener: _attach_tap(tap, listener))
    taps, heads = model.taps(), model.heads()
    if name in heads:
        of, number = name.rsplit(".", 1)
        tap = taps[of]
        return _part(place(model, of), f".{number}", int(number), tap.heads, spread=tap.shape.split()[2] == "PH")
    states = {f"blocks.{i}.{STATE}": Site(i, STATE, "state") for i in range(model.n_layers)}
    if name in states:  # the state can be replaced, but this mixer has no such tensor
        return Place(states[name], 1, True, lambda listener: _no_tensor(name))
    raise UnknownName("site", name, [*taps, *states, *heads])


def _part(whole: Place, suffix: str, number: int, count: int, spread: bool = False) -> Place:
    """Part `number` of `count` of an activation's channels: a contiguous block, or every count-th with `spread`."""
    channels = 3 - whole.axis  # (n, L, D) or (n, D, L)

    def view(x: Tensor) -> Tensor:
        if x.ndim < 3 or not 0 <= number < count or x.shape[channels] % count:
            sizes = f"{x.shape[channels]} channels" if x.ndim >= 3 else "no channels"
            raise UserError(f"site {whole.site}{suffix}: there is no such part; the site has {sizes}.")
        apart: Tensor = x.unflatten(channels, (-1, count) if spread else (count, -1))
        return apart.select(channels + spread, number)

    def attach(listener: Listener) -> Callable[[], None]:
        def change(x: Tensor) -> Tensor:
            own = view(x)
            new = listener(own)
            if new is own:
                return x
            y = x.clone()
            view(y).copy_(new)
            return y

        return whole.attach(change)

    site = whole.site
    named = Site(site.block, f"{site.part}{suffix}", site.kind, f"{site}{suffix}")
    return Place(named, whole.axis, whole.readonly, attach)


def _no_tensor(name: str) -> Callable[[], None]:
    raise UserError(f"{name} can be replaced, but not read: its mixer does not keep the state as one tensor.")


@contextmanager
def listening(model: nn.Module, listeners: Mapping[str, Listener]) -> Iterator[None]:
    """While the context lasts, pass the activation of each site through its listener and use what that returns."""
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


def attach_hook(module: nn.Module, at_input: bool, listener: Listener) -> Callable[[], None]:
    """Pass a module's input or output through a listener, and return a function that detaches it."""
    if at_input:
        return module.register_forward_pre_hook(
            lambda _, arguments, named: _first_argument(listener, arguments, named), with_kwargs=True
        ).remove
    if isinstance(module, nn.Conv1d):
        stack = ExitStack()
        stack.enter_context(Convolving(module, listener))
        return stack.close
    return module.register_forward_hook(lambda _, arguments, output: _first(listener, output)).remove


class Convolving(TorchFunctionMode):
    """A context in which the results of one convolution pass through a listener.

    Mamba models in transformers never call their `nn.Conv1d`; they use its weights, by which it is recognised here.
    """

    def __init__(self, module: nn.Conv1d, listener: Listener) -> None:
        super().__init__()
        self.module, self.listener = module, listener

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        if func is torch.conv1d:
            weight = args[1] if len(args) > 1 else named["weight"]
            if weight.data_ptr() == self.module.weight.data_ptr():
                return self.listener(result)
        return result


def _first_argument(listener: Listener, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Pass the first tensor that a module is called with, positional or named, through the listener."""
    if not arguments:
        for name, value in named.items():
            if isinstance(value, Tensor):
                return arguments, {**named, name: listener(value)}
    return _first(listener, arguments), named


def _first(listener: Listener, value: Any) -> Any:
    """Pass a tensor, or the first tensor of a tuple or of an output object of transformers, through the listener."""
    if isinstance(value, Tensor):
        return listener(value)
    if isinstance(value, tuple) and value and isinstance(value[0], Tensor):
        return (listener(value[0]), *value[1:])
    if isinstance(value, Mapping) and is_dataclass(value) and value:  # an output object, whose parts have an order
        name, first = next(iter(value.items()))
        if isinstance(first, Tensor):
            return type(value)(**{**value, name: listener(first)})
    got = (
        f"a tuple that starts with {type(value[0]).__name__}" if isinstance(value, tuple) and value else kind_of(value)
    )
    raise UserError(f"an intervention needs a tensor, or a tuple that starts with one (got {got}).")


NEAR = 3
"""Number of positions after the key and after the value that have names, because a short convolution reaches them."""

Roles = Sequence[str | int] | Mapping[str, Tensor]


def positions(batch: Batch, roles: Roles | None, seed: int = 0) -> dict[str, Tensor]:
    """Name -> positions (n,), or (n, m) for roles with several positions, padded with NOWHERE.

    Without `roles`, these are all roles of the batch and `random`. A role is a role of the batch, `random`, an offset
    from a role (`value+2`), a span (see SPANS) or a plain position (negative ones count from the end); custom positions
    are given as a mapping.
    """
    device = batch.tokens.device
    if roles is None:
        roles = in_order([*batch.roles, RANDOM])
    if isinstance(roles, Mapping):
        return {str(name): _checked(batch, str(name), where).to(device) for name, where in roles.items()}
    found = {}
    for role in roles:
        if isinstance(role, int):
            where = torch.full_like(batch.lengths, role) if role >= 0 else batch.lengths + role
            found[str(role)] = _checked(batch, str(role), where)
        elif role in batch.roles:
            found[role] = batch.roles[role]
        elif role == RANDOM:
            found[role] = _random(batch, seed).to(device)
        elif role in SPANS:
            found[role] = _span(batch, role)
        elif (offset := OFFSET.fullmatch(role)) and offset[1] in batch.roles:
            named, steps = batch.roles[offset[1]], int(offset[2])
            where = (last_of(named) if steps > 0 else first_of(named)) + steps
            inside = has_role(named) & (where >= 0) & (where <= batch.predict_at[:, 0])
            found[role] = torch.where(inside, where, NOWHERE)
        else:
            raise UnknownName("role", role, [*batch.roles, RANDOM, *SPANS, "value+2 and other offsets"])
    return found


def named_between(batch: Batch) -> dict[str, Tensor]:
    """Role -> (n,) or (n, m): the named positions between key and query; a position may have several names.

    They are the value, the places that the task declares, NEAR positions after the value and after the key, and the one
    before the value, to which a layer may bring the key for the next layer's short convolution.
    """
    meaning = batch.meaning
    known = [role for role in (meaning.value, *meaning.places) if role in batch.roles]
    steps = [f"+{i}" for i in range(1, NEAR + 1)]
    near = ((meaning.value, [*steps, "-1"]), (meaning.key, steps))
    after = [f"{role}{step}" for role, some in near if role in batch.roles for step in some]
    key, query = last_of(batch.roles[meaning.key])[:, None], first_of(batch.roles[meaning.query])[:, None]
    found = {}
    for role, places in positions(batch, [*(role for role in known if role), *after]).items():
        each = places.view(len(batch), -1)
        if role == "next_key" and meaning.value in batch.roles:  # only if it directly follows the value
            each = torch.where(each == last_of(batch.roles[meaning.value])[:, None] + 1, each, NOWHERE)
        found[role] = torch.where((each > key) & (each < query), each, NOWHERE).view(places.shape)
    return found


def _span(batch: Batch, role: str) -> Tensor:
    """(n, m) the positions of a span."""
    key, query = last_of(batch.roles[batch.meaning.key]), first_of(batch.roles[batch.meaning.query])
    end = batch.predict_at[:, 0]
    position = torch.arange(int(end.max()) + 1, device=key.device).expand(len(batch), -1)
    if role == "question":
        chosen = (position >= query[:, None]) & (position <= end[:, None])
    elif role == "body":
        chosen = position < query[:, None]
    else:
        chosen = (position > key[:, None]) & (position < query[:, None])
        if role == "others":
            for places in named_between(batch).values():
                chosen = chosen & (position[..., None] != places.view(len(batch), 1, -1)).all(2)
    packed = torch.where(chosen, position, position.shape[1]).sort(dim=1).values[:, : max(1, int(chosen.sum(1).max()))]
    return torch.where(packed < position.shape[1], packed, NOWHERE)


def _checked(batch: Batch, name: str, where: Tensor) -> Tensor:
    if where.ndim not in (1, 2) or len(where) != len(batch):
        raise UserError(
            f"role {name!r}: give one position for each of {len(batch)} documents, (n,), or several, (n, m), padded "
            f"with {NOWHERE} (got {tuple(where.shape)})."
        )
    ends = batch.lengths if where.ndim == 1 else batch.lengths[:, None]
    if ((where >= ends.to(where.device)) | (where < NOWHERE)).any():
        raise UserError(f"role {name!r}: a position lies outside its document.")
    return where


def _random(batch: Batch, seed: int) -> Tensor:
    """(n,) positions drawn uniformly from those without a role before all questions, by seed and document number.

    Questions before key and value do not count, because some tasks ask anywhere.
    """
    stream, meaning = rng.key(seed, "control"), batch.meaning
    roles = {role: where.cpu() for role, where in batch.roles.items()}
    known = torch.stack([last_of(roles[role]) for role in (meaning.key, meaning.value) if role in roles]).amax(0)
    asked = batch.asked.get(meaning.query, batch.roles[meaning.query][:, None]).cpu()
    begins = asked if asked.ndim == 2 else asked[..., 0]  # (n, k)
    ends = torch.where(begins > known[:, None], begins, first_of(roles[meaning.query])[:, None]).amin(1)
    taken = torch.cat([where.view(len(batch), -1) for where in roles.values()], dim=1).tolist()
    drawn = []
    for number, end, others in zip(batch.index.tolist(), ends.tolist(), taken, strict=True):
        free = [place for place in range(end) if place not in others]
        draw = rng.below(rng.generator(rng.derived(stream, number)), len(free)) if free else 0
        drawn.append(free[draw] if free else NOWHERE)
    return torch.tensor(drawn, dtype=torch.int64)
