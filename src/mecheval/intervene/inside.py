"""What happens inside a mixer that declares no sites: every operation with a position axis is an activation.

A custom mixer is written for training, not for interventions. While one of its blocks runs, each torch operation is
watched, whatever it is called and whoever calls it: a convolution under any name, a shift by padding and slicing, a
projection. An operation is named by the submodule that it happens in, its own name and its number in the block.

Which axes of a result are documents and positions is found by behaviour, too, for layouts differ: (n, L, D), (L, n, D),
(n H, L, E), (n L, D). Clean and corrupted documents are run together; before its corrupted key, a document's results
are the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mecheval.intervene.edits import at_positions, put
from mecheval.sites import Site

Seen = Callable[[int, str, Tensor], Tensor]  # of an operation's number, its name and its result
Run = Callable[[], Tensor]  # p(answer) (n,) of documents, by a run that passes through the watched module

SAME = 1e-4
"""Results that differ by less than this part of the largest count as the same."""


class Axes(NamedTuple):
    """Where documents and positions are in a result; the axis of documents may hold heads or positions as well."""

    documents: int
    outer: bool  # documents are the slower part of that axis
    positions: int  # counted when that axis has been taken apart

    def view(self, x: Tensor, n: int) -> Tensor:
        """x as (n, L, ...)."""
        apart: Tensor = x.unflatten(self.documents, (n, -1) if self.outer else (-1, n))
        return apart.movedim((self.documents + (not self.outer), self.positions), (0, 1))


@dataclass(frozen=True)
class Operation:
    """One operation inside a module."""

    site: Site
    number: int
    axes: Axes


class _Watch(TorchFunctionMode):
    """Calls `seen` with the result of every operation while `path` is set; the model goes on with what it returns."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen, self.path, self.count = seen, list[str](), 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "operation")
        in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        x = args[0] if in_place else result
        if self.path and isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 1:
            self.count += 1
            name = {"__getitem__": "slice", "__setitem__": "write"}.get(name, name)
            where = ".".join(part for part in self.path[1:] if part)
            seen = self.seen(self.count, f"{where}:{name}" if where else name, x)
            if not in_place:
                return seen
            if seen is not x:
                x.copy_(seen)
        return result


@contextmanager
def watched(module: nn.Module, seen: Seen) -> Iterator[None]:
    """Inside, `seen` hears of every operation of a module."""
    watch = _Watch(seen)

    def enters(name: str) -> Any:
        def hook(*_: Any) -> None:
            watch.path.append(name)

        return hook

    def leaves(*_: Any) -> None:
        watch.path.pop()
        if not watch.path:
            watch.count = 0

    hooks = []
    for name, part in module.named_modules():
        own = name.rpartition(".")[2] if name else "mixer"
        hooks += [part.register_forward_pre_hook(enters(own)), part.register_forward_hook(leaves)]
    try:
        with watch, torch.no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()


def operations(module: nn.Module, path: str, block: int, run: Run, key: Tensor, length: int) -> list[Operation]:
    """The operations of a module, which is `path` in layer `block`, whose results have positions, in order.

    `run` is about 2 n documents of this length: n clean ones, then the same, corrupted from the position `key` (n,) on.
    """
    found: list[Operation] = []

    def seen(number: int, name: str, x: Tensor) -> Tensor:
        axes = _axes(x, key.to(x.device), length, padded="conv1d" in name)
        if axes is not None:
            site = Site(block, f"mixer.{name}#{number}", name=f"{path}.{name}#{number}")
            found.append(Operation(site, number, axes))
        return x

    with watched(module, seen):
        run()
    return found


def _axes(x: Tensor, key: Tensor, length: int, padded: bool) -> Axes | None:
    """The axes along which only what follows the key differs between clean and corrupted documents."""
    both = 2 * len(key)
    for documents, outer, positions in product(range(x.ndim), (True, False), range(x.ndim + 1)):
        axes = Axes(documents, outer, positions)
        if x.shape[documents] % both or positions == documents + (not outer):
            continue
        values = axes.view(x, both)
        if values.shape[1] == length or (padded and values.shape[1] > length):
            clean, corrupted = values.flatten(2).nan_to_num(0, 0, 0).split(len(key))
            apart = (clean - corrupted).abs().amax(2)  # (n, L)
            before = torch.arange(values.shape[1], device=x.device) < key[:, None]
            if float((apart * before).max()) <= SAME * float(clean.abs().max()) < float(apart.max()):
                return axes
    return None


def values_of(
    module: nn.Module, run: Run, n: int, some: Sequence[Operation], where: Mapping[str, Tensor]
) -> dict[int, dict[str, Tensor]]:
    """Number of an operation -> role -> its results at the role's positions, in a run of n documents."""
    kept: dict[int, dict[str, Tensor]] = {}
    axes = {each.number: each.axes for each in some}

    def seen(number: int, name: str, x: Tensor) -> Tensor:
        if number in axes:
            values = axes[number].view(x, n)
            kept[number] = {role: at_positions(values, 1, at).clone() for role, at in where.items()}
        return x

    with watched(module, seen):
        run()
    return kept


def replaced(module: nn.Module, run: Run, operation: Operation, where: Tensor, values: Tensor) -> Tensor:
    """What `run` gives with the operation's results at some positions replaced."""

    def seen(number: int, name: str, x: Tensor) -> Tensor:
        if number != operation.number:
            return x
        y = x.clone(memory_format=torch.contiguous_format)
        put(operation.axes.view(y, len(where)), 1, where, values)
        return y

    with watched(module, seen):
        return run()
