"""Names of positions, of which one position may have several, and their order."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mecheval.types import NOWHERE, Batch, first_of, has_role


def meet(one: Tensor, other: Tensor) -> Tensor:
    """(n,) whether two roles have a position in common, of one position (n,) or several (n, m) each."""
    first, second = (at.view(len(at), -1) for at in (one, other))
    return ((first[:, :, None] == second[:, None]) & (first != NOWHERE)[:, :, None]).flatten(1).any(1)


def distinct(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names that some document has at a position of its own: `key+1` is no name where the value is always there."""
    kept: dict[str, Tensor] = {}
    for role, at in named.items():
        if any(bool(meet(at, other)[has_role(at)].all()) for other in kept.values()):
            continue  # also one that no document has
        kept[role] = at
    return {role: at for role, at in kept.items() if bool(has_role(at).any())}


def value_comes_first(clean: Batch) -> bool:
    """Whether the value stands before the key in most documents, as in reverse recall."""
    meaning = clean.meaning
    if meaning.value is None:
        return False
    before = first_of(clean.roles[meaning.value]) < first_of(clean.roles[meaning.key])
    return float(before.double().mean()) > 0.5
