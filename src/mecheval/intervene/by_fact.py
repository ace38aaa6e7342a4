"""Verdicts on groups of documents: a model may recall in one way where key and value are close, and else in another."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from mecheval.errors import UnknownName
from mecheval.intervene.effects import interchange
from mecheval.intervene.evidence import Verdict, verdict
from mecheval.intervene.mechanism import Depths, Rule
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
    documents have are put together with the next ones ("4 to 6"). `model` and `depths` are as in `interchange`.
    """
    if fact not in clean.facts:
        raise UnknownName("fact of these documents", fact, clean.facts)
    return {
        said: verdict(interchange(model, clean[rows], corrupted[rows], [], depths=depths), rule)
        for said, rows in groups(clean.facts[fact].tolist(), least).items()
    }


def groups(values: list[int], least: int) -> dict[str, torch.Tensor]:
    """The rows (n,) of each group of at least `least` equal or neighbouring values, by what the group is called."""
    every, rows = torch.tensor(values), torch.tensor(values).argsort(stable=True)
    ends = [end for end in range(1, len(rows)) if every[rows[end - 1]] != every[rows[end]]]
    bounds = [0]
    for end in ends:
        if end - bounds[-1] >= least <= len(rows) - end:  # what is left is a group, too
            bounds.append(end)
    found = {}
    for start, end in itertools.pairwise([*bounds, len(rows)]):
        some = rows[start:end]
        low, high = int(every[some[0]]), int(every[some[-1]])
        found[str(low) if low == high else f"{low} to {high}"] = some.sort().values
    return found
