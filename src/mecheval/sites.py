"""Sites: activations that have a name, declared where they happen.

A module owns a `Tap` for each activation that someone may want to read or replace, and passes the activation through
it: `q = self.q(q)`. With nobody listening that is one attribute look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn


class Tap:
    """Names one activation.

    `shape` says its axes, e.g. "B L D"; the axis called L is the position in the document. A listener gets the
    activation and returns what the model goes on with. `readonly` marks what the model does not compute with
    (a recurrent state, rebuilt for whoever reads it): listening there changes nothing.
    """

    __slots__ = ("listener", "name", "readonly", "shape")

    def __init__(self, name: str, shape: str = "B L D", *, readonly: bool = False) -> None:
        self.name, self.shape, self.readonly = name, shape, readonly
        self.listener: Callable[[Tensor], Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """X itself, or what the listener makes of it."""
        return x if self.listener is None else self.listener(x)

    @property
    def listening(self) -> bool:
        """Whether someone reads or replaces this activation now."""
        return self.listener is not None

    @property
    def position_axis(self) -> int:
        """Which axis is the position in the document."""
        return self.shape.split().index("L")


def taps(module: nn.Module) -> Iterator[tuple[str, Tap]]:
    """(name, tap) of a module and its submodules, in the order of declaration; names are dotted paths."""
    for path, owner in module.named_modules():
        for value in vars(owner).values():
            if isinstance(value, Tap):
                yield f"{path}.{value.name}" if path else value.name, value
