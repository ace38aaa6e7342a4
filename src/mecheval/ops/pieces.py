"""Reading a document in pieces, down to one token at a time: what operations carry from one piece to the next.

Inside `reading(state)`, every operation that looks at earlier positions resumes where it stopped. It finds what it
kept from earlier pieces, and leaves what the next piece needs. Operations are identified by the order of their
calls, which is the same for every piece. So mixers say once what they compute, and it serves both for whole documents
and for generation. A mixer may look back only through the operations of this package.

Legend: B batch, L length of the piece, C channels, R positions that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class State:
    """What a module carries from the tokens that it has read to the next; initially, it has read none."""

    length: int = 0  # tokens read
    kept: tuple[Tensor, ...] = ()  # one for each operation, documents first

    @property
    def size(self) -> int:
        """Numbers that are carried for one document; a complex number counts as two."""
        return sum(kept[0].numel() * (2 if kept.is_complex() else 1) for kept in self.kept)


NOTHING_READ = State()
"""The state before the first token."""


class Piece:
    """The reading of one piece: the state before it, and what has been kept of it so far."""

    def __init__(self, before: State) -> None:
        self.before = before
        self.kept: list[Tensor] = []

    def recall(self) -> Tensor | None:
        """What the operation that is called now kept of the pieces before; None in the first piece."""
        return self.before.kept[len(self.kept)] if self.before.length else None

    def keep(self, carried: Tensor) -> None:
        """Leave something for the same operation in the next piece; once for every `recall`."""
        self.kept.append(carried)

    def after(self, length: int) -> State:
        """The state after this piece of `length` tokens."""
        return State(self.before.length + length, tuple(self.kept))


_now: ContextVar[Piece | None] = ContextVar("mecheval_reading", default=None)


@contextmanager
def reading(state: State) -> Iterator[Piece]:
    """Let operations continue after what `state` has read while the context lasts; the state itself never changes."""
    token = _now.set(Piece(state))
    try:
        found = _now.get()
        assert found is not None
        yield found
    finally:
        _now.reset(token)


@contextmanager
def apart() -> Iterator[None]:
    """Let operations see whole documents again while the context lasts, for an operation that is made of others."""
    token = _now.set(None)
    try:
        yield
    finally:
        _now.reset(token)


def current(at: Tensor | None = None) -> Piece | None:
    """The reading under way, or None where whole documents are read; positions `at` are for whole documents."""
    now = _now.get()
    if now is not None and at is not None:
        raise ValueError("positions `at` cannot be asked for while a document is read in pieces")
    return now


def tokens_before() -> int:
    """Tokens that were read before the first one of this piece."""
    now = _now.get()
    return 0 if now is None else now.before.length


def extended(x: Tensor, reach: int | None = None) -> Tensor:
    """The piece x (B, L, ...) behind what was kept of earlier ones; the last `reach` positions, or all, are kept on.

    Where a whole document is read, x itself.
    """
    now = _now.get()
    if now is None:
        return x
    before = now.recall()
    seen = x if before is None else torch.cat([before, x], dim=1)
    now.keep(seen if reach is None else seen[:, max(0, seen.shape[1] - reach) :])
    return seen


def continued(module: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What a module that knows nothing of pieces gives for the piece x (B, L, ...): it reads all of them again."""
    seen = extended(x)
    with apart():
        return module(seen)[:, seen.shape[1] - x.shape[1] :]


def shifted(x: Tensor) -> Tensor:
    """The token before each one: x (B, L, C) shifted by one position, with zeros before the first."""
    seen = extended(x, 1)
    length = x.shape[1]
    if seen.shape[1] > length:
        return seen[:, :length]
    return torch.nn.functional.pad(x, (0, 0, 1, -1))
