"""Positions by role, for a batch of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mecheval import rng
from mecheval.errors import UnknownName, UserError
from mecheval.types import ROLES, Batch

RANDOM = "random"
"""A control: a position of the body that is none of key, value and next_key, drawn for each document."""

ALL_ROLES = ("key", "value", "next_key", "divider", "query", "bos", RANDOM)
NOWHERE = -1
"""The position of a role that a document does not have; it takes no part in that role's numbers."""

Roles = Sequence[str | int] | Mapping[str, Tensor]


def positions(batch: Batch, roles: Roles, seed: int = 0) -> dict[str, Tensor]:
    """Name -> (n,) positions: of roles by name, of plain positions (counted from the end below 0), or as given."""
    device = batch.tokens.device
    if isinstance(roles, Mapping):
        return {str(name): _checked(batch, str(name), where).to(device) for name, where in roles.items()}
    found = {}
    for role in roles:
        if isinstance(role, int):
            where = torch.full_like(batch.lengths, role) if role >= 0 else batch.lengths + role
            found[str(role)] = _checked(batch, str(role), where)
        elif role == RANDOM:
            found[role] = _random(batch, seed).to(device)
        elif role in batch.roles:
            found[role] = batch.roles[role]
        else:
            raise UnknownName("role", role, [*ROLES, RANDOM])
    return found


def _checked(batch: Batch, name: str, where: Tensor) -> Tensor:
    if where.shape != (len(batch),):
        raise UserError(
            f"role {name!r}: give one position for each of {len(batch)} documents (got {tuple(where.shape)})."
        )
    if ((where >= batch.lengths) | (where < NOWHERE)).any():
        raise UserError(f"role {name!r}: a position lies outside its document.")
    return where


def _random(batch: Batch, seed: int) -> Tensor:
    """Uniform over the other positions of the body; it depends on the seed and the document's number alone."""
    key = rng.key(seed, "control")
    taken = torch.stack([batch.roles[role] for role in ("key", "value", "next_key")], dim=1).tolist()
    drawn = []
    for number, divider, others in zip(batch.index.tolist(), batch.roles["divider"].tolist(), taken, strict=True):
        free = [place for place in range(1, divider) if place not in others]
        draw = rng.below(rng.generator(rng.derived(key, number)), len(free)) if free else 0
        drawn.append(free[draw] if free else NOWHERE)
    return torch.tensor(drawn, dtype=torch.int64)
