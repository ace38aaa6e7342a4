"""Laws of effective attention: weighted values add up to the result of every mixer, and no weight is on the future."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laws.test_mixers import VARIANTS, D, build, error, random
from mecheval.mixers import Mixer
from mecheval.sites import taps

LENGTH = 37


def seen(mixer: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """All activations of a mixer by the names of their sites, and its input."""
    found = {"input": x}
    for name, tap in taps(mixer):
        tap.listener = lambda value, name=name: found.setdefault(name, value)
    with torch.no_grad():
        mixer(x)
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("length", [1, LENGTH])
def test_weighted_values_are_the_result(variant: str, length: int) -> None:
    mixer: Any = build(variant, **({"d_state": 32} if variant == "h3" else {}))
    assert isinstance(mixer, Mixer)
    found = seen(mixer, random(2, length, D))
    weights, values, result = (found[name] for name in mixer.weighs)
    heads = weights.shape[1]
    assert weights.shape == (2, heads, length, length)
    assert float(weights.triu(1).abs().max()) == 0
    by_head = (x.reshape(2, length, heads, -1) for x in (values, result))
    values_BSHV, result_BLHV = by_head
    if variant.startswith("h3"):  # its output lies by entry, then head
        result_BLHV = result.reshape(2, length, -1, heads).transpose(2, 3)
    if hasattr(mixer, "conv") and mixer.weighs[1] == "input":
        bias = getattr(mixer.conv, "conv", None)
        result_BLHV = result_BLHV - (0 if bias is None else bias.bias[:, None])
    total = torch.einsum("bhls,bshv->blhv", weights, values_BSHV)
    assert error(total, result_BLHV) < 1e-5


@pytest.mark.parametrize("variant", ["attention, 2 heads", "sliding_attention, rotary", "based, attention"])
def test_weights_of_attention_sum_to_one(variant: str) -> None:
    mixer: Any = build(variant)
    weights = seen(mixer, random(2, LENGTH, D))[mixer.weighs[0]]
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]), rtol=1e-5, atol=0)
