"""Models whose mechanism is known, because every weight was set by hand and nothing was trained.

They recall in associative recall (`BOS k1 v1 k2 v2 ... EOS query`), or fail to, in a way that an analysis must find.
They are ordinary `LM`s: real attention and real DeltaNet layers with a few wires and zeros elsewhere, or, where no
built-in layer does what is wanted, small custom mixers. `stream.py` explains the maths.

`conv_direct` is also the model for editing a state: its keys are orthonormal directions in the memory of its DeltaNet,
so erasing one of them from the memory loses that pair alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from mecheval.errors import UnknownName, UserError, shown
from mecheval.model.handmade.builds import Blueprint
from mecheval.model.handmade.parts import TAPS, Sum
from mecheval.model.handmade.recipes import NAMES, RECIPES, Recipe
from mecheval.model.handmade.stream import add_noise, embedding_only, layout
from mecheval.model.lm import LM
from mecheval.tasks import AR, Task

__all__ = ["NAMES", "RECIPES", "handmade"]

MOST_NOISE = 10.0
"""Largest noise, relative to the weights, far beyond what any mechanism survives."""
SHARES = (0.05, 0.95)
"""Smallest and largest `share`; beyond them, one of the two stores would have to suppress the answer."""


def handmade(
    name: str,
    task: Task,
    *,
    layer: int | Sequence[int] | None = None,
    n_layers: int = 2,
    d_model: int | None = None,
    seed: int = 0,
    noise: float = 0.0,
    offset: int | None = None,
    share: float | None = None,
) -> LM:
    """The model called `name` for an associative recall task that asks for keys.

    `layer`: in which layer it works, or layers, ascending; by default the first ones; all others are idle.
    `d_model`: by default as wide as orthogonal codes need, with at most 256 for a slot. In less, codes overlap.
    `seed`: of the codes and the noise; all seeds give other weights and the same mechanism.
    `noise`: size of Gaussian noise on all weights, relative to the root mean square of each tensor.
    `offset`: of conv_direct and conv_attention: how many tokens after the value key and value meet.
    `share`: of split_store: how much of what is restored is restored at the value; the rest is at the divider.
    """
    if name not in RECIPES:
        raise UnknownName("handmade model", name, RECIPES)
    if not isinstance(task, AR) or task.options.query != "key":
        raise UserError("handmade: the task must be associative recall of values, build_task('ar', query='key').")
    if not 0 <= noise <= MOST_NOISE:
        raise UserError(f"handmade: noise must be from 0 to {MOST_NOISE:g} (got {shown(noise)}).")
    recipe = RECIPES[name]
    plan = Blueprint(
        layout(task, recipe.slots.split(), d_model),
        _working(name, layer, n_layers),
        _offset(name, offset),
        _share(name, share),
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        lm = embedding_only(plan.stream, *_mixer(recipe, plan), n_layers, seed, generator)
        recipe.fill(lm, plan)
        if noise:
            add_noise(lm, noise, generator)
    return lm


def _mixer(recipe: Recipe, plan: Blueprint) -> tuple[str | Callable[..., nn.Module], dict[str, Any]]:
    """The mixer of all layers, and its options."""
    if recipe.mixer == "attention":
        return recipe.mixer, {"bias": True}
    if recipe.mixer == "delta_net":
        return recipe.mixer, {"conv_size": max(TAPS, plan.offset + 2)}
    if recipe.mixer is not None:
        return recipe.mixer, {}

    def parts(d_model: int, layer: int) -> nn.Module:
        assert recipe.parts is not None, "a recipe has a mixer or parts"
        return Sum(recipe.parts(plan, plan.layers.index(layer)) if layer in plan.layers else [])

    return parts, {}


def _working(name: str, layer: int | Sequence[int] | None, n_layers: int) -> tuple[int, ...]:
    """The layers that are not idle."""
    count = RECIPES[name].layers
    chosen = tuple(range(count)) if layer is None else (layer,) if isinstance(layer, int) else tuple(layer)
    if len(chosen) != count or list(chosen) != sorted(set(chosen)) or not set(chosen) <= set(range(n_layers)):
        raise UserError(
            f"handmade: {name} works in {count} of n_layers={n_layers} layers; "
            f"layer must name {count}, ascending, from 0 to {n_layers - 1} (got {', '.join(map(str, chosen))})."
        )
    return chosen


def _offset(name: str, offset: int | None) -> int:
    """The option `offset`, checked; 0 for a model without it."""
    usual = RECIPES[name].offset
    if usual is None:
        _refuse("offset", name, offset)
        return 0
    default, most = usual
    if offset is None:
        return default
    if not isinstance(offset, int) or not 0 <= offset <= most:
        raise UserError(f"handmade: offset of {name} must be from 0 to {most} (got {shown(offset)}).")
    return offset


def _share(name: str, share: float | None) -> float:
    """The option `share`, checked; 1 for a model without it."""
    default, (least, most) = RECIPES[name].share, SHARES
    if default is None:
        _refuse("share", name, share)
        return 1.0
    if share is None:
        return default
    if not least <= share <= most:
        raise UserError(f"handmade: share of {name} must be from {least} to {most} (got {shown(share)}).")
    return share


def _refuse(option: str, name: str, value: object) -> None:
    if value is not None:
        owners = ", ".join(other for other, recipe in RECIPES.items() if getattr(recipe, option) is not None)
        raise UserError(f"handmade: {option} is an option of {owners}, not of {name}.")
