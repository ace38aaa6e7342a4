"""The nouns that every room shares."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from mecheval.errors import UnknownName

PAD, BOS, EOS = 0, 1, 2
FIRST_SYMBOL = 3
"""Token ids below this are the frame; a task's own symbols start here. EOS is also the divider."""

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

Role = Literal["bos", "key", "value", "next_key", "divider", "query"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Named positions of a document, about its first query.

key: the item in the body that the query repeats; value: the answer in the body; next_key: the position after
the value's pair (ATR: after the value), which is the divider when nothing follows; query: after the divider.
"""

FACTS = ("pairs", "distance", "depth", "eligible")
"""Numbers about a document that studies condition on.

pairs: associations in the body (AR pairs, ATR edges); distance: value position minus key position;
depth: edges from the tree's root to the key (0 where there is no tree); eligible: queries it could have asked.
"""


def check_split(split: str) -> Split:
    """`split` itself, or an error that lists the splits."""
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    return split


@dataclass(frozen=True)
class Batch:
    """n documents, padded to the longest: `BOS body EOS query answer EOS`.

    `answers` and `roles` are about the first query. A document with k queries is trained on all of them:
    `targets[i, j]` is to be predicted from the logits at position `predict_at[i, j]`.
    """

    tokens: Tensor  # (n, L) int64, padded with 0
    lengths: Tensor  # (n,) int64, of whole documents
    answers: Tensor  # (n,) int64 token ids
    roles: dict[str, Tensor]  # name -> (n,) int64 positions
    predict_at: Tensor  # (n, k) int64 positions; the query itself, or the query-type token after it
    targets: Tensor  # (n, k) int64 token ids; targets[:, 0] = answers
    facts: dict[str, Tensor]  # name -> (n,) int64, see FACTS
    index: Tensor  # (n,) int64, the document's number in its stream
    parents: Tensor | None = None  # (n, L) int64: the position of each terminal's parent; -1 at the root and elsewhere

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice | Tensor) -> Self:
        """The same batch with only these documents (a slice, or row numbers), not cut to a shorter length."""

        def take(value: Tensor | dict[str, Tensor] | None) -> Tensor | dict[str, Tensor] | None:
            if value is None:
                return None
            return {name: v[rows] for name, v in value.items()} if isinstance(value, dict) else value[rows]

        return replace(self, **{f.name: take(getattr(self, f.name)) for f in fields(self)})

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""

        def move(value: Tensor | dict[str, Tensor] | None) -> Tensor | dict[str, Tensor] | None:
            if value is None:
                return None
            return {k: v.to(device) for k, v in value.items()} if isinstance(value, dict) else value.to(device)

        return replace(self, **{f.name: move(getattr(self, f.name)) for f in fields(self)})
