"""Models whose layers differ in their mixer: each layer has the block, the start and the options of its own mixer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mecheval.errors import UserError
from mecheval.mixers import build_mixer
from mecheval.model.block import Block
from mecheval.model.lm import LM
from ops.agreement import assert_close

TOKENS = torch.randint(3, 40, (3, 19), generator=torch.Generator().manual_seed(0))


def test_a_hybrid_is_its_blocks_one_after_the_other() -> None:
    lm = LM(40, 16, 4, "mamba+attention", {"mamba.d_state": 4, "num_heads": 2}, seed=0)
    h = lm.embedded(TOKENS)
    for layer in range(4):
        name, options = [("mamba", {"d_state": 4}), ("attention", {"num_heads": 2})][layer % 2]
        block = Block(16, build_mixer(name, 16, layer, **options))
        block.load_state_dict(lm.blocks[layer].state_dict())
        h = block(h)
    assert_close([lm(TOKENS)], [F.linear(lm.norm(h), lm.embed.weight)])


def test_patterns_lists_and_classes_name_the_same_model() -> None:
    first = LM(40, 16, mixer="2*mamba+attention", seed=0)
    same: list[Any] = ["mamba,mamba,attention", ["mamba", "mamba", "attention"], ["2*mamba", "attention"]]
    for mixer in same:
        other = LM(40, 16, mixer=mixer, seed=0)
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert LM(40, 16, 4, [nn.Identity, "attention"]).n_layers == 4
    one, two = LM(40, 16, mixer="2*mamba", seed=0), LM(40, 16, 2, "mamba", seed=0)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_each_layer_has_the_block_and_start_of_its_mixer() -> None:
    lm = LM(40, 64, mixer="mamba+attention+h3", mixer_options={"d_state": 8}, seed=0)
    blocks: list[Any] = list(lm.blocks)
    assert [block.is_mamba for block in blocks] == [True, False, False]
    assert float(blocks[0].mixer.out_proj.weight.detach().std()) == pytest.approx((3 * 128 * 3) ** -0.5, rel=0.05)
    assert float(blocks[1].mixer.out_proj.weight.detach().std()) == pytest.approx(0.02 / math.sqrt(6), rel=0.05)
    assert (blocks[0].mixer.d_state, blocks[2].mixer.options.d_state) == (8, 8)
    assert [site.block for site in lm.sites() if site.part == "mixer.conv"] == [0]
    parts = sum(p.numel() for block in blocks for p in block.parameters()) + 1024 * 64 + 40 * 64 + 2 * 64
    assert lm.n_parameters == parts
    assert lm.state_size(9) == sum(block.mixer.state_size(9) for block in blocks)


def test_positions_are_learned_if_one_mixer_is_used_with_them() -> None:
    assert LM(40, 16, mixer="mamba+attention").embed_positions is not None
    assert LM(40, 16, mixer="mamba+hyena").embed_positions is None
    rotary: Any = LM(40, 16, mixer="mamba+attention", positions="rotary")
    assert rotary.embed_positions is None
    assert rotary.blocks[1].mixer.rotary


def test_canon_stands_in_the_layers_that_have_a_place_for_it() -> None:
    sites = LM(40, 16, mixer="mamba+attention", canon="ABC").sites()
    assert [site for site in sites if "canon" in site] == [
        "blocks.0.canon_a", "blocks.1.canon_a", "blocks.1.canon_b", "blocks.1.canon_c",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mixer": "mamba+atention"}, "unknown mixer 'atention'. Did you mean 'attention'?"),
        ({"mixer": "mamba+"}, "mixer: write layers as mamba+attention or 3*mamba+attention (got 'mamba+')."),
        ({"mixer": "2*3*mamba"}, "mixer: write layers as"),
        ({"mixer": "0*mamba+attention"}, "mixer: write layers as"),
        ({"mixer": "-1*mamba+attention"}, "mixer: write layers as"),
        ({"mixer": "1001*mamba"}, "mixer: a pattern has at most 1,000 layers (got '1001*mamba')."),
        ({"mixer": []}, "LM: mixer must name at least one layer."),
        (
            {"mixer": "2*mamba+attention", "n_layers": 4},
            "n_layers=4 is not a multiple of the pattern's 3 layers; give 3",
        ),
        ({"mixer": "mamba+attention", "n_layers": 0}, "LM: n_layers must be positive (got 0)"),
        ({"mixer": "mamba+hyena", "positions": "rotary"}, "an option `rotary` (attention), not mamba+hyena."),
        (
            {"mixer": "mamba+attention", "mixer_options": {"d_stat": 2}},
            "unknown option of mamba+attention 'd_stat'. Did you mean 'd_state'? Choices: bias, d_conv",
        ),
        (
            {"mixer": "mamba+attention", "mixer_options": {"mambo.d_state": 2}},
            "unknown option of mamba+attention 'mambo.d_state'. Did you mean 'mamba.d_state'?",
        ),
        (
            {"mixer": "mamba+attention", "mixer_options": {"mamba.num_heads": 2}},
            "unknown option of mamba 'num_heads'. Choices: d_conv, d_state, expand.",
        ),
    ],
)
def test_mistakes_are_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        LM(40, 16, **arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
