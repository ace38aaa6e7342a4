"""The base class of sequence mixers, and how a mixer is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from mecheval.errors import UserError, parse_options
from mecheval.mixers.options import MIXERS, MixerOptions, check_arguments
from mecheval.ops.pieces import NOTHING_READ, State, reading


class Mixer(nn.Module, ABC):
    """A causal map (B, L, D) -> (B, L, D) that moves information between positions.

    With `at` (B, K), only the outputs at those positions are wanted: (B, K, D), the same numbers, with no queries,
    gates or output projections computed elsewhere. Sites exist only without `at`: while there is a listener, the
    block computes all positions.

    A mixer looks back only through the operations of `mecheval.ops`, so that it can read a document in pieces (`step`).
    """

    Options: ClassVar[type[MixerOptions]]
    block: ClassVar[Literal["transformer", "mamba"]] = "transformer"
    """The block around it: transformer = LayerNorm and an MLP after it; mamba = RMSNorm, no MLP."""
    positions: ClassVar[Literal["none", "learned"]] = "none"
    """The position embeddings that a model uses unless its config names others."""
    weighs: ClassVar[tuple[str, str, str]]
    """Sites inside the mixer: weights (B, H, L, S), values, and the result, which is the sum of weighted values.

    "input" stands for the values of a mixer that weighs its own input. A position has the same number of values for
    each of the H heads or channels, one after the other.
    """
    canon_b: ClassVar[tuple[str, ...]] = ()
    """Names of the submodules, one `nn.Linear` or three, that compute q, k and v, which Canon B follows; may be empty.

    Without `at`, `forward` must call them as modules, on (B, L, D); a block with Canon B never gives `at`.
    """

    ragged: ClassVar[bool] = False
    """Whether it also takes documents end to end, (1, T, D), as in `ops/ragged.py`; no class inherits this."""

    @abstractmethod
    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """Mix positions; see the class."""

    def step(self, x: Tensor, state: State = NOTHING_READ) -> tuple[Tensor, State]:
        """The output (B, D) for one more token x (B, D), and the state after it; the same numbers as `forward`."""
        with reading(state) as now:
            y = self(x.unsqueeze(1)).squeeze(1)
        return y, now.after(1)

    @abstractmethod
    def state_size(self, length: int) -> int:
        """The number of values that generation must carry to the next token, after `length` tokens of one document."""


def build_mixer(name: str, d_model: int, layer: int = 0, **options: Any) -> nn.Module:
    """The mixer called `name` for block number `layer`, which matters to those that alternate between layers."""
    return make_mixer(MIXERS.get(name), name, d_model, layer, options)


def make_mixer(
    factory: Callable[..., nn.Module], name: str, d_model: int, layer: int, options: dict[str, Any]
) -> nn.Module:
    """Call a mixer's factory: a built-in one with parsed options, any other with the arguments that it names."""
    if d_model < 1 or layer < 0:
        raise UserError(f"{name}: d_model must be positive and layer not negative (got {d_model}, {layer}).")
    model: type[MixerOptions] | None = getattr(factory, "Options", None)
    if model is not None:
        return factory(d_model, layer, parse_options(model, name, options))
    accepted = check_arguments(factory, name, options)
    extra = {"layer": layer} if "layer" in accepted else {}
    try:
        return factory(d_model=d_model, **extra, **options)
    except TypeError as error:
        raise UserError(f"{name}: could not be built with d_model={d_model} and {options}: {error}.") from error


def divides(heads: int, d_model: int, name: str) -> int:
    """The width of one head, or an error if the width is not a multiple of the number of heads."""
    if d_model % heads:
        raise UserError(f"{name}: d_model={d_model} is not a multiple of num_heads={heads}.")
    return d_model // heads


def fits(length: int, l_max: int, name: str) -> None:
    """Raise an error if a document is longer than an implicit filter."""
    if length > l_max:
        raise UserError(f"{name}: {length} tokens exceed l_max={l_max}; build it with a larger l_max.")
