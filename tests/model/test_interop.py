from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mecheval as me
from golden.cases import DATA, Case
from mecheval.errors import UserError
from mecheval.model.interop import our_name


def weights(name: str) -> dict[str, torch.Tensor]:
    return Case(DATA / f"lm_{name}__d16__L37__pert.npz").group("param/")


def test_options_are_read_off_the_shapes() -> None:
    mamba: Any = me.load_zoology(weights("mamba"), "mamba").blocks[0].mixer
    assert (mamba.d_state, mamba.d_conv, mamba.d_inner) == (16, 4, 32)
    attention = me.load_zoology(weights("attention"), "attention")
    assert attention.embed_positions is not None
    assert len(attention.embed_positions.weight) == 1024
    long: Any = me.load_zoology(weights("base_conv_long_only"), "base_conv")
    assert [block.mixer.kernel_size for block in long.blocks] == [-1, -1]
    assert me.load_zoology(weights("based"), "based").embed_positions is None


@pytest.mark.parametrize(
    ("theirs", "options"), [("mamba_without_conv", {}), ("mamba", {"d_conv": 0})], ids=["their name", "our option"]
)
def test_mamba_without_convolution_has_to_be_said(theirs: str, options: dict[str, Any]) -> None:
    model = me.load_zoology(weights("mamba_without_conv"), theirs, **options)
    assert "blocks.0.mixer.conv" not in model.sites()


def test_arrays_load_as_well_as_tensors() -> None:
    tensors = weights("deltanet")
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in tensors.items()}
    tokens = torch.arange(3, 20)[None]
    # The very same calls, on weights that are copied into a model of its own either way.
    assert torch.equal(me.load_zoology(arrays, "deltanet")(tokens), me.load_zoology(tensors, "delta_net")(tokens))


def test_wrong_weights_are_one_clear_line() -> None:
    with pytest.raises(UserError, match="these weights are not those of 'attention'") as error:
        me.load_zoology(weights("mamba"), "attention")
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"no backbone\.embeddings\.word_embeddings\.weight"):
        me.load_zoology({"some.weight": torch.zeros(2)}, "mamba")
    with pytest.raises(UserError, match="unknown mixer 'mambo'"):
        me.load_zoology(weights("mamba"), "mambo")


def test_every_upstream_name_has_one_of_ours() -> None:
    assert our_name("backbone.layers.3.norm.weight") == "blocks.3.norm1.weight"
    assert our_name("backbone.layers.0.sequence_mixer.mixer.conv.conv.bias") == "blocks.0.mixer.conv.conv.bias"
    assert our_name("backbone.layers.1.state_mixer.fc1.weight") == "blocks.1.mlp.fc1.weight"
    assert our_name("backbone.ln_f.bias") == "norm.bias"
