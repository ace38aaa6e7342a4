"""What a model computes for variants of the same documents, read once for all interventions on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mecheval.intervene.edits import at_positions
from mecheval.intervene.places import Listener, listening, place
from mecheval.intervene.reading import Observed, Positions, answer_likelihood, read_each, right
from mecheval.model import LM
from mecheval.types import Batch

Floats = NDArray[np.float64]


class Readings:
    """The activations of variants of the same documents (clean, corrupted, ...), slice by slice.

    A variant of an `LM` is read in one pass, which keeps the input of every block; sites inside a block are read by
    running this block alone. What has been read is kept while `room` (in bytes) is left, and else read again. Other
    modules are run whenever activations are asked for.
    """

    def __init__(
        self, model: nn.Module, batches: Mapping[str, Batch], slices: Sequence[slice], at_once: int, room: int
    ) -> None:
        self.model, self.batches, self.slices, self.at_once, self.room = model, batches, slices, at_once, room
        self.passes: dict[tuple[str, int], Observed] = {}
        self.inside: dict[tuple[str, int, str], Tensor] = {}

    def answered(self, names: Sequence[str]) -> dict[str, tuple[Floats, Floats]]:
        """Likelihood of the answer, and whether it is the likeliest token, (n,) each, by variant."""
        parts = [self._read(names, number) for number in range(len(self.slices))]
        empty = [torch.empty(2, 0, dtype=torch.float64)]
        found = {name: torch.cat([*empty, *(part[name].likelihood for part in parts)], dim=1).numpy() for name in names}
        return {name: (each[0], each[1]) for name, each in found.items()}

    @torch.no_grad()
    def of(self, names: Sequence[str], number: int, sites: Sequence[str], where: Positions) -> dict[str, Observed]:
        """The readings of slice `number`, with the activations of these sites at these roles, by variant."""
        if not isinstance(self.model, LM):
            batches = {name: self.batches[name][self.slices[number]] for name in names}
            return read_each(self.model, batches, sites, where, self.at_once)
        found = {}
        for name, whole in self._read(names, number).items():
            each = {site: self._activation(self.model, name, number, site, sites, whole.inputs) for site in sites}
            axes = {site: place(self.model, site).axis for site in sites}
            values = {
                site: {role: at_positions(x, axes[site], at) for role, at in where.items()} for site, x in each.items()
            }
            found[name] = Observed(whole.likelihood[0], values, whole.inputs)
        return found

    def _read(self, names: Sequence[str], number: int) -> dict[str, Observed]:
        """One pass over each variant, with both measures (2, n) of the answer."""
        missing = [name for name in names if (name, number) not in self.passes]
        batches = {name: self.batches[name][self.slices[number]] for name in missing}
        read = read_each(self.model, batches, [], {}, self.at_once, both) if missing else {}
        found = {name: read[name] if name in read else self.passes[name, number] for name in names}
        for name, each in read.items():
            if self._fits(*each.inputs.values()):
                self.passes[name, number] = each
        return found

    def _activation(
        self, lm: LM, name: str, number: int, site: str, sites: Sequence[str], inputs: Mapping[int, Tensor]
    ) -> Tensor:
        """The whole activation (n, ..., L, ...) of a site; those of the same block are read together."""
        found = place(lm, site).site
        assert found.block is not None  # all sites of an LM are inside its blocks
        if found.part == "input":
            return inputs[found.block]
        if (kept := self.inside.get((name, number, site))) is not None:
            return kept
        seen: dict[str, Tensor] = {}

        def reader(site: str) -> Listener:
            return lambda x: seen.setdefault(site, x)

        same = [each for each in sites if (at := place(lm, each).site).block == found.block and at.part != "input"]
        with listening(lm, {each: reader(each) for each in same}):
            lm.blocks[found.block](inputs[found.block])
        for each, x in seen.items():
            if self._fits(x):
                self.inside[name, number, each] = x
        return seen[site]

    def _fits(self, *kept: Tensor) -> bool:
        """Whether there is room for these, which is then taken."""
        size = sum(x.numel() * x.element_size() for x in kept)
        if size > self.room:
            return False
        self.room -= size
        return True


def both(logits: Tensor, answers: Tensor) -> Tensor:
    """(2, n) the likelihood of the answer, and whether it is the likeliest token."""
    return torch.stack([answer_likelihood(logits, answers), right(logits, answers)])
