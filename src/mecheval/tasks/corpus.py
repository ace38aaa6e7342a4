"""Documents as a task writes them (`Document`), and many stored compactly, without padding (`Corpus`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mecheval.errors import UnknownName, UserError
from mecheval.types import BOS, EOS, FACTS, FRAMED, NOWHERE, PAD, ROLES, Batch, Meaning

if TYPE_CHECKING:  # slow to import
    from torch import Tensor

Ints = NDArray[np.integer]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Question:
    """One question of a document, with its roles; roles that the document lacks are left out."""

    at: int  # the position whose logits predict the answer
    answer: int  # token id
    roles: Mapping[str, int | tuple[int, int]]  # name -> position, or (start, stop) of a span


@dataclass(frozen=True)
class Document:
    """One document as a model reads it, with its questions; `framed` makes one of the usual form."""

    tokens: Sequence[int]
    questions: Sequence[Question]  # the same number in every document of a task; facts describe the first
    facts: Mapping[str, int]
    parents: Sequence[int] | None = None  # position of each terminal's parent, -1 at the root and elsewhere
    rules: Sequence[int] | None = None  # number of the rule that each terminal heads, -1 at leaves and elsewhere


@dataclass(frozen=True)
class Query:
    """One question about the body of a framed document; positions count from the body's first token."""

    token: int  # the token that asks
    answer: int  # the token to predict
    key: int
    value: int
    next_key: int  # may be the body's length, which is the position of the divider
    kind: int | None = None  # the query-type token between query and answer, in tasks with several types
    eligible: int = 0  # number of queries that could be asked about the document


def framed(
    body: Sequence[int], queries: Sequence[Query], *, pairs: int = 0, depth: int = 0,
    parents: Sequence[int] | None = None, rules: Sequence[int] | None = None,
) -> Document:  # fmt: skip
    """A document `BOS body EOS query answer query answer ... EOS`, with the roles in ROLES and the facts in FACTS.

    If the body is a tree, `parents` (positions in the body, -1 at the root) and `rules` describe its terminals.
    """
    divider = 1 + len(body)
    text, questions = [BOS, *body, EOS], []
    for query in queries:
        place = {"bos": 0, "divider": divider, "query": len(text)}
        place |= {"key": 1 + query.key, "value": 1 + query.value, "next_key": 1 + query.next_key}
        text += [query.token] if query.kind is None else [query.token, query.kind]
        questions.append(Question(len(text) - 1, query.answer, place))
        text.append(query.answer)
    text.append(EOS)
    first, tail = queries[0], [-1] * (len(text) - divider)
    return Document(
        text, questions,
        {"pairs": pairs, "distance": first.value - first.key, "depth": depth, "eligible": first.eligible},
        None if parents is None else [-1, *(parent + 1 if parent >= 0 else -1 for parent in parents), *tail],
        None if rules is None else [-1, *rules, *tail],
    )  # fmt: skip


