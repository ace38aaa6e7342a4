from __future__ import annotations

import torch
from torch import Tensor

from mecheval.ops.decay_weights import decay_weights
from ops.agreement import assert_close, gradients


def plain(G_NK: Tensor, G_NL: Tensor, at_NK: Tensor) -> Tensor:
    """The weights in PyTorch's own words."""
    later_NKL = torch.arange(G_NL.shape[1]) > at_NK.unsqueeze(2)
    exponent_NKL = G_NK.unsqueeze(2) - G_NL.unsqueeze(1)
    return exponent_NKL.masked_fill(later_NKL, -torch.inf).exp()


def test_weights_and_gradients_are_those_of_the_plain_formula() -> None:
    """Weak and strong decays side by side, readers in no order, one of them twice."""
    g = -torch.rand(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    g[:, 10], g[:, 20] = -50.0, 0.0
    G_NL = g.cumsum(1)
    at_NK = torch.tensor([[39, 0, 11, 11]]).expand(3, 4)
    G_NK = G_NL.gather(1, at_NK)
    found = gradients(lambda K, L: decay_weights(K, L, at_NK), [G_NK, G_NL])
    assert_close(found, gradients(lambda K, L: plain(K, L, at_NK), [G_NK, G_NL]))


def test_what_is_negligible_is_zero_and_so_is_its_gradient() -> None:
    G_NL = torch.tensor([[0.0, -1e4]], dtype=torch.float64, requires_grad=True)
    W_NKL = decay_weights(G_NL, G_NL, torch.tensor([[0, 1]]))
    assert W_NKL.tolist() == [[[1.0, 0.0], [0.0, 1.0]]]
    [dG_NL] = torch.autograd.grad(W_NKL.sum(), G_NL)
    assert dG_NL.tolist() == [[0.0, 0.0]]
