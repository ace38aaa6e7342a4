"""The minimal GRU of "Were RNNs All We Needed?" (Feng et al. 2024), in parallel.

    mecheval evaluate examples/min_gru.py:MinGRU

Neither gate nor candidate sees the state before, so the recurrence is linear in it:

    h_t = (1 - z_t) h_{t-1} + z_t c_t        z_t = sigmoid(W_z x_t)        c_t = W_c x_t

Two steps of it are one step of the same form, so a document of L tokens needs log L rounds instead of L steps. Nothing
is divided, so nothing can overflow, however long the document.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class MinGRU(nn.Module):
    """h_t = (1 - z_t) h_{t-1} + z_t c_t, for each channel by itself."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gate_and_candidate = nn.Linear(d_model, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        gate, candidate = self.gate_and_candidate(x).chunk(2, dim=-1)
        z = gate.sigmoid()
        out: Tensor = self.out(scan(1 - z, z * candidate))
        return out


def scan(a: Tensor, h: Tensor) -> Tensor:
    """h_t + a_t (h_{t-1} + a_{t-1} (...)) of a and h, (B, L, D).

    After the round with `reach`, h_t has all terms of the last 2 reach tokens, and a_t is the product of their factors.
    """
    length, reach = h.shape[1], 1
    while reach < length:
        h = h + a * F.pad(h[:, :-reach], (0, 0, reach, 0))
        reach *= 2
        if reach < length:
            a = a * F.pad(a[:, : -reach // 2], (0, 0, reach // 2, 0))
    return h
