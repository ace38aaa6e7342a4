from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mecheval.errors import UserError
from mecheval.mixers import BUILT_IN, Mixer, build_mixer
from mecheval.mixers.attention import rotate
from mecheval.mixers.base import make_mixer

d = 64


@pytest.mark.parametrize(
    ("name", "layer", "options", "expected"),
    [
        ("attention", 0, {}, 3 * d * d + d * d + d),
        ("base_conv", 0, {}, d * d + d + 3 * d + d),
        ("base_conv", 1, {}, d * d + d + (3 * 16 + 16) + (16 * d + d)),
        ("based", 0, {}, d * d + d + 3 * d + d),
        ("based", 1, {}, 2 * 8 * d + 2 * d * d),
        ("delta_net", 0, {}, 4 * d * d + d + 3 * 4 * d + d),
        ("delta_net", 0, {"use_short_conv": False, "num_heads": 2}, 4 * d * d + 2 * d + d // 2),
        # 4 linears; shift B and C; diagonal C, B (2 parts each), A (2 parts), step; two skips
        ("h3", 0, {}, 4 * (d * d + d) + 2 * d * 1024 + 32 * (512 * 6 + 1) + d + 32),
        # projections; short filter; skip; position features; filter MLP of 3-64-64-64-d; one shared frequency
        ("hyena", 0, {}, (3 * d * d + 3 * d) + (d * d + d) + 4 * 3 * d + d + 3 * 1024
         + (3 * 64 + 64) + 2 * (64 * 64 + 64) + 64 * d + 64),
        # E = 128, N = 16, R = 4
        # q and k 48 wide, v, gate and output 96; a and b; A_log and dt_bias; convolutions; norm
        ("gated_delta_net", 0, {}, 2 * 48 * d + 3 * 96 * d + 2 * d + 2 + 4 * (2 * 48 + 96) + 96),
        ("gated_delta_net", 0, {"use_gate": False, "use_short_conv": False, "num_heads": 2, "head_dim": 8,
         "expand_v": 1.5}, 2 * 16 * d + 2 * 24 * d + 2 * 2 * d + 2 * 2 + 12),
        # q, k, v, o; convolutions; decay of rank 64; strength; gate of rank 64 with a bias; A_log, dt_bias; norm
        ("kda", 0, {}, 4 * d * d + 12 * d + 2 * d * d + d + (2 * d * d + d) + (1 + d) + d),
        ("gla", 0, {}, 2 * 32 * d + 3 * d * d + (16 * d + 16 * 32 + 32) + d),
        ("gla", 0, {"use_short_conv": True, "use_output_gate": False, "num_heads": 2},
         2 * 32 * d + 2 * d * d + (16 * d + 16 * 32 + 32) + 4 * (2 * 32 + d) + d // 2),
        ("retnet", 0, {}, 2 * d * d + 3 * 2 * d * d + d),
        # gate and u 128, B and C 64, dt 2; convolution with bias; dt_bias, A_log, D; norm; output
        ("mamba2", 0, {}, (2 * 128 + 2 * 64 + 2) * d + 5 * (128 + 2 * 64) + 3 * 2 + 128 + 128 * d),
        # q, k, v, o; decay and strength with biases; λ; convolutions on q and k; norm of a head
        ("mesa_net", 0, {}, 4 * d * d + 2 * (2 * d + 2) + d + 2 * 4 * d + d // 2),
        # linear_x, linear_y, linear_out; convolution with bias; two gates with biases; Λ
        ("rg_lru", 0, {}, 3 * (d * d + d) + 5 * d + 2 * (d * d + d) + d),
        # r, k, v, o; six shares; k_k, k_a, r_k; decay and rate of rank 32 with biases, gate without; norm
        ("rwkv7", 0, {}, 4 * d * d + 6 * d + 3 * d + 3 * 2 * 32 * d + 2 * d + 2 * d),
        ("sliding_attention", 0, {"use_short_conv": True}, 4 * d * d + d + 4 * 3 * d),
        ("mamba", 0, {}, 256 * d + 128 * 5 + (4 + 32) * 128 + (4 * 128 + 128) + 128 * 16 + 128 + 128 * d),
    ],
)  # fmt: skip
def test_parameter_counts_worked_by_hand(name: str, layer: int, options: dict[str, Any], expected: int) -> None:
    mixer = build_mixer(name, d, layer, **options)
    assert sum(p.numel() for p in mixer.parameters() if p.requires_grad) == expected


@pytest.mark.parametrize(
    ("name", "layer", "options", "length", "expected"),
    [
        ("attention", 0, {}, 100, 2 * 100 * 64),
        ("attention", 0, {"num_heads": 4}, 100, 2 * 100 * 64),
        ("base_conv", 0, {}, 100, 2 * 64),  # the last two tokens
        ("base_conv", 0, {}, 1, 64),
        ("base_conv", 1, {}, 100, 100 * 64),
        ("based", 1, {}, 100, 73 * 65),  # 1 + 8 + 64 features, 64 values and a normaliser
        ("based", 1, {"num_heads": 2, "feature_dim": 4}, 100, 2 * 21 * 33),
        ("delta_net", 0, {}, 100, 64 * 64 + 3 * 3 * 64),
        ("delta_net", 0, {"num_heads": 2, "use_short_conv": False}, 100, 2 * 32 * 32),
        ("h3", 0, {}, 100, 64 * 1024 + 32 * 4 * 512 * 2),  # shift register; 4 products of 512 complex modes a head
        ("hyena", 0, {}, 100, 100 * 64 + 2 * 192),
        ("mamba", 0, {}, 100, 128 * 16 + 3 * 128),
        ("mamba", 0, {"d_conv": 0}, 100, 128 * 16),
        ("gated_delta_net", 0, {}, 100, 48 * 96 + 3 * (48 + 48 + 96)),
        ("kda", 0, {"num_heads": 2}, 100, 2 * 32 * 32 + 3 * 3 * 64),
        ("gla", 0, {}, 100, 32 * 64),
        ("gla", 0, {"use_short_conv": True, "conv_size": 3}, 1, 32 * 64 + 32 + 32 + 64),
        ("retnet", 0, {}, 100, 2 * 32 * 64),
        ("mamba2", 0, {}, 100, 2 * 64 * 64 + 3 * (128 + 2 * 64)),
        ("mamba2", 0, {"d_conv": 0}, 100, 2 * 64 * 64),
        ("mesa_net", 0, {}, 100, 2 * 2 * 32 * 32 + 2 * 3 * 64),  # two moments of two heads
        ("rg_lru", 0, {}, 100, 64 + 3 * 64),
        ("rg_lru", 0, {"lru_width": 96, "conv1d_width": 0}, 100, 96),
        ("rwkv7", 0, {}, 100, 64 * 64 + 64),  # and the token before
        ("sliding_attention", 0, {}, 100, 2 * 16 * 64),
        ("sliding_attention", 0, {"window": 8, "use_short_conv": True}, 3, 2 * 3 * 64 + 3 * 3 * 64),
    ],
)
def test_state_sizes_worked_by_hand(name: str, layer: int, options: dict[str, Any], length: int, expected: int) -> None:
    mixer = build_mixer(name, 64, layer, **options)
    assert isinstance(mixer, Mixer)
    assert mixer.state_size(length) == expected


@pytest.mark.parametrize(
    ("name", "d_model", "options", "message"),
    [
        ("mamab", 16, {}, "unknown mixer 'mamab'. Did you mean 'mamba'?"),
        ("mamba", 16, {"dconv": 3}, "unknown option of mamba 'dconv'. Did you mean 'd_conv'?"),
        ("mamba", 16, {"d_conv": -1}, "mamba: d_conv: input should be greater than or equal to 0 (got -1)"),
        ("mamba", 0, {}, "mamba: d_model must be positive"),
        ("attention", 16, {"num_heads": 3}, "attention: d_model=16 is not a multiple of num_heads=3"),
        ("attention", 6, {"num_heads": 2, "rotary": True}, "even head width (got 3)"),
        ("delta_net", 16, {"num_heads": 5}, "delta_net: d_model=16 is not a multiple of num_heads=5"),
        ("gated_delta_net", 16, {"num_heads": 3}, "gated_delta_net: its heads are 16 wide, which is not a multiple of"),
        ("gated_delta_net", 16, {"expand_v": 0.3}, "values of a head would be 3.6 wide, which is not a whole number"),
        ("gla", 5, {}, "gla: keys would be 2.5 wide, which is not a whole number"),
        ("retnet", 6, {}, "retnet: rotary positions need an even head width (got 3)"),
        ("mamba2", 16, {"num_heads": 5}, "mamba2: its channels are 32 wide, which is not a multiple of num_heads=5"),
        ("rg_lru", 16, {"num_heads": 32}, "rg_lru: its channels are 16 wide, which is not a multiple of num_heads=32"),
        ("rwkv7", 16, {"num_heads": 5}, "rwkv7: d_model=16 is not a multiple of num_heads=5"),
        ("mesa_net", 16, {"lambda_lower_bound": 0.0}, "mesa_net: lambda_lower_bound: input should be greater than 0"),
        ("sliding_attention", 16, {"window": 0}, "sliding_attention: window: input should be greater than or equal"),
        ("base_conv", 16, {"kernel_size": 0}, "a kernel size is 1 to 4096, or -1"),
        ("base_conv", 16, {"kernel_size": [3, -2]}, "a kernel size is 1 to 4096, or -1"),
        ("base_conv", 16, {"kernel_size": []}, "give 1 to 1000 kernel sizes"),
        ("based", 16, {"kernel_size": -3}, "a kernel size is 1 to 4096, or -1"),
        ("h3", 15, {}, "h3: d_model=15 is not a multiple of head_dim=2"),
    ],
)
def test_bad_options_are_one_clear_line(name: str, d_model: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build_mixer(name, d_model, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "layer"), [("hyena", 0), ("h3", 0), ("base_conv", 1)])
def test_documents_longer_than_the_filter_are_named(name: str, layer: int) -> None:
    mixer = build_mixer(name, 8, layer, l_max=16)
    mixer(torch.zeros(1, 16, 8))
    with pytest.raises(UserError, match="17 tokens exceed l_max=16"):
        mixer(torch.zeros(1, 17, 8))


def test_layers_alternate_as_in_the_paper() -> None:
    kinds = {name: [type(build_mixer(name, 8, layer)).__name__ for layer in range(4)] for name in BUILT_IN}
    assert kinds["based"] == ["BaseConv", "TaylorAttention"] * 2
    sizes = [build_mixer("base_conv", 8, layer).kernel_size for layer in range(4)]
    assert sizes == [3, -1, 3, -1]
    assert [build_mixer("base_conv", 8, layer, kernel_size=5).kernel_size for layer in range(2)] == [5, 5]


def test_rotary_scores_depend_on_the_distance_only() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=generator, dtype=torch.float64)
    scores = [
        (rotate(q, torch.tensor([[a]])) * rotate(k, torch.tensor([[b]]))).sum() for a, b in ((5, 2), (105, 102), (5, 3))
    ]
    assert torch.allclose(scores[0], scores[1])
    assert not torch.allclose(scores[0], scores[2])
    assert torch.equal(rotate(q, torch.tensor([[0]])), q)


class Plain(nn.Module):
    def __init__(self, d_model: int, width: int = 2, layer: int = 0) -> None:
        super().__init__()
        self.width, self.layer = width, layer


class Passing(Plain):
    def __init__(self, d_model: int, **rest: Any) -> None:
        super().__init__(d_model, **rest)


def test_a_module_from_elsewhere_gets_the_arguments_that_it_names() -> None:
    made: Any = make_mixer(Plain, "Plain", 8, 3, {"width": 5})
    assert (made.width, made.layer) == (5, 3)
    with pytest.raises(UserError, match="unknown option of Plain 'widht'"):
        make_mixer(Plain, "Plain", 8, 0, {"widht": 5})
    with pytest.raises(UserError, match=r"^Passing\(d_model=8, layre=1\) failed: TypeError: .*'layre'\.$"):
        make_mixer(Passing, "Passing", 8, 0, {"layre": 1})
