"""Canon layers (Allen-Zhu, 2025): short causal convolutions with a residual, h + conv(h), at four places of a block.

A follows the norm before the mixer, B the maps that make q, k and v, C the norm before the MLP, and D the MLP's first
map, before its nonlinearity. Each convolution follows an existing module, as a forward hook, so neither
mixers nor the MLP know of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mecheval.errors import UserError, shown
from mecheval.mixers.parts import ShortConv
from mecheval.sites import Tap
from mecheval.types import CANON, CANON_B, canon_letters

if TYPE_CHECKING:
    from mecheval.model.block import Block

TAPS = 4
"""Number of tokens that a Canon convolution sees, including the current one."""
NEEDS = {"B": "linear maps for q, k and v", "C": "an MLP", "D": "an MLP"}
"""What a layer must have for each Canon convolution; every layer has a place for A."""


class Canon(ShortConv):
    """h + conv(h) over (B, L, C), without bias, with Conv1d's initialisation, as upstream; its output is a site."""

    def __init__(self, site: str, channels: int) -> None:
        super().__init__(channels, TAPS, bias=False)
        self.out = Tap(site, "B L C", kind="short_conv")

    def forward(self, h: Tensor) -> Tensor:
        """(B, L, C) -> (B, L, C)."""
        return self.out(h + super().forward(h))

    def follow(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        """The forward hook of the module that it follows; a bound method, so that copies of a model have theirs."""
        if output.ndim != 3:
            raise UserError(f"canon: {type(module).__name__} must give (B, L, C) here (got {tuple(output.shape)}).")
        return self.forward(output)

    def state_size(self, length: int) -> int:
        """The tokens that it still reaches."""
        return min(length, TAPS - 1) * self.in_channels


def add_canon(blocks: Sequence[Block], given: str) -> None:
    """Add to each block the Canon convolutions of these letters that fit; a letter that fits nowhere is an error."""
    letters = canon_letters(given)
    if not letters:
        return
    there = {letter for block in blocks for letter in places(block)}
    for letter in letters:
        if letter not in there:
            fitting = ", ".join(each for each in CANON if each in there)
            why = f"{letter} needs {NEEDS[letter]}, which no layer of this model has"
            raise UserError(f"canon: {why}. Letters that apply: {fitting}.")
    for block in blocks:
        block.add_canon(place for letter, own in places(block).items() if letter in letters for place in own)


Slot = tuple[str, nn.Module, int]  # site inside the block, the module that is followed, its channels


def places(block: Block) -> dict[str, list[Slot]]:
    """Where Canon convolutions can stand in this block, by letter."""
    width = block.d_model
    found: dict[str, list[Slot]] = {"A": [("canon_a", block.norm1, width)]}
    if maps := _maps(block.mixer):
        sites = CANON_B[:1] if len(maps) == 1 else CANON_B[1:]
        found["B"] = [(site, linear, linear.out_features) for site, linear in zip(sites, maps, strict=True)]
    if block.has_mlp:
        found["C"] = [("canon_c", block.norm2, width)]
        found["D"] = [("canon_d", block.mlp.fc1, block.mlp.fc1.out_features)]
    return found


def _maps(mixer: nn.Module) -> list[nn.Linear]:
    """The maps that a mixer, ours or a custom one, names in `canon_b`."""
    found = [getattr(mixer, name, None) for name in getattr(mixer, "canon_b", ())]
    maps = [linear for linear in found if isinstance(linear, nn.Linear)]
    if len(maps) != len(found) or len(maps) not in (0, 1, 3):
        what = "one nn.Linear for q, k and v together, or three"
        raise UserError(f"canon: {type(mixer).__name__}.canon_b must name {what} (got {shown(mixer.canon_b)}).")
    return maps
