"""Types and names that all rooms share: batches, splits, roles and facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from mecheval.errors import UnknownName, UserError, shown

if TYPE_CHECKING:  # drawing and listing documents needs no torch, which is slow to import
    import torch
    from torch import Tensor

PAD, BOS, EOS = 0, 1, 2
FIRST_SYMBOL = 3
"""The first token id of a task's own symbols; those below belong to the frame. EOS is also the divider."""

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

ROLES = ("bos", "key", "value", "next_key", "divider", "query")
"""Named positions of a framed document (`BOS body EOS query answer EOS`), about one of its questions.

key: the item in the body that the query repeats; value: the answer in the body; next_key: the position after
the value's pair (ATR: after the value), which is the divider when nothing follows; query: after the divider.
Other tasks declare their own (`Task.roles`).
"""

NOWHERE = -1
"""The position of a role that a document does not have; the document then does not count for that role."""

LAST = "last"
"""The state of a run that is reported, as in the paper: its last weights. The other state is `best`, chosen on dev."""
STATES = (LAST, "best")

Positions = Literal["none", "learned", "rotary"]
"""Kinds of position embeddings."""

CANON = "ABCD"
"""Places of a Canon convolution in a block: before the mixer, at q, k and v, before the MLP, and inside the MLP."""


OFFSET = re.compile(r"(\w+)([+-]\d{1,6})")
"""`value+2` is the second position after the end of the value, and `value-1` the one before its start."""


def spoken(role: str) -> str:
    """The name of a role in a sentence."""
    return role.replace("_", " ")


@dataclass(frozen=True)
class Meaning:
    """What the roles of a task's documents mean; interventions and verdicts use this, never the names of roles."""

    key: str = "key"  # what the question repeats; without it, the answer is lost
    value: str | None = "value"  # the position of the answer; None in a task without recall, which has no verdict
    query: str = "query"  # the question, which ends at the prediction
    places: tuple[str, ...] = ("next_key", "divider")  # other roles at which a model may store an association

    @property
    def kinds(self) -> tuple[str, str, str]:
        """The kinds of positions that can hold the key's identity, in the order in which it moves through layers."""
        return self.key, "between", "question"

    def like(self, role: str) -> str:
        """The corresponding role of a framed document, also for an offset from it; otherwise the role itself."""
        names = {self.key: "key", self.query: "query", self.value: "value"}
        base = OFFSET.fullmatch(role)
        return names.get(role, role) if base is None else f"{names.get(base[1], base[1])}{base[2]}"

    def role(self, kind: str) -> str:
        """The role that a corruption of this kind replaces: key, value or query."""
        role = {"key": self.key, "value": self.value, "query": self.query}[kind]
        if role is None:
            raise UserError("the documents of this task have no value: there is nothing to recall.")
        return role

    def done(self, corruption: str) -> str:
        """What a corruption has done to a document, in words, with the task's role names: `the key corrupted`."""
        if corruption == "swap":
            return f"the {spoken(self.role('value'))} swapped with another pair's"
        return (
            f"the {spoken(self.role(corruption)) if corruption in ('key', 'value', 'query') else 'document'} corrupted"
        )


FRAMED = Meaning()
"""The meaning of the roles of a framed document."""

RANDOM = "random"
"""A control role: a random position of each document before all questions, without any other role."""

SPANS = {
    "between": "all positions after the key and before the query",
    "question": "the query and what follows it, up to the prediction",
    "body": "all positions before the query",
    "others": "the positions between key and query that have no name and lie no nearer than four after key and value",
}
"""Roles of several positions that documents of every task have; the positions are replaced together."""
RESERVED = (*SPANS, RANDOM, "joint")
"""Names that a task cannot give to its roles."""

ALL_ROLES = ("key", "value", "next_key", "divider", "query", "bos", RANDOM)
"""Roles of a framed document in the order in which maps show them; roles of other tasks come before `random`."""


def in_order(roles: Iterable[str]) -> list[str]:
    """Roles in the order in which maps show them."""
    places = {role: i for i, role in enumerate(ALL_ROLES)}
    return sorted(dict.fromkeys(roles), key=lambda role: places.get(role, places[RANDOM] - 0.5))


def carriers(roles: Iterable[str]) -> list[str]:
    """The roles at which a model can carry an association from the key to the answer."""
    return [role for role in in_order(roles) if role not in ("divider", "bos", RANDOM)]


CARRIERS = ("key", "value", "next_key", "query")
"""The carriers of a framed document."""


def is_on_maps(role: str) -> bool:
    """Whether maps show a stored role, that is, a task's role or `random`; the others are evidence for a verdict."""
    return role not in SPANS and OFFSET.fullmatch(role) is None


Corruption = Literal["key", "value", "query", "swap"]
CORRUPTIONS: tuple[Corruption, ...] = get_args(Corruption)
"""The kinds of corruption.

key: the key is another symbol, as in the paper; value: the value is another symbol; query: the question asks for a
symbol that the document does not have; swap: the asked pair and another pair exchange values, so that a particular
other answer becomes right.
"""

