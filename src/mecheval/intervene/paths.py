"""Path patching: the effect of one place on the answer through the input of another place alone.

It takes three runs. The clean run gives the sender's activation at a role. A run on the corrupted documents with that
activation patched in, and with the outputs of all mixers and MLPs frozen, gives the receiver's input, which has changed
only along the direct path. A last run on the corrupted documents, with the receiver's input replaced by that, gives the
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mecheval.errors import UnknownName, UserError
from mecheval.intervene.answering import answering, evaluating
from mecheval.intervene.edits import Edit, Intervention, Take, capture, patch
from mecheval.intervene.effects import (
    BUDGET_MB,
    Documents,
    asked_sites,
    before_the_answer,
    check_same,
    corruption_of,
    cut_after_prediction,
    document_slices,
    summarise,
)  # fmt: skip
from mecheval.intervene.grid import Likelihoods, run_edits
from mecheval.intervene.places import Listener, Roles, listening, positions
from mecheval.intervene.reading import MEASURES, Measure, read
from mecheval.model import LM
from mecheval.types import Batch, has_role

if TYPE_CHECKING:
    import pandas as pd

WRITERS = ("mixer.output", "mlp.output")
"""The parts of a block that are added to the residual stream."""


def path(
    model: nn.Module,
    clean: Batch,
    corrupted: Batch,
    senders: Sequence[str],
    receivers: Sequence[str],
    roles: Roles | None = None,
    *,
    frozen: Sequence[str] | None = None,
    measure: str = "likelihood",
    seed: int = 0,
    budget_mb: float = BUDGET_MB,
) -> pd.DataFrame:
    """A row for each sender, role and receiver: what the clean sender restores through the receiver alone.

    A sender is a site, which is replaced at the role; a receiver is the input of a mixer, of an MLP or of the head (the
    last block's `output`), or a mixer's q, k or v. The columns are those of `interchange` for the sender, and
    `receiver`. The outputs `frozen` stay as in the corrupted run between sender and receiver; by default, they are
    those of all mixers and MLPs of an `LM`, and for any other module you name them. Leave one out to let the path lead
    through it, too. `measure` is as in `attribute`; in a model that is linear up to its logits, the effects on the
    logit of all paths from a sender add up to the sender's effect.
    """
    import pandas as pd

    check_same(clean, corrupted)
    if measure not in MEASURES:
        raise UnknownName("measure", measure, MEASURES)
    model = answering(model)
    if frozen is None:
        if not isinstance(model, LM):
            raise UserError("path: for a module that is not an LM, name the outputs that do not change as `frozen`.")
        frozen = [site for site in model.sites() if site.part in WRITERS]
    sends, receives = asked_sites(model, senders, heads=False), asked_sites(model, receivers, heads=False)
    if both := [site for site in receives if site in frozen]:
        raise UserError(f"path: {both[0]} is frozen, so nothing reaches it; a receiver is an input.")
    where = before_the_answer(clean, positions(clean, roles, seed))
    parts = []
    with evaluating(model):
        for rows in document_slices(model, clean, budget_mb):
            own, base = (cut_after_prediction(batch[rows]) for batch in (clean, corrupted))
            there = {role: at[rows] for role, at in where.items()}
            budget = int(budget_mb * 2**20)
            parts.append(_slice(model, own, base, sends, receives, there, frozen, MEASURES[measure], budget))
    original, lost, restored = (torch.cat(each, dim=-1) for each in zip(*parts, strict=True))
    kind = corruption_of(clean, corrupted)
    tables = [
        summarise(Documents(sends, list(where), original, Likelihoods(lost, edited), corruption=kind)).assign(
            receiver=str(receiver)
        )
        for receiver, edited in zip(receives, restored, strict=True)
    ]
    return pd.concat(tables, ignore_index=True)


@torch.no_grad()
def _slice(
    model: nn.Module, clean: Batch, corrupted: Batch, senders: Sequence[str], receivers: Sequence[str],
    where: dict[str, Tensor], frozen: Sequence[str], measure: Measure, budget: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The measure of clean and corrupted documents (n,), and after each path (receivers, senders, roles, n)."""
    original, values = read(model, clean, senders, where, measure)[:2]
    still = capture(model, corrupted, frozen)
    everywhere = {"all": torch.arange(clean.tokens.shape[1], device=clean.tokens.device).expand(len(clean), -1)}
    cells = [((receiver, "all"),) for receiver in receivers]
    restored = torch.full((len(receivers), len(senders), len(where), len(clean)), torch.nan, dtype=torch.float64)
    for s, sender in enumerate(senders):
        for r, (role, at) in enumerate(where.items()):
            sent = Intervention(sender, "sent", Take(values[sender][role]))
            known = replace(corrupted, roles={"sent": at})
            with listening(model, {site: _always(x) for site, x in still.items()}), patch(model, [sent], known):
                got = capture(model, corrupted, receivers, everywhere)
            there = has_role(at).cpu()

            def edits(site: str, role: str, got: dict[str, dict[str, Tensor]] = got) -> Edit:
                return Take(got[site][role])

            edited = run_edits(model, corrupted, edits, cells, everywhere, budget, measure)[1]
            restored[:, s, r, there] = edited[:, there]
    lost = read(model, corrupted, [], {}, measure)[0]
    return original, lost, restored


def _always(value: Tensor) -> Listener:
    return lambda _: value
