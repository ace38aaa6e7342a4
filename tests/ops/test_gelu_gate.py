from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mecheval.ops.gelu_gate import gelu_gate, gelu_gate_reference
from ops.agreement import LENGTHS, assert_agree, assert_same_alone, random


def inputs(batch: int, length: int, channels: int = 5, scale: float = 1.0) -> list[Tensor]:
    return [random(batch, length, channels, seed=1), scale * random(batch, length, channels, seed=2)]


def test_worked_by_hand() -> None:
    """At 1 the tanh is that of sqrt(2/π) 1.044715."""
    wanted = 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715))
    y = gelu_gate(torch.tensor([[2.0, 3.0]]), torch.tensor([[1.0, 0.0]]))
    assert y.flatten().tolist() == pytest.approx([2 * wanted, 0.0])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0, 1e4])
def test_fast_is_reference(length: int, scale: float) -> None:
    """From gates where GELU is a line to gates where it is all or nothing."""
    assert_agree(gelu_gate, gelu_gate_reference, inputs(3, length, scale=scale))


def test_as_exact_as_pytorch() -> None:
    g = torch.linspace(-12, 12, 20_001)[None]
    h = torch.ones_like(g)
    wanted = gelu_gate_reference(h.double(), g.double())
    ours, theirs = ((f(h, g) - wanted).abs().max() for f in (gelu_gate, gelu_gate_reference))
    assert float(ours) < 2 * float(theirs)


def test_alone_and_without_contiguity() -> None:
    h, g = inputs(4, 37)
    assert_same_alone(lambda n: gelu_gate(h[n], g[n]), 4)
    h_turned, g_turned = (x.mT.contiguous().mT for x in (h, g))
    assert torch.equal(gelu_gate(h_turned, g_turned), gelu_gate(h, g))
