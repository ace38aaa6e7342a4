"""Canon convolutions: their values by hand, their places in a block, and what they leave as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.model.canon import Canon
from mecheval.model.lm import LM
from mecheval.ops.queries import take
from ops.agreement import assert_close

TOKENS = torch.randint(3, 40, (3, 19), generator=torch.Generator().manual_seed(0))


def test_values_worked_by_hand() -> None:
    """Channel 0 has taps 1, 0, 2, -1 from the oldest token to the current one; channel 1 doubles the current token."""
    canon = Canon("canon_a", 2)
    canon.weight.data = torch.tensor([[[1.0, 0, 2, -1]], [[0, 0, 0, 1]]])
    h = torch.tensor([[[1.0, 1], [2, 2], [3, 3], [4, 4], [5, 5]]])
    # h_t + h_{t-3} + 2 h_{t-1} - h_t = h_{t-3} + 2 h_{t-1}
    assert canon(h)[0].tolist() == [[0, 2], [2, 4], [4, 6], [6 + 1, 8], [8 + 2, 10]]
    assert canon.bias is None
    assert [canon.state_size(length) for length in (0, 2, 9)] == [0, 4, 6]


def canon_of(block: Any, site: str, h: Tensor) -> Tensor:
    """The convolution by definition: h_t + Σ_j w_j h_{t-3+j}."""
    weight, padded = block.canon[site].weight[:, 0], F.pad(h, (0, 0, 3, 0))
    return h + torch.stack([weight[:, j] * padded[:, j : j + h.shape[1]] for j in range(4)]).sum(0)


@pytest.mark.parametrize("letters", ["", "A", "B", "C", "D", "ABCD"])
def test_each_letter_has_its_place_in_a_block_of_attention(letters: str) -> None:
    lm = LM(40, 16, 1, "attention", seed=0, canon=letters)
    block: Any = lm.blocks[0]

    def canon(letter: str, h: Tensor) -> Tensor:
        return canon_of(block, f"canon_{letter.lower()}", h) if letter in letters else h

    h = torch.randn(2, 11, 16, generator=torch.Generator().manual_seed(1))
    # Spelt out, because the modules themselves are followed by their convolutions.
    x = canon("A", F.layer_norm(h, (16,), block.norm1.weight, block.norm1.bias))
    q, k, v = (each[:, None] for each in canon("B", F.linear(x, block.mixer.Wqkv.weight)).split(16, dim=-1))
    wanted = h + block.mixer.out_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
    x = canon("C", F.layer_norm(wanted, (16,), block.norm2.weight, block.norm2.bias))
    hidden = canon("D", F.linear(x, block.mlp.fc1.weight, block.mlp.fc1.bias))
    wanted = wanted + block.mlp.fc2(F.gelu(hidden))
    assert_close([block(h)], [wanted])
    at = torch.tensor([[10, 0], [5, 2]])
    assert_close([block(h, at)], [take(wanted, at)])


def test_three_maps_have_a_convolution_each() -> None:
    lm = LM(40, 16, 1, "delta_net", {"use_short_conv": False}, seed=0, canon="B")
    block: Any = lm.blocks[0]
    seen: dict[str, Tensor] = {}
    for name, tap in block.taps().items():
        tap.listener = lambda x, name=name: seen.setdefault(name, x)
    h, at = torch.randn(2, 11, 16), torch.tensor([[10, 0], [5, 2]])
    y = block(h)
    for tap in block.taps().values():
        tap.listener = None
    assert_close([block(h, at)], [take(y, at)])
    for letter in "qkv":
        weight = getattr(block.mixer, f"{letter}_proj").weight
        wanted = canon_of(block, f"canon_b_{letter}", F.linear(seen["mixer.input"], weight))
        assert_close([seen[f"canon_b_{letter}"]], [wanted])


def test_sites_in_order_with_block_and_kind() -> None:
    sites = LM(40, 16, 2, "attention", canon="ABCD").sites()
    names = ["input", "canon_a", "mixer.input", "canon_b", "mixer.q", "mixer.k", "mixer.v", "mixer.pattern",
             "mixer.heads", "mixer.output", "canon_c", "mlp.input", "canon_d", "mlp.output", "output"]  # fmt: skip
    assert sites == [f"blocks.{i}.{name}" for i in range(2) for name in names]
    canons = [site for site in sites if site.kind == "short_conv"]
    assert [(site.block, site.part) for site in canons] == [(i, f"canon_{x}") for i in range(2) for x in "abcd"]


def test_all_other_weights_start_as_without() -> None:
    plain, canon = (
        LM(40, 16, 2, "hyena", seed=0).state_dict(),
        LM(40, 16, 2, "hyena", seed=0, canon="ABCD").state_dict(),
    )
    assert list(LM(40, 16, 2, "hyena", seed=0, canon="").state_dict()) == list(plain)
    added = {f"blocks.{i}.canon.canon_{letter}.weight" for i in range(2) for letter in "abcd"}
    assert canon.keys() - plain.keys() == added
    assert all(torch.equal(plain[name], canon[name]) for name in plain)
    assert all(0.3 < float(canon[name].abs().max()) <= 0.5 for name in added), "uniform on ±1/√4"


def test_sizes_worked_by_hand() -> None:
    plain, canon = LM(40, 16, 2, "attention"), LM(40, 16, 2, "attention", canon="ABCD")
    channels = 16 + 3 * 16 + 16 + 4 * 16
    assert canon.n_parameters - plain.n_parameters == 2 * 4 * channels
    assert [canon.state_size(n) - plain.state_size(n) for n in (2, 9)] == [2 * 2 * channels, 2 * 3 * channels]  # type: ignore[operator]


def test_a_copy_has_its_own_convolutions() -> None:
    lm = LM(40, 16, 2, "attention", seed=0, canon="ABCD")
    other, before = copy.deepcopy(lm), lm(TOKENS)
    for name, weight in lm.named_parameters():
        if "canon" in name:
            weight.data.zero_()
    assert not torch.allclose(lm(TOKENS), before)
    assert_close([other(TOKENS)], [before])


class Own(nn.Module):
    """A custom mixer with one map for q, k and v."""

    canon_b: tuple[str, ...] = ("qkv",)

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor) -> Tensor:
        qkv: Tensor = self.qkv(x)
        q, k, v = qkv.chunk(3, -1)
        return (q @ k.mT).tril() @ v


class Misnamed(Own):
    canon_b = ("q", "k")


class Flat(Own):
    def forward(self, x: Tensor) -> Tensor:
        qkv: Tensor = self.qkv(x.flatten(0, 1))
        return qkv.view(*x.shape[:2], 3, -1)[:, :, 0]


class Bare(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


def test_a_custom_mixer_names_its_maps_for_b_and_has_a_c_and_d_anyway() -> None:
    assert "blocks.1.canon_b" in LM(40, 16, 2, Own, canon="B").sites()
    model = LM(40, 16, 2, Bare, canon="ACD", seed=0)
    assert [site for site in model.sites() if "canon" in site][:3] == [f"blocks.0.canon_{x}" for x in "acd"]
    at = torch.tensor([4, 5, 6])
    assert_close([model(TOKENS, at=at)], [model(TOKENS)[torch.arange(3), at]])


@pytest.mark.parametrize(
    ("mixer", "canon", "message"),
    [
        ("mamba", "B", "B needs linear maps for q, k and v, which no layer of this model has. Letters that apply: A."),
        ("mamba", "AD", "canon: D needs an MLP, which no layer of this model has. Letters that apply: A."),
        ("base_conv", "B", "Letters that apply: A, C, D."),
        (Bare, "ABCD", "Letters that apply: A, C, D."),
        (Misnamed, "B", "Misnamed.canon_b must name one nn.Linear for q, k and v together, or three (got ('q', 'k'))."),
        ("attention", "AA", "canon: give some of the letters A, B, C, D, each once (got 'AA')."),
        ("attention", "E", "canon: give some of the letters A, B, C, D, each once (got 'E')."),
    ],
)
def test_mistakes_are_one_line_that_names_the_letters(mixer: Any, canon: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        LM(40, 16, 2, mixer, canon=canon)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_map_that_does_not_give_documents_is_named() -> None:
    with pytest.raises(UserError, match=r"Linear must give \(B, L, C\) here \(got \(57, 48\)\)"):
        LM(40, 16, 1, Flat, canon="B")(TOKENS)
