"""The smallest set of places whose clean activations together restore the answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from mecheval.errors import UserError
from mecheval.intervene.answering import answering
from mecheval.intervene.edits import Edit, Take
from mecheval.intervene.effects import BUDGET_MB, before_the_answer, check_same, cut_after_prediction, document_slices
from mecheval.intervene.grid import Cell, run_edits
from mecheval.intervene.places import positions
from mecheval.intervene.reading import read
from mecheval.types import Batch

EXACT = 3
"""Largest size of sets of which all combinations are tried; larger sets are found greedily."""
MOST_TRIED = 20_000
"""Largest number of combinations in an exact search; beyond it, sets are found greedily."""


class Places(NamedTuple):
    """A set of (site, role) and the share that it restores."""

    cells: tuple[Cell, ...]
    share: float
    smallest: bool  # whether no smaller set restores as much; False if the set was found greedily


def smallest_set(
    model: nn.Module,
    clean: Batch,
    corrupted: Batch,
    cells: Sequence[tuple[str, str]],
    *,
    share: float = 0.9,
    budget_mb: float = BUDGET_MB,
) -> Places:
    """The smallest set of `cells`, (site, role) each, that restores this share of the answer's likelihood.

    Among sets of the same size, the one that restores most is returned. If all cells together restore less than this
    share, all of them are returned.
    """
    check_same(clean, corrupted)
    if not cells or not 0 < share <= 1:
        raise UserError(f"smallest_set: name at least one (site, role), and a share above 0 and up to 1 (got {share}).")
    every = tuple(dict.fromkeys((str(site), role) for site, role in cells))
    model = answering(model)
    where = before_the_answer(clean, positions(clean, list(dict.fromkeys(role for _, role in every))))

    def best(sets: Iterable[tuple[Cell, ...]]) -> tuple[float, tuple[Cell, ...]]:
        tried = list(sets)
        found = _restored(model, clean, corrupted, tried, where, budget_mb)
        most = max(range(len(tried)), key=found.__getitem__)
        return found[most], tried[most]

    for size in range(1, min(EXACT, len(every)) + 1):
        sets = list(itertools.islice(itertools.combinations(every, size), MOST_TRIED + 1))
        if len(sets) > MOST_TRIED:
            break
        found, chosen = best(sets)
        if found >= share:
            return Places(chosen, found, smallest=True)
    chosen = ()
    found = 0.0
    while len(chosen) < len(every) and found < share:
        found, chosen = best((*chosen, cell) for cell in every if cell not in chosen)
    return Places(chosen, found, smallest=False)


@torch.no_grad()
def _restored(
    model: nn.Module, clean: Batch, corrupted: Batch, sets: Sequence[Sequence[Cell]], where: dict[str, torch.Tensor],
    budget_mb: float,
) -> list[float]:  # fmt: skip
    """The share of what was lost that each set restores, over the documents that have all its roles."""
    sites = list(dict.fromkeys(site for cells in sets for site, _ in cells))
    parts = []
    for rows in document_slices(model, clean, budget_mb):
        there = {role: at[rows] for role, at in where.items()}
        own, base = (cut_after_prediction(batch[rows]) for batch in (clean, corrupted))
        original, values = read(model, own, sites, there)[:2]

        def edits(site: str, role: str, values: dict[str, dict[str, torch.Tensor]] = values) -> Edit:
            return Take(values[site][role])

        lost, edited = run_edits(model, base, edits, sets, there, int(budget_mb * 2**20))
        parts.append((original - lost, edited - lost))
    gap = torch.cat([part[0] for part in parts])
    effect = torch.cat([part[1] for part in parts], dim=1)
    lost_there = torch.where(effect.isnan(), torch.nan, gap)
    shares = effect.nansum(1) / lost_there.nansum(1).clamp(min=1e-9)
    return [float(each) for each in shares]
