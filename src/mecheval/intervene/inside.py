"""Activations inside a mixer that declares no sites: the result of every torch operation with a position axis.

A custom mixer is written for training, not for interventions. While one of its blocks runs, every torch operation is
observed, whatever its name and wherever it is called: a convolution, a shift by padding and slicing, a projection. An
operation is named by its submodule, its own name and its number in the block.

The axes of documents and positions are also found by observation, because layouts differ: (n, L, D), (L, n, D),
(n H, L, E), (n L, D). Clean and corrupted documents are run together; before its corrupted key, a document has the same
results in both.
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

Seen = Callable[[int, str, Tensor], Tensor]  # number of an operation, its name, its result -> the result to use
Run = Callable[[], Tensor]  # runs documents through the watched module; returns p(answer) (n,)

SAME = 1e-4
"""Largest difference, relative to the largest value, at which results count as equal."""


class Axes(NamedTuple):
    """The axes of documents and positions in a result; the axis of documents may include heads or positions, too."""

    documents: int
    outer: bool  # whether documents are the slower part of that axis
    positions: int  # the axis of positions after that axis has been split

    def view(self, x: Tensor, n: int) -> Tensor:
        """A view of x as (n, L, ...)."""
        apart: Tensor = x.unflatten(self.documents, (n, -1) if self.outer else (-1, n))
        return apart.movedim((self.documents + (not self.outer), self.positions), (0, 1))


@dataclass(frozen=True)
class Operation:
    """One operation inside a module."""

    site: Site
    number: int
    axes: Axes


class _Watch(TorchFunctionMode):
    """Passes the result of every operation through `seen` while `path` is set; the model uses what `seen` returns."""

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
    """Pass the result of every operation of a module through `seen` while the context lasts."""
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
    """The operations whose results have positions, in order, of the module called `path` in layer `block`.

    `run` runs 2 n documents of this length: n clean ones, then the same ones, corrupted at the position `key` (n,).
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
    """The axes for which clean and corrupted documents differ only from the key on; None if there are none."""
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
    """The results of operations at the positions of roles in a run of n documents: number -> role -> (n, ...)."""
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
    """The result of `run` with the operation's results at some positions replaced by `values`."""

    def seen(number: int, name: str, x: Tensor) -> Tensor:
        if number != operation.number:
            return x
        y = x.clone(memory_format=torch.contiguous_format)
        put(operation.axes.view(y, len(where)), 1, where, values)
        return y

    with watched(module, seen):
        return run()
