"""The base class of sequence mixers, and how a mixer is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from mecheval.errors import UserError, parse_options, said
from mecheval.mixers.adapter import call_of
from mecheval.mixers.options import MIXERS, MixerOptions
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
    """Call a mixer's factory: a built-in one with parsed options, any other with the arguments that it names.

    The width goes to the argument that stands for it, and of what `forward` returns, the first tensor is taken.
    """
    if d_model < 1 or layer < 0:
        raise UserError(f"{name}: d_model must be positive and layer not negative (got {d_model}, {layer}).")
    model: type[MixerOptions] | None = getattr(factory, "Options", None)
    if model is not None:
        return factory(d_model, layer, parse_options(model, name, options))
    call = call_of(factory, name, d_model, layer, options)
    try:
        mixer = call.run(factory)
    except TypeError as error:
        raise UserError(f"{call} failed: {said(error)}.") from error
    if not isinstance(mixer, nn.Module):
        what = "nothing" if mixer is None else f"a class ({mixer.__name__})" if isinstance(mixer, type) else "no module"
        raise UserError(f"{call} returns {what}; it must return a torch module, which is then the mixer.")
    if not isinstance(mixer, Mixer):
        mixer.register_forward_hook(FirstOutput())
    return mixer


class FirstOutput:
    """A forward hook that takes the first tensor of a tuple or an object; an object, so that copies have their own."""

    def __init__(self) -> None:
        self.taken_from: str | None = None  # the kind of the last output that was no tensor

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        """The output itself if it is a tensor, or if it has none."""
        if isinstance(output, Tensor):
            return output
        found = first_tensor(output)
        if isinstance(found, Tensor):
            self.taken_from = type(output).__name__
            return found
        return output


def first_tensor(output: Any) -> Any:
    """What an output begins with: the first of a tuple or list, or `last_hidden_state` or else the first field."""
    while isinstance(output, tuple | list) and output and not isinstance(output, Tensor):
        output = output[0]
    fields = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    return output if isinstance(output, Tensor) else fields.get("last_hidden_state", next(iter(fields.values()), None))


def divides(heads: int, d_model: int, name: str) -> int:
    """The width of one head, or an error if the width is not a multiple of the number of heads."""
    if d_model % heads:
        raise UserError(f"{name}: d_model={d_model} is not a multiple of num_heads={heads}.")
    return d_model // heads


def fits(length: int, l_max: int, name: str) -> None:
    """Raise an error if a document is longer than an implicit filter."""
    if length > l_max:
        raise UserError(f"{name}: {length} tokens exceed l_max={l_max}; build it with a larger l_max.")
