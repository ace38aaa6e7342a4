"""Tasks over one set of symbols that may repeat in a document, behind the frame and the marks of the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from mecheval.tasks.base import Task
from mecheval.types import Batch

if TYPE_CHECKING:  # slow to import
    from torch import Tensor


class SymbolTask(Task):
    """What tasks share whose symbols are s0, s1, ..., and any of which may stand for any other."""

    first: ClassVar[int]
    """The token id of the first symbol; those below belong to the frame and to marks."""

    def symbol(self, token: int) -> str:
        """s0, s1, ..., or a name of the frame."""
        return f"s{token - self.first}" if token >= self.first else super().symbol(token)

    def substitutes(self, tokens: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Any other symbol."""
        return np.setdiff1d(np.arange(self.first, self.vocab_size), tokens[key])

    def chance(self, batch: Batch) -> Tensor:
        """(n, k) the share of the commonest symbol in a document."""
        import torch

        counts = [np.bincount(row[row >= self.first]) for row in batch.tokens.numpy()]
        shares = torch.tensor([count.max() / count.sum() for count in counts], dtype=torch.float64)
        return shares[:, None].expand(batch.targets.shape)
