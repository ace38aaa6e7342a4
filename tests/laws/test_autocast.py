"""Laws of autocast: in bfloat16 on a CPU, every mixer has the loss and the gradients of float32, up to its 8 bits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import mecheval as me
from mecheval.mixers import MIXERS
from mecheval.mixers.attention import rotate

EPS = torch.finfo(torch.bfloat16).eps
ROUNDINGS = 6
"""A product and its gradients round weights, inputs, outputs and what comes back, so its errors are at most six times
those of rounded weights alone; how far these reach depends on the mixer, and is measured."""
BATCH, FEW, MANY = 8, 15, 4100
"""Documents, a small vocabulary, and one that is large enough for the kernel of the head's loss."""
Found = tuple[Tensor, dict[str, Tensor]]


class Custom(nn.Module):
    """A mixer that knows nothing of mecheval."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.write, self.read = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.read(torch.tanh(self.write(x)).cumsum(1))
        return out


def found(lm: me.LM, questions: tuple[Tensor, Tensor, Tensor], on: bool, inside: bool = False) -> Found:
    """The loss and the gradients, with autocast on or off; `inside`, gradients are computed in it, too."""
    lm.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        loss = lm.loss(*questions)
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}


def rounded(lm: me.LM) -> me.LM:
    """The model with the weights of its linear maps in bfloat16."""
    narrow = copy.deepcopy(lm)
    for module in narrow.modules():
        if isinstance(module, nn.Linear):
            for weight in module.parameters():
                weight.data = weight.data.bfloat16().float()
    return narrow


def distance(some: Found, exact: Found) -> float:
    """How far the gradients lie apart, relative to their size."""
    assert some[1].keys() == exact[1].keys()
    both = torch.cat([(some[1][name] - exact[1][name]).flatten() for name in exact[1]])
    return float(both.norm() / torch.cat([gradient.flatten() for gradient in exact[1].values()]).norm())


@pytest.mark.parametrize("questions", [1, 16])
@pytest.mark.parametrize("length", [1, 2, 37])
@pytest.mark.parametrize("mixer", [*MIXERS.names(), "mamba+attention", Custom])
def test_loss_and_gradients_are_those_of_float32_but_for_rounding(
    mixer: str | type[nn.Module], length: int, questions: int
) -> None:
    generator = torch.Generator().manual_seed(length)
    for vocabulary, last in ((FEW, length), (MANY, length), (MANY, -(-length // 3))):  # the last is read end to end
        tokens = torch.randint(vocabulary, (BATCH, length), generator=generator)
        at = torch.randint(last, (BATCH, questions), generator=generator)
        asked = tokens, at, torch.randint(vocabulary, (BATCH, questions), generator=generator)
        lm = me.LM(vocabulary, 32, 2, mixer, seed=0, canon="AC" if mixer == "h3" else "")
        exact, weights = found(lm, asked, on=False), found(rounded(lm), asked, on=False)
        allowed = ROUNDINGS * distance(weights, exact)
        for inside in (False, True):
            loss, gradients = cast = found(lm, asked, on=True, inside=inside)
            assert all(each.dtype == torch.float32 and each.isfinite().all() for each in (loss, *gradients.values()))
            assert abs(loss - exact[0]) <= EPS * exact[0]
            head = EPS if inside else 0.0  # gradients of the head in PyTorch's own products round both of their sides
            assert 0 < distance(cast, exact) <= allowed + 2 * head


def test_rotary_positions_are_exact_where_numbers_are_not() -> None:
    x, far = torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([[1021]])
    narrow = x.bfloat16()
    assert torch.allclose(rotate(narrow, far).float(), rotate(narrow.float(), far), rtol=0, atol=1e-6)
