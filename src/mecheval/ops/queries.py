"""Reading a recurrence only where it is asked: what the ops share about their argument `at`.

Legend: B batch, L length, K queries, M = L + K.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mecheval.kernels import kernel
from mecheval.ops.dispatch import transformed
from mecheval.ops.ragged import documents_now


def check_at(at_BK: Tensor, batch: int, length: int) -> None:
    """Refuse positions that do not exist: a compiled kernel would read past the end of its arrays.

    Where documents are end to end, each has its own length, whatever is given here.
    """
    documents = documents_now()
    if documents is not None:
        batch, length = len(documents.lengths), documents.longest
    if at_BK.dtype != torch.int64 or at_BK.ndim != 2 or at_BK.shape[0] != batch:
        raise ValueError(f"at is int64 of shape ({batch}, K); got {at_BK.dtype} of shape {tuple(at_BK.shape)}")
    if at_BK.device.type != "cpu" or transformed():  # to look would cost a synchronisation, or is impossible
        return
    ends = np.array([length]) if documents is None else documents.lengths.numpy()
    if _all_there(at_BK.contiguous().numpy(), np.ascontiguousarray(ends)):
        return
    if documents is not None and bool((at_BK >= 0).all()):
        raise IndexError("at holds positions behind the end of a document")
    low, high = (int(x) for x in torch.aminmax(at_BK))
    raise IndexError(f"at holds positions {low} to {high}; there are positions 0 to {length - 1}")


@kernel
def _all_there(at_BK: NDArray[np.int64], ends: NDArray[np.int64]) -> bool:
    """Whether the positions are at least 0 and below the end of their document, or of all if there is one end."""
    wrong = 0
    for b in range(len(at_BK)):
        end = ends[b] if len(ends) > 1 else ends[0]
        for k in range(at_BK.shape[1]):
            wrong += at_BK[b, k] < 0 or at_BK[b, k] >= end
    return wrong == 0


def in_time_order(at_BK: Tensor | None, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the positions of the queries in ascending order (B, K), and which query each one is (B, K).

    Without `at` every position asks one query.
    """
    if at_BK is None:
        every_BL = torch.arange(length).expand(batch, length).contiguous()
        return every_BL, every_BL
    sorted_BK, which_BK = at_BK.sort(dim=1, stable=True)
    return sorted_BK, which_BK


def take(x_BL: Tensor, at_BK: Tensor) -> Tensor:
    """Rows of x (B, L, ...) at the positions `at` (B, K), as (B, K, ...)."""
    check_at(at_BK, *x_BL.shape[:2])  # gather reads past the end without a word
    if (documents := documents_now()) is not None:
        rows = documents.rows(at_BK).flatten()
        return x_BL[0].index_select(0, rows).view(*at_BK.shape, *x_BL.shape[2:])
    return torch.take_along_dim(x_BL, at_BK.reshape(*at_BK.shape, *[1] * (x_BL.ndim - 2)), dim=1)


def as_extra_steps(at_BK: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Turn queries into steps of their own, for kernels that answer every step exactly once.

    A step that leaves the state alone may be inserted anywhere. So each query becomes a step right after its
    position, and may repeat or come in any order. Returns order_BM, which indexes the L positions followed by
    the K queries, and place_BK, the step at which each query then stands.
    """
    batch = at_BK.shape[0]
    position_L = torch.arange(length, device=at_BK.device)
    time_BM = torch.cat([2 * position_L.expand(batch, length), 2 * at_BK + 1], dim=1)
    order_BM = time_BM.argsort(dim=1, stable=True)
    return order_BM, order_BM.argsort(dim=1)[:, length:]
