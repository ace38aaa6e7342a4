"""The answers of a model to one document, without and with each intervention."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mecheval.errors import UserError
from mecheval.intervene.answering import evaluating
from mecheval.intervene.edits import Intervention, Take, capture, patch
from mecheval.intervene.places import place, positions
from mecheval.model import LM
from mecheval.sites import Site
from mecheval.tasks import Task
from mecheval.tasks.base import places_of
from mecheval.types import NOWHERE, Batch, first_of, has_role


@dataclass(frozen=True)
class Answer:
    """A possible answer, its probability, and whether it is right."""

    symbol: str
    p: float
    right: bool


Answers = tuple[Answer, ...]
"""The likeliest answers, in descending order, and the right one, which comes last if it is not among them."""


@dataclass(frozen=True)
class Patched:
    """The answers after patching the clean activation of one site at one role into the corrupted run."""

    site: Site
    role: str
    position: int | None  # the first position of the role; None, with no answers, if the document lacks the role
    answers: Answers


@dataclass(frozen=True)
class Explanation:
    """One document under interventions. The corruption replaced `key`, whose role is `role`, by `substitute`."""

    key: str
    substitute: str
    clean: Answers
    corrupted: Answers
    patched: tuple[Patched, ...]  # site by site, role by role
    role: str = "key"


def explain(
    lm: LM, task: Task, clean: Batch, corrupted: Batch, sites: Sequence[str], roles: Sequence[str], top: int = 3
) -> Explanation:
    """The `top` likeliest answers to the first query of one document, after each single intervention.

    `clean` and `corrupted` are batches with just this document, such as `clean[3:4]` and `corrupted[3:4]`.
    """
    if len(clean) != 1 or len(corrupted) != 1:
        raise UserError(f"explain: give one document (got {len(clean)} clean and {len(corrupted)} corrupted).")
    if top < 1:
        raise UserError(f"explain: top must be positive (got {top}).")
    where = positions(clean, roles)
    right = int(clean.answers[0])

    def answers(batch: Batch) -> Answers:
        with torch.no_grad():
            logits = lm(batch.tokens, at=batch.predict_at[:, 0])[0]
        return likeliest(task, logits, right, top)

    with evaluating(lm):
        patched = []
        for site, role, logits in patched_logits(lm, clean, corrupted, sites, roles):
            position = int(first_of(where[role]))
            there = position != NOWHERE
            said = likeliest(task, logits[0], right, top) if there else ()
            patched.append(Patched(site, role, position if there else None, said))
        key = places_of(clean.roles[clean.meaning.key], 0)
        replaced, substitute = (
            " ".join(task.symbol(int(token)) for token in batch.tokens[0, key]) for batch in (clean, corrupted)
        )
        return Explanation(replaced, substitute, answers(clean), answers(corrupted), tuple(patched), clean.meaning.key)


@torch.no_grad()
def patched_logits(
    lm: LM, clean: Batch, corrupted: Batch, sites: Sequence[str], roles: Sequence[str]
) -> Iterator[tuple[Site, str, Tensor]]:
    """Logits (n, V) at the first query after each single intervention, site by site and role by role.

    Only documents whose answer the intervention can change are run again; before the key, for example, nothing differs.
    """
    where, at = positions(clean, roles), corrupted.predict_at[:, 0]
    source, own = (capture(lm, batch, sites, where) for batch in (clean, corrupted))
    before = lm(corrupted.tokens, at=at)
    for site, role in itertools.product((place(lm, name).site for name in sites), where):
        new, places = source[site][role], where[role]
        reached = has_role(places)
        if site.block == lm.n_layers - 1 and site.part in lm.settled():
            reached = reached & (places == (at if places.ndim == 1 else at[:, None])).view(len(at), -1).any(1)
        changed = ((new != own[site][role]).flatten(1).any(1) & reached).nonzero()[:, 0]
        logits = before.clone()
        if len(changed):
            some = replace(corrupted[changed], roles={role: places[changed]})
            with patch(lm, [Intervention(site, role, Take(new[changed]))], some):
                logits[changed] = lm(some.tokens, at=some.predict_at[:, 0])
        yield site, role, logits


def likeliest(task: Task, logits: Tensor, right: int, top: int) -> Answers:
    """The `top` likeliest answers and the right one, from logits (V,)."""
    return likeliest_of_each(task, logits[None], [right], top)[0]


def likeliest_of_each(task: Task, logits: Tensor, right: Sequence[int], top: int) -> list[Answers]:
    """`likeliest` for each of n documents, from logits (n, V) and the right tokens.

    Answers whose probabilities agree to a millionth are ordered by token id, so that rounding errors play no role.
    """
    p = logits.double().softmax(-1).cpu()
    size = p.shape[-1]
    rank = p.mul(1e6).round().mul(size) - torch.arange(size)  # whole numbers, no two of them equal
    found = []
    for row, tokens in enumerate(rank.topk(min(top, size)).indices.tolist()):
        listed = tokens if right[row] in tokens else [*tokens, right[row]]
        found.append(tuple(Answer(task.symbol(token), float(p[row, token]), token == right[row]) for token in listed))
    return found
