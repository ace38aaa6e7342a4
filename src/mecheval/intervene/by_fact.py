"""Verdicts on groups of documents: a model may recall in one way where key and value are close, and else in another."""

from __future__ import annotations

import torch
from torch import nn

from mecheval.errors import UnknownName
from mecheval.intervene.gather import evidence
from mecheval.intervene.groups import groups
from mecheval.intervene.mechanism import Depths, Rule
from mecheval.intervene.sentences import Verdict
from mecheval.types import Batch

LEAST = 64
"""Smallest number of documents in a group; not all of them count for a verdict."""


def verdicts_by(
    model: nn.Module,
    clean: Batch,
    corrupted: Batch,
    fact: str,
    rule: Rule = Rule(),  # noqa: B008 (frozen)
    *,
    depths: Depths | None = None,
    least: int = LEAST,
) -> dict[str, Verdict]:
    """The verdict on each group of documents with the same value of a fact, such as `distance`, in ascending order.

    A verdict that is *mixed* over all documents can be a clear one in each group. Values that fewer than `least`
    documents have are put together with the next ones ("4 to 6"). `model` and `depths` are as in `evidence`.
    """
    if fact not in clean.facts:
        raise UnknownName("fact of these documents", fact, clean.facts)
    found = {}
    for said, some in groups(clean.facts[fact].cpu().numpy(), least).items():
        rows = torch.from_numpy(some)
        found[said] = evidence(model, clean[rows], corrupted[rows], depths=depths).verdict(rule)
    return found
