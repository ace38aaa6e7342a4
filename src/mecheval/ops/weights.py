"""Effective attention: how much each earlier token weighs in what an operation gives at each position, exactly.

With queries, keys, gates and decays held fixed, every sequence operation is linear in its values: its result at
position t is the sum over s of weights[t, s] values[s]. Softmax attention has these weights by definition; here they
are for the others, signs included. An operation that treats channels apart has weights for each channel.

Legend: B batch, L = S length, H heads, C channels, E channels of a scan, N its states.
"""

from __future__ import annotations

import torch
from torch import Tensor


def one_value_each(like_BLHV: Tensor) -> Tensor:
    """Values (B, L, H, L) by which each token is known in a result: token s has a one in entry s."""
    batch, length, heads = like_BLHV.shape[:3]
    one_LS = torch.eye(length, dtype=like_BLHV.dtype, device=like_BLHV.device)
    return one_LS.view(1, length, 1, length).expand(batch, length, heads, length)


def of_result(result_BLHS: Tensor) -> Tensor:
    """The weights (B, H, L, S) from what an operation makes of `one_value_each`."""
    return result_BLHS.transpose(1, 2)


def of_convolution(taps_LC: Tensor, batch: int) -> Tensor:
    """(B, C, L, S) for a causal convolution with these taps, the first on the current token."""
    t = torch.arange(len(taps_LC), device=taps_LC.device)
    lag_LS = t[:, None] - t
    weights_LSC = torch.where(lag_LS[:, :, None] >= 0, taps_LC[lag_LS.clamp(min=0)], 0)
    return weights_LSC.permute(2, 0, 1).expand(batch, -1, -1, -1)


def of_decays(log_decay_BLC: Tensor) -> Tensor:
    """(B, C, L, S) for h_t = exp(log_decay_t) h_{t-1} + x_t: what is left at t of the input at s."""
    total_BCL = log_decay_BLC.mT.cumsum(2)
    left = (total_BCL[..., :, None] - total_BCL[..., None, :]).exp()
    return left.tril()


def of_scan(dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """(B, E, L, S) for `selective_scan` with steps dt (B, L, E), rates A (E, N), and B and C (B, L, N)."""
    weights = dt.new_zeros(len(dt), A.shape[0], dt.shape[1], dt.shape[1])
    for n in range(A.shape[1]):  # one state at a time: all at once would need N times the memory
        weights += of_decays(dt * A[:, n]) * (C[:, :, None, n] * B[:, None, :, n])[:, None]
    return weights * dt.mT[:, :, None, :]
