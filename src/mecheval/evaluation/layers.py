"""The layers of a model that was trained elsewhere: their submodules and their sites."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mecheval.errors import UnknownName, UserError
from mecheval.intervene import Depths
from mecheval.intervene.effects import default_sites
from mecheval.intervene.mechanism import depths_of
from mecheval.intervene.places import Convolving, listening, place
from mecheval.model import LM
from mecheval.sites import Site
from mecheval.types import SHORT_CONVOLUTIONS


@dataclass(frozen=True)
class Sites:
    """The sites of interventions on a model, and those that decide the verdict."""

    every: tuple[Site, ...]
    inputs: tuple[Site, ...]  # the inputs of the layers, in order
    depths: Depths

    @property
    def middle(self) -> str | None:
        """The input of layer 1; None for a model of one layer."""
        return self.inputs[1] if len(self.inputs) > 1 else None


def sites_of(
    model: nn.Module, layers: Sequence[str] | None, mixers: Sequence[str], extra: Sequence[str] | None, tokens: Tensor
) -> Sites:
    """Inputs and outputs of the layers, outputs of the mixers, and activations that the user names.

    The verdict also uses the outputs of the smallest submodules inside the layers, if a run on `tokens` shows
    that they have axes for documents and positions.
    """
    if isinstance(model, LM):
        if layers or mixers:
            raise UserError("an LM knows its layers and mixers; leave out layers= and mixers=.")
        depths = depths_of(model.sites())
        names = [*(extra or default_sites(model)), *depths.sites]
        first = tuple(Site(i, "input", "stream") for i in range(model.n_layers))
        return Sites(tuple(place(model, name).site for name in dict.fromkeys(names)), first, depths)
    known = dict(model.named_modules())
    chosen = list(layers) if layers is not None else find_layers(model)
    if not chosen:
        raise UserError("layers: name at least one submodule.")
    for path in (*chosen, *mixers):
        if path not in known or not path:
            raise UnknownName("submodule", path, [name for name in known if name])
    if len(set(chosen)) < len(chosen):
        raise UserError(f"layers: each once (got {', '.join(chosen)}).")
    inputs, outputs = (
        [Site(i, end, "stream", f"{path}.{end}") for i, path in enumerate(chosen)] for end in ("input", "output")
    )
    ends = [site for pair in zip(inputs, outputs, strict=True) for site in pair]
    inside = [*(f"{path}.output" for path in mixers), *(extra or [])]
    every = [*ends, *(_inside(name, chosen) for name in inside)]
    depths = depths_of([*every, *inside_layers(model, chosen, tokens)])
    depths = replace(depths, ends=(inputs[0], outputs[-1]))  # there may be more before and after the layers
    return Sites(tuple(dict.fromkeys(every)), tuple(inputs), depths)


def inside_layers(model: nn.Module, layers: Sequence[str], tokens: Tensor) -> list[Site]:
    """The outputs of the submodules inside the layers that have no submodules themselves, in the order of computation.

    Only those that are computed once and have shape (n, L, ...), or (n, C, at least L) from an `nn.Conv1d`, are kept.
    """
    n, length = tokens.shape
    seen: list[tuple[str, bool]] = []

    leaves = [
        (path, module)
        for path, module in model.named_modules()
        if any(path.startswith(f"{layer}.") for layer in layers) and not list(module.children())
    ]
    known = dict(leaves)

    def look(path: str, output: Any) -> Any:
        fits = isinstance(output, Tensor) and output.ndim > 2 and output.is_floating_point() and len(output) == n
        if fits and isinstance(known[path], nn.Conv1d):
            fits = output.shape[2] >= length
        elif fits:
            fits = output.shape[1] == length
        seen.append((path, bool(fits)))
        return output

    with ExitStack() as stack:
        for path, module in leaves:
            if isinstance(module, nn.Conv1d):
                stack.enter_context(Convolving(module, lambda x, path=path: look(path, x)))  # type: ignore[misc]
            else:
                hook = module.register_forward_hook(lambda _, given, x, path=path: look(path, x))
                stack.callback(hook.remove)
        with torch.no_grad():
            model(tokens)
    paths = [path for path, _ in seen]
    return [
        _inside(f"{path}.output", layers, short=isinstance(known[path], nn.Conv1d))
        for path, fits in seen
        if fits and paths.count(path) == 1
    ]


def find_layers(model: nn.Module) -> list[str]:
    """The children of the only list of modules of one class, or an error that names such lists if there are several."""
    lists: dict[str, list[str]] = {}
    unequal = []
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or any(path.startswith(f"{each}.") for each in lists):
            continue  # of nested lists, such as heads inside layers, the outermost counts
        names = [f"{path}.{name}" if path else name for name, _ in module.named_children()]
        kinds = {type(child) for child in module.children()}
        if len(kinds) == 1 and (len(names) > 1 or isinstance(module, nn.ModuleList)):
            lists[path] = names
        else:
            unequal.append(path)
    if len(lists) == 1:
        return next(iter(lists.values()))
    there = [f"{path} ({len(children)})" for path, children in lists.items()] or [path for path in unequal if path]
    parts = [path for path, _ in model.named_modules() if path and "." not in path]
    said = f"lists in this model: {', '.join(there)}" if there else f"its parts: {', '.join(parts) or 'none'}"
    raise UserError(f"which submodules are the layers? Name them in order, layers=['blocks.0', ...]; {said}.")


def check_sites(model: nn.Module, tokens: Tensor, sites: Sites) -> int:
    """Check that sites are computed once, in order, with documents and positions first; returns the model's width."""
    if isinstance(model, LM):  # the sites of an LM know their axes
        return model.d_model
    seen: list[str] = []
    shapes: dict[str, tuple[int, ...]] = {}

    def listener(site: str) -> Any:
        def listen(x: Tensor) -> Tensor:
            seen.append(site)
            shapes[site] = tuple(x.shape)
            return x

        return listen

    with torch.no_grad(), listening(model, {site: listener(site) for site in sites.every}):
        model(tokens)
    for site in sites.every:
        if seen.count(site) != 1:
            how = "never passes" if site not in seen else f"passes {seen.count(site)} times"
            raise UserError(f"one run of the model {how} through {site}; interventions need exactly once.")
        if shapes[site][:2] != tuple(tokens.shape):
            n, length = tokens.shape
            raise UserError(
                f"{site} has shape {shapes[site]} for {n} documents of {length} tokens; documents must come first and "
                "positions second, (n, L, ...); PyTorch's layers do so with batch_first=True."
            )
    order = [site for site in seen if site in sites.inputs]
    if order != list(sites.inputs):
        raise UserError(f"layers: name them in the order in which they run; the inputs came as {', '.join(order)}.")
    return shapes[sites.inputs[0]][-1]


def _inside(name: str, layers: Sequence[str], short: bool = False) -> Site:
    """The site called `name`, with the layer that contains it; `short` means that it is a short convolution."""
    path = name.removesuffix(".output")
    for i, layer in enumerate(layers):
        if path.startswith(f"{layer}."):
            short = short or path.rpartition(".")[2] in SHORT_CONVOLUTIONS
            return Site(i, name.removeprefix(f"{layer}."), "short_conv" if short else "inside", name)
    return Site(None, name)
