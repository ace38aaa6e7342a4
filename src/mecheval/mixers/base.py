"""What a sequence mixer is, and how one is found by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from mecheval.errors import UnknownName, UserError, parse_options
from mecheval.mixers.own import OwnMixers
from mecheval.registry import Registry

MAX_WIDTH, MAX_LENGTH = 1 << 17, 1 << 24
"""Upper bounds of options that count channels or heads, and tokens of a document: far above any honest model."""


class MixerOptions(BaseModel):
    """Closed and frozen; named as in the upstream layer."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Mixer(nn.Module, ABC):
    """A causal map (B, L, D) -> (B, L, D) that moves information between positions.

    With `at` (B, K), only the outputs at those positions are wanted: (B, K, D), the same numbers, with no queries,
    gates or output projections computed elsewhere. Sites are promised only without `at`: while someone listens, the
    block computes all positions.
    """

    Options: ClassVar[type[MixerOptions]]
    block: ClassVar[Literal["transformer", "mamba"]] = "transformer"
    """The block around it: transformer = LayerNorm and an MLP after it; mamba = RMSNorm, no MLP."""
    positions: ClassVar[Literal["none", "learned"]] = "none"
    """The position embeddings that the model uses unless told otherwise."""

    @abstractmethod
    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """Mix; see the class."""

    @abstractmethod
    def state_size(self, length: int) -> int:
        """Numbers that generation must carry from one token to the next, after `length` tokens of one document."""


MIXERS: Registry[Callable[..., nn.Module]] = Registry("mixer", "mecheval.mixers", OwnMixers())
"""A registered mixer is a `Mixer` class, or a function or module class called as f(d_model=..., **options).

Beside those of this package and of entry points there are the user's own, from files that MECHEVAL_MIXERS names.

One with `Options` gets them parsed, and its layer index: f(d_model, layer, options).
"""


def build_mixer(name: str, d_model: int, layer: int = 0, **options: Any) -> nn.Module:
    """The mixer called `name` for block number `layer`, which matters to those that alternate between layers."""
    return make_mixer(MIXERS.get(name), name, d_model, layer, options)


def make_mixer(
    factory: Callable[..., nn.Module], name: str, d_model: int, layer: int, options: dict[str, Any]
) -> nn.Module:
    """Call a mixer's factory: ours with parsed options, anyone else's with the arguments that it names."""
    if d_model < 1 or layer < 0:
        raise UserError(f"{name}: d_model must be positive and layer not negative (got {d_model}, {layer}).")
    model: type[MixerOptions] | None = getattr(factory, "Options", None)
    if model is not None:
        return factory(d_model, layer, parse_options(model, name, options))
    accepted = _check_arguments(factory, name, options)
    extra = {"layer": layer} if "layer" in accepted else {}
    try:
        return factory(d_model=d_model, **extra, **options)
    except TypeError as error:
        raise UserError(f"{name}: could not be built with d_model={d_model} and {options}: {error}.") from error


def check_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of the mixer called `name` as plain data, defaults filled in where it declares them."""
    factory = MIXERS.get(name)
    model: type[MixerOptions] | None = getattr(factory, "Options", None)
    if model is not None:
        return parse_options(model, name, options).model_dump(mode="json")
    _check_arguments(factory, name, options)
    return options


def _check_arguments(factory: Callable[..., nn.Module], name: str, options: dict[str, Any]) -> set[str]:
    """The arguments that a mixer from elsewhere names; an option that is not among them is an error."""
    accepted = inspect.signature(factory).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        for option in options:
            if option not in accepted:
                raise UnknownName(f"option of {name}", option, set(accepted) - {"d_model", "layer"})
    return set(accepted)


def divides(heads: int, d_model: int, name: str) -> int:
    """Width of one head, or an error that says which two numbers do not fit."""
    if d_model % heads:
        raise UserError(f"{name}: d_model={d_model} is not a multiple of num_heads={heads}.")
    return d_model // heads


def fits(length: int, l_max: int, name: str) -> None:
    """An error when a document is longer than an implicit filter was made for."""
    if length > l_max:
        raise UserError(f"{name}: {length} tokens exceed l_max={l_max}; build it with a larger l_max.")
