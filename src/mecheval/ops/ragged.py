"""Documents of different lengths end to end, without padding, and what operations need to keep them apart.

In a batch of trees, two of three tokens are padding. Inside `end_to_end(documents)`, mixers get (1, T, ...) instead of
(B, L, ...): all tokens of all documents, one after the other. What concerns each token alone needs no change; an
operation that looks at other positions asks where documents begin. Positions `at` stay (B, K), counted from the
beginning of each document, and what is asked for there is (B, K, ...), as ever.

Legend: B documents, L length of the longest, T tokens of all of them, K positions asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import copy_table, kernel
from mecheval.ops.dispatch import in_float32


class Documents:
    """Where documents of `lengths` (B,), each at least 1, begin among their tokens."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths
        self.longest = int(lengths.max()) if len(lengths) else 0
        counts = lengths.numpy()
        first = np.concatenate([[0], counts.cumsum()])
        self.starts = torch.from_numpy(first)
        """The first token of each document, and the number of all tokens; (B + 1,)."""
        self.positions = torch.from_numpy(np.arange(first[-1]) - first[:-1].repeat(counts))
        """The position of each token in its document, (T,)."""

    def first_tokens(self, tokens_BL: Tensor) -> Tensor:
        """The tokens (1, T) of a padded batch, which has at least these lengths."""
        inside = np.arange(tokens_BL.shape[1]) < self.lengths.numpy()[:, None]
        return torch.from_numpy(tokens_BL.numpy()[inside][None])

    @in_float32
    def pad(self, x: Tensor) -> Tensor:
        """(1, T, ...) -> (B, L, ...), with zeros behind each document."""
        batch: Tensor = _Spread.apply(x, self)  # type: ignore[no-untyped-call]
        return batch

    @in_float32
    def pack(self, x: Tensor) -> Tensor:
        """(B, L, ...) -> (1, T, ...): undo `pad`."""
        tokens: Tensor = _Collect.apply(x, self)  # type: ignore[no-untyped-call]
        return tokens

    def in_batch(
        self,
        operation: Callable[..., Tensor],
        inputs: Sequence[Tensor],
        queries: Sequence[Tensor] = (),
        at: Tensor | None = None,
    ) -> Tensor:
        """The result of an operation that knows only padded batches, called as operation(*queries, *inputs).

        Inputs are (1, T, ...). Queries and the result are, too, or (B, K, ...) where the operation reads at positions.
        """
        with end_to_end(None):
            asked = queries if at is not None else [self.pad(x) for x in queries]
            y = operation(*asked, *(self.pad(x) for x in inputs))
        return y if at is not None else self.pack(y)

    def rows(self, at_BK: Tensor) -> Tensor:
        """The tokens (B, K) at these positions of each document."""
        return self.starts[:-1, None] + at_BK


_now: ContextVar[Documents | None] = ContextVar("mecheval_documents", default=None)


@contextmanager
def end_to_end(documents: Documents | None) -> Iterator[None]:
    """Let operations take their tokens for those of `documents` while the context lasts; None: for a padded batch."""
    token = _now.set(documents)
    try:
        yield
    finally:
        _now.reset(token)


def documents_now() -> Documents | None:
    """The documents that are end to end, or None where a batch is padded."""
    return _now.get()


def longest(x: Tensor) -> int:
    """The length of the longest document of x, (B, L, ...) or (1, T, ...)."""
    documents = _now.get()
    return x.shape[1] if documents is None else documents.longest


def padded(x: Tensor) -> Tensor:
    """X as a padded batch, (B, L, ...), whichever way its documents come."""
    documents = _now.get()
    return x if documents is None else documents.pad(x)


def packed(x: Tensor) -> Tensor:
    """A padded batch x, (B, L, ...), in the way in which documents come."""
    documents = _now.get()
    return x if documents is None else documents.pack(x)


def layout(x: Tensor) -> Documents:
    """Where documents begin among the tokens of x, (B, L, ...) or (1, T, ...), with its rows end to end."""
    return _now.get() or _even(*x.shape[:2])


@lru_cache(16)
def _even(batch: int, length: int) -> Documents:
    """Documents of one length; kept, because every call of an operation asks for them."""
    return Documents(torch.full((batch,), length))


def arrays(*tensors: Tensor) -> list[NDArray[Any]]:
    """The tensors for a kernel; those of documents, (B, L or K, X) or (B, L or K, H, X), with their rows end to end."""
    found = [x.numpy() for x in tensors]
    return [x if x.ndim < 3 else x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]) for x in found]


class _Spread(torch.autograd.Function):
    """x (1, T, ...) as a padded batch; the gradient collects tokens again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, documents: Documents) -> Tensor:
        ctx.documents = documents
        batch = x.new_empty(len(documents.lengths), documents.longest, *x.shape[2:])
        _spread(_rows(x.contiguous()), documents.starts.numpy(), _rows(batch))
        return batch

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _Collect.apply(dy, ctx.documents), None  # type: ignore[no-untyped-call]


class _Collect(torch.autograd.Function):
    """The tokens (1, T, ...) of a padded batch; the gradient spreads them again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, documents: Documents) -> Tensor:
        ctx.documents = documents
        tokens = x.new_empty(1, len(documents.positions), *x.shape[2:])
        _collect(_rows(x.contiguous()), documents.starts.numpy(), _rows(tokens))
        return tokens

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(dy, ctx.documents), None  # type: ignore[no-untyped-call]


def _rows(x: Tensor) -> NDArray[Any]:
    """(B, L, ...) -> (B, L, X)."""
    return x.detach().reshape(*x.shape[:2], math.prod(x.shape[2:])).numpy()


@kernel
def _spread(tokens_1TX: NDArray[Any], starts_B: NDArray[np.int64], batch_BLX: NDArray[Any]) -> None:
    for b in range(len(batch_BLX)):
        length = starts_B[b + 1] - starts_B[b]
        copy_table(tokens_1TX[0, starts_B[b] : starts_B[b + 1]], batch_BLX[b, :length])
        batch_BLX[b, length:] = 0


@kernel
def _collect(batch_BLX: NDArray[Any], starts_B: NDArray[np.int64], tokens_1TX: NDArray[Any]) -> None:
    for b in range(len(batch_BLX)):
        length = starts_B[b + 1] - starts_B[b]
        copy_table(batch_BLX[b, :length], tokens_1TX[0, starts_B[b] : starts_B[b + 1]])
