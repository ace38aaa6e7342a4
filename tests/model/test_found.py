"""Convolutions of custom mixers are sites without being declared."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import mecheval as me
from mecheval.intervene import capture, interchange


class Padded(nn.Module):
    """A depthwise convolution with a meaningless name, padded on both sides and cut."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.foo = nn.Conv1d(d_model, d_model, 4, padding=3, groups=d_model)
        self.pointwise = nn.Conv1d(d_model, d_model, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.pointwise(self.foo(x.mT)[..., : x.shape[1]]).mT
        return y


class Flattened(Padded):
    """The same with documents and channels in one axis: there is no telling them apart."""

    def forward(self, x: Tensor) -> Tensor:
        b, length, d = x.shape
        wide = nn.functional.pad(x.mT.reshape(b * d, 1, length).expand(-1, d, -1), (3, 0))
        return nn.functional.conv1d(wide, self.foo.weight, groups=d)[:, 0].view(b, d, -1).mT


class Broken(Padded):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("only with a GPU")


def test_a_convolution_is_found_read_and_replaced() -> None:
    task = me.build_task("ar", pairs=3, keys=8, values=8)
    lm = me.LM(task.vocab_size, 16, 2, Padded, max_length=task.max_tokens, seed=0)
    assert [site for site in lm.sites() if site.kind == "short_conv"] == ["blocks.0.mixer.foo", "blocks.1.mixer.foo"]
    clean = task.sample(5, "test")
    [seen] = capture(lm, clean, ["blocks.0.mixer.foo"]).values()
    assert isinstance(seen, Tensor)
    length = clean.tokens.shape[1]
    assert seen.shape == (5, 16, length + 3)
    effects = interchange(lm, clean, task.corrupt(clean), ["blocks.0.mixer.foo"], ["key", "between", "query"])
    assert effects["restored"].nunique() > 1
    twin = copy.deepcopy(lm)
    with torch.no_grad():
        twin.get_parameter("blocks.0.mixer.foo.weight").zero_()
    assert not torch.equal(capture(twin, clean, ["blocks.0.mixer.foo"])["blocks.0.mixer.foo"], seen)
    assert torch.equal(capture(lm, clean, ["blocks.0.mixer.foo"])["blocks.0.mixer.foo"], seen)


@pytest.mark.parametrize("mixer", [Flattened, Broken])
def test_what_cannot_be_understood_is_no_site(mixer: type[nn.Module]) -> None:
    assert not [site for site in me.LM(20, 8, 1, mixer).sites() if site.kind == "short_conv"]
