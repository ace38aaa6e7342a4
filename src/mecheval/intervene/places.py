"""Where one can listen: the sites of an `LM`, or the inputs and outputs of any module's submodules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mecheval.errors import UnknownName, UserError
from mecheval.model import LM
from mecheval.sites import Site, Tap

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
    """Inside, each listener hears its site and what it returns goes on; afterwards, also after an error, no trace."""
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
