"""Documents: one as a task writes it, and many stored compactly, which only a batch pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mecheval.types import BOS, EOS, FACTS, PAD, ROLES, Batch

if TYPE_CHECKING:  # slow to import
    from torch import Tensor

Ints = NDArray[np.integer]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Query:
    """One question about a body; positions count from the body's first token."""

    token: int  # what is asked
    answer: int  # the token to predict
    key: int
    value: int
    next_key: int  # may be the body's length, which is the divider
    kind: int | None = None  # a query-type token between query and answer, in tasks with several types
    eligible: int = 0  # how many queries the document could have asked


@dataclass(frozen=True)
class Document:
    """One document before it is framed as `BOS body EOS query answer ... EOS`."""

    body: Sequence[int]
    queries: Sequence[Query]
    parents: Sequence[int] | None = None  # body position of each terminal's parent, -1 at the root
    rules: Sequence[int] | None = None  # number of the grammar rule that each terminal heads, -1 at leaves
    pairs: int = 0
    depth: int = 0


@dataclass(frozen=True)
class Corpus:
    """n documents end to end: document i is tokens[starts[i]:starts[i + 1]], and positions count from its BOS."""

    tokens: Ints  # (total,)
    starts: NDArray[np.int64]  # (n + 1,)
    roles: Ints  # (n, len(ROLES))
    predict_at: Ints  # (n, k)
    targets: Ints  # (n, k)
    facts: Ints  # (n, len(FACTS))
    first: int = 0  # number of the first document in its stream
    parents: Ints | None = None  # (total,), -1 at roots and frames
    rules: Ints | None = None  # (total,), -1 at leaves and frames

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        """Memory of the documents in bytes."""
        arrays = (self.tokens, self.starts, self.roles, self.predict_at, self.targets, self.facts)
        return sum(a.nbytes for a in (*arrays, self.parents, self.rules) if a is not None)

    def batch(self, rows: slice | Sequence[int] | Ints = slice(None)) -> Batch:
        """The documents of these rows, padded to the longest of them."""
        import torch  # slow to import, and not needed to draw a corpus

        chosen = np.arange(len(self))[rows]
        length = np.diff(self.starts)[chosen]

        def padded(values: Ints, fill: int) -> Tensor:
            return torch.from_numpy(self._padded(values, chosen, length, fill))

        def plain(values: Ints) -> Tensor:
            return torch.from_numpy(values[chosen].astype(np.int64))

        targets = plain(self.targets)
        return Batch(
            tokens=padded(self.tokens, PAD),
            lengths=torch.from_numpy(length),
            answers=targets[:, 0].clone(),
            roles={role: plain(self.roles[:, i]) for i, role in enumerate(ROLES)},
            predict_at=plain(self.predict_at),
            targets=targets,
            facts={fact: plain(self.facts[:, i]) for i, fact in enumerate(FACTS)},
            index=torch.from_numpy(chosen + self.first),
            parents=None if self.parents is None else padded(self.parents, -1),
        )

    def questions(self, rows: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Tokens padded after each document's last prediction (B, L), positions (B, k) and targets (B, k) of rows."""
        at = self.predict_at[rows].astype(np.int64)
        return self._padded(self.tokens, rows, at.max(axis=1) + 1, PAD), at, self.targets[rows].astype(np.int64)

    def _padded(self, values: Ints, rows: Ints, lengths: Ints, fill: int) -> NDArray[np.int64]:
        """`values` of these documents, the first so many of each, padded to the longest."""
        position = np.arange(lengths.max(initial=0))
        inside = position < lengths[:, None]
        flat = np.where(inside, self.starts[rows, None] + position, 0)
        return np.where(inside, values[flat], fill).astype(np.int64)


def small_ints(largest: int) -> np.dtype[np.signedinteger]:
    """The smallest signed integer type that holds -1..largest."""
    return np.dtype(np.int16 if largest < 1 << 15 else np.int32)


def empty_columns(n: int, queries: int) -> tuple[I32, I32, I32, I32]:
    """Arrays for a sampler to fill: roles, predict_at, targets and facts of n documents."""
    roles, facts = np.empty((n, len(ROLES)), np.int32), np.empty((n, len(FACTS)), np.int32)
    return roles, np.empty((n, queries), np.int32), np.empty((n, queries), np.int32), facts


def frame(documents: Sequence[Document], vocab_size: int, first: int = 0) -> Corpus:
    """Put the frame around documents and store them, readably; the fast samplers do the same in place."""
    tokens: list[int] = []
    parents: list[int] = []
    rules: list[int] = []
    starts, roles, predict_at, targets, facts = [0], [], [], [], []
    for document in documents:
        body, asked = list(document.body), document.queries
        divider = 1 + len(body)
        text, predicted = [BOS, *body, EOS], []
        for query in asked:
            text += [query.token] if query.kind is None else [query.token, query.kind]
            predicted.append(len(text) - 1)
            text.append(query.answer)
        text.append(EOS)
        q = asked[0]
        place = {"bos": 0, "divider": divider, "query": divider + 1}
        place |= {"key": 1 + q.key, "value": 1 + q.value, "next_key": 1 + q.next_key}
        fact = {"pairs": document.pairs, "depth": document.depth}
        fact |= {"distance": q.value - q.key, "eligible": q.eligible}
        tail = [-1] * (len(text) - divider)
        parents += [-1, *(p + 1 if p >= 0 else -1 for p in document.parents or [-1] * len(body)), *tail]
        rules += [-1, *(document.rules or [-1] * len(body)), *tail]
        tokens += text
        starts.append(len(tokens))
        roles.append([place[role] for role in ROLES])
        predict_at.append(predicted)
        targets.append([query.answer for query in asked])
        facts.append([fact[name] for name in FACTS])
    has_tree = documents[0].parents is not None
    longest = int(np.diff(starts).max())
    return Corpus(
        tokens=np.array(tokens, dtype=small_ints(vocab_size)),
        starts=np.array(starts, dtype=np.int64),
        roles=np.array(roles, dtype=np.int32),
        predict_at=np.array(predict_at, dtype=np.int32),
        targets=np.array(targets, dtype=np.int32),
        facts=np.array(facts, dtype=np.int32),
        first=first,
        parents=np.array(parents, dtype=small_ints(longest)) if has_tree else None,
        rules=np.array(rules, dtype=small_ints(max(rules))) if has_tree else None,
    )
