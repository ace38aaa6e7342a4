"""What happens inside a mixer that declares no sites: every operation with a position axis is an activation.

A custom mixer is written for training, not for interventions. While one of its blocks runs, each torch operation is
watched, whatever it is called and whoever calls it: a convolution under any name, a shift by padding and slicing, a
projection. An operation is named by the submodule that it happens in, its own name and its number in the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mecheval.intervene.edits import at_positions, put
from mecheval.intervene.grid import answer_likelihood
from mecheval.model import LM
from mecheval.sites import Site
from mecheval.types import Batch

Seen = Callable[[int, str, Tensor], Tensor]  # of an operation's number, its name and its result


@dataclass(frozen=True)
class Operation:
    """One operation inside a block's mixer."""

    site: Site
    number: int
    axis: int  # of its result, on which positions are


class _Watch(TorchFunctionMode):
    """Calls `seen` with the result of every operation while `inside` is set; the model goes on with what it returns."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen, self.path, self.count = seen, list[str](), 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.path and isinstance(result, Tensor) and result.is_floating_point() and result.ndim > 1:
            self.count += 1
            name = {"__getitem__": "slice"}.get(name := getattr(func, "__name__", "operation"), name)
            where = ".".join(part for part in self.path[1:] if part)
            result = self.seen(self.count, f"{where}:{name}" if where else name, result)
        return result


@contextmanager
def watched(lm: LM, block: int, seen: Seen) -> Iterator[None]:
    """Inside, `seen` hears of every operation of the block's mixer."""
    mixer, watch = lm.get_submodule(f"blocks.{block}.mixer"), _Watch(seen)

    def enters(name: str) -> Any:
        def hook(*_: Any) -> None:
            watch.path.append(name)

        return hook

    def leaves(*_: Any) -> None:
        watch.path.pop()
        if not watch.path:
            watch.count = 0

    hooks = []
    for name, module in mixer.named_modules():
        own = name.rpartition(".")[2] if name else "mixer"
        hooks += [module.register_forward_pre_hook(enters(own)), module.register_forward_hook(leaves)]
    try:
        with watch:
            yield
    finally:
        for hook in hooks:
            hook.remove()


def operations(lm: LM, block: int, h: Tensor, at: Tensor) -> list[Operation]:
    """The operations of a block's mixer whose results have positions, in order; h (n, L, D) enters the block."""
    n, length = h.shape[:2]
    found: list[Operation] = []

    def seen(number: int, name: str, x: Tensor) -> Tensor:
        sizes = list(x.shape[1:])
        if len(x) == n and "conv1d" in name and x.ndim == 3 and x.shape[2] >= length:
            axis = 2  # channels come first; padding can make it longer
        elif len(x) == n and length in sizes:
            axis = 1 + sizes.index(length)
        else:
            return x
        found.append(Operation(Site(block, f"mixer.{name}#{number}"), number, axis))
        return x

    with watched(lm, block, seen), torch.no_grad():
        lm.resume(block, h, at)
    return found


def values_of(
    lm: LM, block: int, h: Tensor, batch: Batch, some: Sequence[Operation], where: Mapping[str, Tensor]
) -> dict[int, dict[str, Tensor]]:
    """Number of an operation -> role -> its results at the role's positions."""
    kept: dict[int, dict[str, Tensor]] = {}
    axes = {each.number: each.axis for each in some}

    def seen(number: int, name: str, x: Tensor) -> Tensor:
        if number in axes:
            kept[number] = {role: at_positions(x, axes[number], at).clone() for role, at in where.items()}
        return x

    with watched(lm, block, seen), torch.no_grad():
        lm.resume(block, h, batch.predict_at[:, 0])
    return kept


def replaced(
    lm: LM, block: int, h: Tensor, batch: Batch, operation: Operation, where: Tensor, values: Tensor
) -> Tensor:
    """p(answer) (n,) with the operation's results at some positions replaced."""

    def seen(number: int, name: str, x: Tensor) -> Tensor:
        if number != operation.number:
            return x
        y = x.clone()
        put(y, operation.axis, where, values)
        return y

    with watched(lm, block, seen), torch.no_grad():
        return answer_likelihood(lm.resume(block, h, batch.predict_at[:, 0]), batch.answers)
