"""The state of a mixer after every position, and where an association enters it.

The state after position t is everything that a mixer carries from the positions up to t to later ones: a recurrent
memory, the keys and values of attention, and the inputs that a convolution still reaches. `grid.py` describes how the
whole state of any mixer is replaced.

n documents, L tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mecheval.errors import UserError
from mecheval.intervene.answering import evaluating
from mecheval.intervene.effects import (
    BUDGET_MB,
    check_same,
    corruption_of,
    cut_after_prediction,
    document_slices,
)  # fmt: skip
from mecheval.intervene.grid import document_bytes
from mecheval.intervene.places import Listener, listening, positions
from mecheval.intervene.reading import MIN_GAP, answer_likelihood, likelihood
from mecheval.model import LM
from mecheval.types import Batch, first_of, last_of

if TYPE_CHECKING:
    import pandas as pd

BEFORE = 2
"""Number of positions before the key at which a sweep begins."""


def landmarks(batch: Batch) -> tuple[str, str]:
    """Roles with rows of their own in a sweep, because their distance from the key differs between documents.

    They are the last named place before the query (in a framed document, the divider) and the query.
    """
    places = [role for role in batch.meaning.places if role in batch.roles]
    return places[-1] if places else f"{batch.meaning.query}-1", batch.meaning.query


class Pass(NamedTuple):
    """One pass over documents, with what is needed to continue from one block's mixer."""

    likelihood: Tensor  # (n,) likelihood of the answer
    h: Tensor  # (n, L, D) input of the block
    x: Tensor  # (n, L, D) input of its mixer
    y: Tensor  # (n, L, D) output of its mixer


def one_pass(lm: LM, batch: Batch, layer: int) -> Pass:
    """Run documents, and keep the input of one block and the input and output of its mixer."""
    seen: dict[str, Tensor] = {}

    def keeper(name: str) -> Listener:
        return lambda value: seen.setdefault(name, value)

    names = ("input", "mixer.input", "mixer.output")
    with listening(lm, {f"blocks.{layer}.{name}": keeper(name) for name in names}):
        found = likelihood(lm, batch)
    return Pass(found, *(seen[name] for name in names))


def check_layer(lm: object, layer: int) -> int:
    """`layer` itself, or an error if the model is not an `LM` or has no such layer."""
    if not isinstance(lm, LM):
        raise UserError("the state of a mixer can only be replaced in an LM; the mixers of other modules are unknown.")
    if not 0 <= layer < lm.n_layers:
        raise UserError(f"there is no layer {layer}; the model has layers 0 to {lm.n_layers - 1}.")
    return layer


def state_sweep(
    lm: LM, clean: Batch, corrupted: Batch, layers: Sequence[int] | None = None, *, budget_mb: float = BUDGET_MB
) -> pd.DataFrame:
    """What the clean state after each position restores; where the share rises, the association enters the state.

    Documents are aligned at their keys: a row with role "key" and offset 3 is about the state after the third token
    after the key, in all documents in which that token comes before the prediction. The rows of the `landmarks` are
    about all documents; a state after the position of the prediction comes too late and restores nothing.

    Columns: layer, role, offset, corruption; original, corrupted, restored (mean likelihoods of the answer), share =
    (restored - corrupted) / (original - corrupted), n (documents). The layers are replaced one at a time.
    """
    import pandas as pd

    asked = [check_layer(lm, layer) for layer in (range(lm.n_layers) if layers is None else layers)]
    check_same(clean, corrupted)
    with evaluating(lm), torch.no_grad():
        parts = [
            _sweep(lm, cut_after_prediction(clean[rows]), cut_after_prediction(corrupted[rows]), asked, budget_mb)
            for rows in document_slices(lm, clean, budget_mb)
        ]
    original, lost = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    width = max(part[2].shape[2] for part in parts)
    padded = [F.pad(part[2], (0, width - part[2].shape[2]), value=torch.nan) for part in parts]
    restored = torch.cat(padded, dim=1)  # (layers, n, L)
    own, marked = clean.meaning.key, _marked(clean)
    key, end = last_of(clean.roles[own]).cpu(), clean.predict_at[:, 0].cpu()
    places = {(own, o): key + o for o in range(-BEFORE, int((end - key).max()))}
    places |= {(role, 0): where.cpu() for role, where in marked.items()}
    rows = []
    for i, layer in enumerate(asked):
        for (role, offset), where in places.items():
            there = (where >= 0) & ((where < end) if role == own else (where <= end)) & (key >= 0)
            if not there.any():
                continue
            after = restored[i][there, where[there]]
            means = [float(p.mean()) for p in (original[there], lost[there], after)]
            gap = means[0] - means[1]
            rows.append({
                "layer": layer, "role": role, "offset": offset, "corruption": corruption_of(clean, corrupted),
                "original": means[0], "corrupted": means[1], "restored": means[2],
                "share": (means[2] - means[1]) / gap if gap >= MIN_GAP else float("nan"), "n": int(there.sum()),
            })  # fmt: skip
    return pd.DataFrame(rows)


def _marked(batch: Batch) -> dict[str, Tensor]:
    """Landmark -> its last position (n,)."""
    return {role: last_of(where) for role, where in positions(batch, landmarks(batch)).items()}


def _sweep(
    lm: LM, clean: Batch, corrupted: Batch, layers: Sequence[int], budget_mb: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Likelihoods of clean and corrupted documents (n,), and with the clean state after each position, (layers, n, L).

    Only positions from shortly before the key on are run, and only those up to which the mixer's inputs differ.
    """
    length = clean.tokens.shape[1]
    position, end = torch.arange(length, device=clean.tokens.device), clean.predict_at[:, 0]
    key = first_of(clean.roles[clean.meaning.key])
    wanted = (position >= key[:, None] - BEFORE) & (position < end[:, None])  # (n, L)
    for where in _marked(clean).values():
        wanted |= position == where[:, None]
    found = []
    for layer in layers:
        source, base = one_pass(lm, clean, layer), one_pass(lm, corrupted, layer)
        restored = base.likelihood[:, None].repeat(1, length)
        differ = (source.x != base.x).any(-1).cumsum(1) > 0
        documents, until = (wanted & differ & (position < end[:, None])).nonzero(as_tuple=True)
        for some in torch.arange(len(documents)).split(max(1, int(budget_mb * 2**20) // document_bytes(lm, length))):
            rows, past = documents[some], (position <= until[some, None])[..., None]
            read, said = torch.where(past, source.x[rows], base.x[rows]), base.y[rows]
            listeners: dict[str, Listener] = {
                f"blocks.{layer}.mixer.input": lambda x, read=read: read,  # type: ignore[misc]
                f"blocks.{layer}.mixer.output": lambda y, past=past, said=said: torch.where(past, said, y),  # type: ignore[misc]
            }
            with listening(lm, listeners):
                logits = lm.resume(layer, base.h[rows], end[rows])
            restored[rows.cpu(), until[some].cpu()] = answer_likelihood(logits, clean.answers[rows])
        found.append(restored)
    return source.likelihood, base.likelihood, torch.stack(found)
