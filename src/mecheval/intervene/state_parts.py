"""Replaces or erases a part of a state: one head, or what a memory holds along one direction of its keys.

The state of a mixer with heads after position t consists of the states of its heads. A matrix memory (`memory.py`)
further consists of what each direction of keys recalls, k kᵀ S. A part is replaced after t in the memory alone, and the
recurrence continues from there with the inputs of its own document.

n documents, L tokens, H heads, K width of a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.intervene.answering import evaluating
from mecheval.intervene.edits import at_positions
from mecheval.intervene.effects import (
    BUDGET_MB,
    Documents,
    before_the_answer,
    check_same,
    columns_of,
    corruption_of,
    cut_after_prediction,
    document_slices,
    rows_of_documents,
    summarise,
)  # fmt: skip
from mecheval.intervene.grid import Likelihoods
from mecheval.intervene.memory import Form, Memory, form_of, run_mixer, seen_by
from mecheval.intervene.places import STATE, Listener, listening, positions
from mecheval.intervene.reading import answer_likelihood
from mecheval.intervene.state import Pass, check_layer, one_pass
from mecheval.model import LM
from mecheval.sites import Site, taps
from mecheval.types import NOWHERE, Batch, last_of

if TYPE_CHECKING:
    import pandas as pd

Direction = str | int | Tensor
"""A direction of keys: a role, which stands for the key that its position writes, or a tensor."""


def replace_state(
    lm: LM,
    clean: Batch,
    corrupted: Batch,
    layer: int,
    after: str | int,
    *,
    head: int | None = None,
    direction: Direction | None = None,
    per_document: bool = False,
    budget_mb: float = BUDGET_MB,
) -> pd.DataFrame:
    """Patch the clean state of one layer, or a part of it, into the corrupted run after the position of a role.

    Without `head` and `direction`, the whole state is replaced; with `head`, the state of one head, for any mixer with
    heads; with `direction`, only what the memory holds along one unit direction k of keys, S <- S - k kᵀ S + k kᵀ
    S_clean, for mixers with a matrix memory (delta_net, based, mamba). A direction is a role, which stands for its key
    in the clean run, or a tensor (K,), or (n, H, K) for each document and head; for Based, it is in the space of its
    features. Everything later is computed from the edited state. The columns are those of `interchange`, with one row,
    or one for each document.
    """
    check_same(clean, corrupted)
    part = _part(lm, clean, layer, after, head, direction)
    part.check(memory=direction is not None)
    parts = []
    with evaluating(lm), torch.no_grad():
        for rows in document_slices(lm, clean, budget_mb):
            source, base = (cut_after_prediction(batch[rows]) for batch in (clean, corrupted))
            parts.append(part[rows].replaced(source, base))
    original, lost, edited = (torch.cat(each) for each in zip(*parts, strict=True))
    found = Documents(
        [Site(layer, STATE, "state")], [str(after)], original, Likelihoods(lost, edited[None, None]),
        corruption=corruption_of(clean, corrupted),
    )  # fmt: skip
    return rows_of_documents(found, clean.index) if per_document else summarise(found)


def erase_state(
    lm: LM,
    batch: Batch,
    layer: int,
    after: str | int,
    *,
    head: int | None = None,
    direction: Direction | None = None,
    per_document: bool = False,
    budget_mb: float = BUDGET_MB,
) -> pd.DataFrame:
    """Erase the memory of one layer, or a part of it, after the position of a role: S <- 0, or S <- S - k kᵀ S.

    This is for mixers with a matrix memory; `head` and `direction` are as in `replace_state`, with keys of the same
    run. The columns are those of `ablate`, with one row, or one for each document with its number as `document`.
    """
    import pandas as pd

    part = _part(lm, batch, layer, after, head, direction)
    part.check(memory=True)
    parts = []
    with evaluating(lm), torch.no_grad():
        for rows in document_slices(lm, batch, budget_mb):
            parts.append(part[rows].erased(cut_after_prediction(batch[rows])))
    original, edited = (torch.cat(each) for each in zip(*parts, strict=True))
    each = pd.DataFrame({
        "document": batch.index.cpu().numpy(), "original": original.numpy(), "edited": edited.numpy(),
        "drop": (original - edited).numpy(), "n": 1,
    })  # fmt: skip
    columns: dict[str, Any] = {**columns_of(Site(layer, STATE, "state")), "role": str(after)}
    if per_document:
        return pd.concat([pd.DataFrame([columns] * len(each)), each], axis=1)
    there = each[each["edited"].notna()]
    return pd.DataFrame([{**columns, **there[["original", "edited", "drop"]].mean(), "n": len(there)}])


@dataclass(frozen=True, eq=False)
class _Part:
    """A part of the state of one layer, after a position of each document."""

    lm: LM
    layer: int
    until: Tensor  # (n,) the position; NOWHERE in a document without the role
    head: int | None
    direction: Tensor | None  # integers (n,): positions of the keys; otherwise (K,) or (n, H, K)

    def __getitem__(self, rows: slice) -> _Part:
        """The same part for some of the documents."""
        direction = self.direction
        if direction is not None and (not direction.is_floating_point() or direction.ndim == 3):
            direction = direction[rows]
        return _Part(self.lm, self.layer, self.until[rows], self.head, direction)

    @property
    def mixer(self) -> nn.Module:
        return self.lm.get_submodule(f"blocks.{self.layer}.mixer")

    def replaced(self, clean: Batch, corrupted: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Likelihoods (n,) of clean documents, of corrupted ones, and of these with the clean part of the state."""
        source, base = one_pass(self.lm, clean, self.layer), one_pass(self.lm, corrupted, self.layer)
        mixer, form, past = self.mixer, form_of(self.mixer), self._past(base.x)
        spliced = torch.where(past, source.x, base.x)  # the inputs that replace the mixer's whole state
        if form is None and self.head is None:
            return source.likelihood, base.likelihood, self._answer(base, corrupted, mixer(spliced))
        output = "heads" if form is None else form.output
        if form is None:
            out = seen_by(mixer, spliced, (output,))[output]
        else:
            seen = seen_by(mixer, base.x, form.inputs)
            if self.direction is None:  # a convolution still reaches the other document's inputs
                beyond = seen_by(mixer, spliced, form.inputs)
                seen = {name: torch.where(_like(past, x), x, beyond[name]) for name, x in seen.items()}
            memory = form.build(mixer, seen_by(mixer, source.x, form.inputs))
            out = self._read(form.build(mixer, seen), memory.after(self.until), memory)
        if self.head is not None and self.direction is None:
            own = seen_by(mixer, base.x, (output,))[output]
            out = self._one_head(own, out)
        return source.likelihood, base.likelihood, self._answer(base, corrupted, self._said(base, output, out))

    def erased(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Likelihoods (n,) of documents, and of the same with this part of the memory erased."""
        base, form = one_pass(self.lm, batch, self.layer), self._form()
        memory = form.build(self.mixer, seen_by(self.mixer, base.x, form.inputs))
        out = self._read(memory, memory.empty(), memory)
        return base.likelihood, self._answer(base, batch, self._said(base, form.output, out))

    def _form(self) -> Form:
        form = form_of(self.mixer)
        if form is None:
            kind = type(self.mixer).__name__
            raise UserError(f"layer {self.layer} ({kind}) has no matrix memory; delta_net, based and mamba have one.")
        return form

    def check(self, *, memory: bool) -> None:
        """Raise an error if the layer has no such part or, with `memory`, no matrix memory."""
        if memory:
            self._form()
        if self.head is None:
            return
        heads = getattr(self.mixer, "num_heads", None) if "heads" in dict(taps(self.mixer)) else None
        if heads is None:
            raise UserError(f"layer {self.layer} ({type(self.mixer).__name__}) has no heads; leave out head.")
        if not 0 <= self.head < heads:
            raise UserError(f"layer {self.layer} has heads 0 to {heads - 1} (got {self.head}).")

    def _past(self, x: Tensor) -> Tensor:
        """(n, L, 1) whether a position contributes to the replaced state."""
        return (torch.arange(x.shape[1], device=x.device) <= self.until[:, None])[..., None]

    def _read(self, memory: Memory, target: Tensor, keys: Memory) -> Tensor:
        """What leaves the memory if this part of it is replaced by that of `target` (n, H, K, V)."""
        along = None if self.direction is None else self._unit(keys)

        def change(S: Tensor) -> Tensor:
            more = target - S
            if along is not None:
                more = along[..., None] * torch.einsum("nhk,nhkv->nhv", along, more)[:, :, None]
            if self.head is not None and self.direction is not None:
                more = self._one_head(torch.zeros_like(more)[:, None], more[:, None])[:, 0]
            return S + more

        return memory.read(self.until, change)

    def _unit(self, memory: Memory) -> Tensor:
        """(n, H, K) directions of unit length."""
        assert self.direction is not None
        n, _, heads, width = memory.keys.shape
        if not self.direction.is_floating_point():
            along = at_positions(memory.keys, 1, self.direction)
        elif self.direction.shape in ((width,), (n, heads, width)):
            along = self.direction.to(memory.keys).expand(n, heads, width)
        else:
            raise UserError(
                f"direction: give a role, or a tensor ({width},) or ({n}, {heads}, {width}) "
                f"(got {tuple(self.direction.shape)})."
            )
        length: Tensor = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
        return along / length.clamp(min=torch.finfo(along.dtype).tiny)

    def _one_head(self, own: Tensor, other: Tensor) -> Tensor:
        """`own` (n, L, H, ...) or (n, L, HE), with one head replaced by that of `other`."""
        heads = int(getattr(self.mixer, "num_heads", 1))
        shape = own.shape
        mixed = own.reshape(*shape[:2], heads, -1).clone()
        mixed[:, :, self.head] = other.reshape(*shape[:2], heads, -1)[:, :, self.head]
        return mixed.view(shape)

    def _said(self, base: Pass, output: str, out: Tensor) -> Tensor:
        """The mixer's output (n, L, D) if the activation at the tap `output` is `out`."""
        return run_mixer(self.mixer, base.x, {output: lambda _: out})

    def _answer(self, base: Pass, batch: Batch, said: Tensor) -> Tensor:
        """p(answer) (n,) if the mixer's output is `said` after the position and unchanged up to there."""
        mixed = torch.where(self._past(base.x), base.y, said)
        listeners: dict[str, Listener] = {f"blocks.{self.layer}.mixer.output": lambda _: mixed}
        with listening(self.lm, listeners):
            logits = self.lm.resume(self.layer, base.h, batch.predict_at[:, 0])
        found = answer_likelihood(logits, batch.answers)
        missing = self.until == NOWHERE
        if self.direction is not None and not self.direction.is_floating_point():
            missing = missing | (self.direction == NOWHERE)
        return torch.where(missing.cpu(), torch.nan, found)


def _like(past: Tensor, x: Tensor) -> Tensor:
    """`past` (n, L, 1) with as many axes as x (n, L, ...)."""
    return past.view(*past.shape[:2], *[1] * (x.ndim - 2))


def _part(lm: LM, batch: Batch, layer: int, after: str | int, head: int | None, direction: Direction | None) -> _Part:
    """The part of a state that the arguments name, after checking them."""
    check_layer(lm, layer)
    where = before_the_answer(batch, positions(batch, [after]))[str(after)]
    until = last_of(where)
    if isinstance(direction, Tensor) and not direction.is_floating_point():
        raise UserError("direction: give a role, or a tensor of floats.")
    if isinstance(direction, str | int):
        [direction] = positions(batch, [direction]).values()
        if direction.ndim > 1:
            raise UserError("direction: give a role of one position, such as value.")
    return _Part(lm, layer, until, head, direction)