@dataclass(frozen=True)
class Corpus:
    """n documents end to end: document i is tokens[starts[i]:starts[i + 1]], and positions count from its start."""

    tokens: Ints  # (total,)
    starts: NDArray[np.int64]  # (n + 1,)
    roles: Ints  # (n, k, roles) the first position of each role of each question; NOWHERE = absent
    predict_at: Ints  # (n, k)
    targets: Ints  # (n, k)
    facts: Ints  # (n, facts)
    first: int = 0  # number of the first document in its stream
    parents: Ints | None = None  # (total,), -1 at roots and frames
    rules: Ints | None = None  # (total,), -1 at leaves and frames
    spans: Ints | None = None  # (n, k, roles) how many tokens each role has; None = one
    role_names: tuple[str, ...] = ROLES  # these three come from the task, see `Task.corpus`
    fact_names: tuple[str, ...] = FACTS
    meaning: Meaning = FRAMED

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        """Memory of the documents in bytes."""
        arrays = (self.tokens, self.starts, self.roles, self.predict_at, self.targets, self.facts)
        return sum(a.nbytes for a in (*arrays, self.parents, self.rules, self.spans) if a is not None)

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
        asked = {role: torch.from_numpy(self._positions(i, chosen)) for i, role in enumerate(self.role_names)}
        return Batch(
            tokens=padded(self.tokens, PAD),
            lengths=torch.from_numpy(length),
            answers=targets[:, 0].clone(),
            roles={role: where[:, 0].clone() for role, where in asked.items()},
            predict_at=plain(self.predict_at),
            targets=targets,
            facts={fact: plain(self.facts[:, i]) for i, fact in enumerate(self.fact_names)},
            index=torch.from_numpy(chosen + self.first),
            parents=None if self.parents is None else padded(self.parents, -1),
            meaning=self.meaning,
            asked=asked,
        )

    def _positions(self, role: int, rows: Ints) -> NDArray[np.int64]:
        """The positions of a role in all questions of these documents, (n, k), or (n, k, m) for several tokens."""
        first = self.roles[rows, :, role].astype(np.int64)
        length = np.ones_like(first) if self.spans is None else self.spans[rows, :, role].astype(np.int64)
        longest = int(length.max(initial=1))
        if longest == 1:
            return first
        step = np.arange(longest)
        there = (step < length[..., None]) & (first != NOWHERE)[..., None]
        return np.where(there, first[..., None] + step, NOWHERE)

    def questions(self, rows: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Tokens (B, L), positions (B, k) and targets (B, k) of these documents, each cut after its last prediction."""
        at = self.predict_at[rows].astype(np.int64)
        return self._padded(self.tokens, rows, at.max(axis=1) + 1, PAD), at, self.targets[rows].astype(np.int64)

    def _padded(self, values: Ints, rows: Ints, lengths: Ints, fill: int) -> NDArray[np.int64]:
        """The first `lengths[i]` values of document `rows[i]`, padded with `fill` to the longest."""
        position = np.arange(lengths.max(initial=0))
        inside = position < lengths[:, None]
        flat = np.where(inside, self.starts[rows, None] + position, 0)
        return np.where(inside, values[flat], fill).astype(np.int64)


def small_ints(largest: int) -> np.dtype[np.signedinteger]:
    """The smallest signed integer type that holds -1..largest."""
    return np.dtype(np.int16 if largest < 1 << 15 else np.int32)


def empty_columns(n: int, queries: int, roles: int = len(ROLES), facts: int = len(FACTS)) -> tuple[I32, I32, I32, I32]:
    """Arrays for a sampler to fill: roles, predict_at, targets and facts of n documents."""
    where, known = np.empty((n, queries, roles), np.int32), np.empty((n, facts), np.int32)
    return where, np.empty((n, queries), np.int32), np.empty((n, queries), np.int32), known


def pack(
    documents: Sequence[Document], vocab_size: int, first: int = 0, roles: Sequence[str] = ROLES,
    facts: Sequence[str] = FACTS, meaning: Meaning = FRAMED,
) -> Corpus:  # fmt: skip
    """Store documents end to end; this is the plain version of what the fast samplers do in place."""
    starts, k = np.cumsum([0, *(len(each.tokens) for each in documents)]), len(documents[0].questions)
    if any(len(each.questions) != k for each in documents):
        raise UserError(f"all documents of a task must have the same number of questions; the first one has {k}.")
    asked = [question for each in documents for question in each.questions]
    for name in {name: None for question in asked for name in question.roles}:
        if name not in roles:
            raise UnknownName("role of a question", name, roles)
    spans = [[_span(question.roles.get(name)) for name in roles] for question in asked]
    where = np.array(spans, dtype=np.int32).reshape(len(documents), k, len(roles), 2)
    has_tree = documents[0].parents is not None
    parents = [parent for each in documents for parent in each.parents or ()]
    rules = [rule for each in documents for rule in each.rules or ()]
    return Corpus(
        tokens=np.array([token for each in documents for token in each.tokens], dtype=small_ints(vocab_size)),
        starts=starts.astype(np.int64),
        roles=where[..., 0],
        predict_at=np.array([question.at for question in asked], dtype=np.int32).reshape(-1, k),
        targets=np.array([question.answer for question in asked], dtype=np.int32).reshape(-1, k),
        facts=np.array([[each.facts[name] for name in facts] for each in documents], dtype=np.int32),
        first=first,
        parents=np.array(parents, dtype=small_ints(int(np.diff(starts).max()))) if has_tree else None,
        rules=np.array(rules, dtype=small_ints(max(rules))) if has_tree else None,
        spans=where[..., 1] if (where[..., 1] > 1).any() else None,
        role_names=tuple(roles), fact_names=tuple(facts), meaning=meaning,
    )  # fmt: skip


def _span(where: int | tuple[int, int] | None) -> tuple[int, int]:
    """The first position of a role, and its number of tokens."""
    if where is None:
        return NOWHERE, 1
    return (where, 1) if isinstance(where, int) else (where[0], where[1] - where[0])
