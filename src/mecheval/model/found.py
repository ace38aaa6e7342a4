"""Finds the short convolutions (`nn.Conv1d`) of a custom mixer and makes them sites."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mecheval.mixers import Mixer
from mecheval.sites import Tap, taps

LONGEST = 64
"""Largest number of taps of a short convolution."""
DOCUMENTS, LENGTH = 3, 7
"""Numbers of documents and tokens of the trial run that shows which axis is which."""


class Through:
    """A forward hook that passes a convolution's output through its tap; an object, so that copies have their own."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        """The output, or what a listener returns for it."""
        return self.tap(output)


def found_convolutions(mixer: nn.Module, d_model: int) -> dict[str, Tap]:
    """Name -> tap of each short `nn.Conv1d` of a custom mixer whose output is (documents, channels, positions or more).

    They are found in a trial run on zeros; a mixer that fails in it has none. Built-in mixers declare their sites.
    """
    if isinstance(mixer, Mixer):
        return {}
    named = {name for name, _ in taps(mixer)}
    some = {
        name: module
        for name, module in mixer.named_modules()
        if isinstance(module, nn.Conv1d) and 1 < module.kernel_size[0] <= LONGEST and name and name not in named
    }
    found: dict[str, Tap] = {}
    for name in some if not some else _run_through(mixer, some, d_model):
        found[name] = Tap(name, "B C L", kind="short_conv")
        some[name].register_forward_hook(Through(found[name]))
    return found


def _run_through(mixer: nn.Module, some: dict[str, nn.Conv1d], d_model: int) -> list[str]:
    """The convolutions that one run passes exactly once, with positions on the last axis."""
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in some}

    def watch(name: str) -> Any:
        def look(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
            shapes[name].append(tuple(output.shape))

        return look

    hooks = [module.register_forward_hook(watch(name)) for name, module in some.items()]
    training = mixer.training
    weight = next(iter(some.values())).weight
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            mixer.eval()(torch.zeros(DOCUMENTS, LENGTH, d_model, dtype=weight.dtype, device=weight.device))
    except Exception:  # problems of a mixer are reported when it is checked or trained
        return []
    finally:
        mixer.train(training)
        for hook in hooks:
            hook.remove()

    def fits(seen: list[tuple[int, ...]]) -> bool:
        return len(seen) == 1 and len(seen[0]) == 3 and seen[0][0] == DOCUMENTS and seen[0][2] >= LENGTH

    return [name for name, seen in shapes.items() if fits(seen)]