Direction = Literal["restore", "destroy", "control"]
"""The direction of an interchange intervention.

restore: put a clean activation into the corrupted run (is it sufficient?); destroy: put a corrupted activation into the
clean run (is it necessary?); control: put the clean activation of *another* document into the corrupted run.
"""

MISSING = "–"
"""The sign for a missing value in all tables and charts."""

SHORT_CONVOLUTIONS = ("conv", "q_conv", "k_conv", "v_conv", "shift")
"""Names of sites with the output of a short convolution inside a mixer."""
CANON_B = ("canon_b", "canon_b_q", "canon_b_k", "canon_b_v")
"""Sites of Canon B: one if a single map makes q, k and v, otherwise three; A, C and D have canon_a, ..."""

FACTS = ("pairs", "distance", "depth", "eligible")
"""Numbers about a document that studies condition on.

pairs: associations in the body (AR pairs, ATR edges); distance: value position minus key position;
depth: edges from the tree's root to the key (0 without a tree); eligible: number of queries that could be asked.
"""


def canon_letters(given: str) -> str:
    """The letters of a choice of Canon convolutions, sorted; each may be given once, in upper or lower case."""
    letters = "".join(letter for letter in CANON if letter in given.upper())
    if sorted(given.upper()) != list(letters):
        raise UserError(f"canon: give some of the letters {', '.join(CANON)}, each once (got {shown(given)}).")
    return letters


def check_split(split: str) -> Split:
    """`split` itself, or an error that lists the splits."""
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    return split


def first_of(positions: Tensor) -> Tensor:
    """(n,) the first position of a role, (n,) or (n, m); NOWHERE in a document without it."""
    return positions if positions.ndim == 1 else positions[:, 0]


def last_of(positions: Tensor) -> Tensor:
    """(n,) the last position of a role, (n,) or (n, m); NOWHERE in a document without it."""
    return positions if positions.ndim == 1 else positions.amax(1)


def has_role(positions: Tensor) -> Tensor:
    """(n,) whether each document has a role with these positions, (n,) or (n, m)."""
    return positions != NOWHERE if positions.ndim == 1 else (positions != NOWHERE).any(1)


@dataclass(frozen=True)
class Batch:
    """n documents, padded to the longest.

    `answers` and `roles` describe one question of each document, the first or another (`Task.about`). A document with
    k questions is trained on all of them: `targets[i, j]` is to be predicted from the logits at `predict_at[i, j]`.
    A role of one token has positions (n,); a role of several has (n, m), in order and padded with NOWHERE.
    """

    tokens: Tensor  # (n, L) int64, padded with 0
    lengths: Tensor  # (n,) int64, of whole documents
    answers: Tensor  # (n,) int64 token ids
    roles: dict[str, Tensor]  # name -> (n,) or (n, m) int64 positions
    predict_at: Tensor  # (n, k) int64 positions at which questions end
    targets: Tensor  # (n, k) int64 token ids; targets[:, 0] = answers
    facts: dict[str, Tensor]  # name -> (n,) int64, see FACTS
    index: Tensor  # (n,) int64, the document's number in its stream
    parents: Tensor | None = None  # (n, L) int64: the position of each terminal's parent; -1 at the root and elsewhere
    chance: Tensor | None = None  # (n, k) double: likelihood of each answer under the best guess that recalls nothing
    counterfactual: Tensor | None = None  # (n,) int64 token ids: the answers of documents whose values were swapped
    meaning: Meaning = FRAMED  # what the roles are for
    asked: dict[str, Tensor] = field(default_factory=dict)  # roles of all questions of a document, (n, k) or (n, k, m)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        """The same batch with only these documents (a slice, or row numbers), padded to the same length."""
        return self._each(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, dict):
                changed[part.name] = {name: change(tensor) for name, tensor in value.items()}
            else:
                changed[part.name] = value if value is None or isinstance(value, Meaning) else change(value)
        return Batch(**changed)

    def questions(self) -> Questions:
        """The documents cut after their last prediction, with positions and targets."""
        return Questions(self.tokens[:, : int(self.predict_at.max()) + 1], self.predict_at, self.targets)


def joined(batches: Sequence[Batch]) -> Batch:
    """Documents of one length, one batch after the other: what models read and answer of them, and no roles."""
    import torch

    read = [(each.tokens, each.predict_at, each.answers) for each in batches]
    tokens, at, answers = (torch.cat(each) for each in zip(*read, strict=True))
    return replace(batches[0], tokens=tokens, predict_at=at, answers=answers, roles={})


class Questions(NamedTuple):
    """Documents as a model reads them: k predictions in each of B documents."""

    tokens: Tensor  # (B, L) int64, padded with 0
    at: Tensor  # (B, k) int64 positions
    targets: Tensor  # (B, k) int64 token ids
