"""Initial weights have the published distributions, checked on enough numbers to tell each from its neighbours."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from scipy import stats

from mecheval.mixers import MIXERS
from mecheval.mixers.parts import OwnLinear
from mecheval.model.lm import LM

ENOUGH = 1e-4  # the seed is fixed


def normal(values: torch.Tensor, std: float) -> float:
    return float(stats.kstest(values.detach().flatten().numpy(), "norm", args=(0, std)).pvalue)


def uniform(values: torch.Tensor, bound: float) -> float:
    return float(stats.kstest(values.detach().flatten().numpy(), "uniform", args=(-bound, 2 * bound)).pvalue)


def named(model: LM, pattern: str) -> list[torch.Tensor]:
    found: list[torch.Tensor] = [p for name, p in model.named_parameters() if re.search(pattern, name)]
    assert found, pattern
    return found


@pytest.mark.parametrize("mixer", [name for name in MIXERS.names() if not name.startswith("mamba")])
@pytest.mark.parametrize("n_layers", [2, 3])
def test_transformer_type_models(mixer: str, n_layers: int) -> None:
    model = LM(300, 32, n_layers, mixer, seed=1)
    scaled = r"(out_proj|fc2)\.weight$"
    for name, module in model.named_modules():
        if isinstance(module, OwnLinear):
            assert mixer == "rwkv7"
        elif isinstance(module, torch.nn.Linear):
            std = 0.02 / math.sqrt(2 * n_layers) if re.search(scaled, name + ".weight") else 0.02
            assert normal(module.weight, std) > ENOUGH, name
            assert module.bias is None or not module.bias.any(), name
        elif isinstance(module, torch.nn.LayerNorm):
            assert (module.weight == 1).all()
            assert not module.bias.any()
        elif isinstance(module, torch.nn.Conv1d):
            bound = module.kernel_size[0] ** -0.5
            assert uniform(module.weight, bound) > ENOUGH, name
            assert module.bias is None or uniform(module.bias, bound) > ENOUGH, name
    assert normal(model.embed.weight, 0.02) > ENOUGH
    if model.embed_positions is not None:
        assert normal(model.embed_positions.weight, 0.02) > ENOUGH


def test_mamba_type_models() -> None:
    n_layers, d, E, R = 3, 64, 128, 4
    model = LM(300, d, n_layers, "mamba", seed=1)
    assert normal(model.embed.weight, 0.02) > ENOUGH
    for weight in named(model, r"in_proj\.weight"):
        assert uniform(weight, d**-0.5) > ENOUGH
    for weight in named(model, r"x_proj\.weight"):
        assert uniform(weight, E**-0.5) > ENOUGH
    for weight in named(model, r"out_proj\.weight"):
        assert uniform(weight, E**-0.5 / math.sqrt(n_layers)) > ENOUGH
    for weight in named(model, r"dt_proj\.weight"):
        assert uniform(weight, R**-0.5) > ENOUGH
    for value in named(model, r"conv1d\.(weight|bias)"):
        assert uniform(value, 0.5) > ENOUGH
    steps = torch.cat([torch.nn.functional.softplus(b) for b in named(model, r"dt_proj\.bias")])
    log_range = math.log(0.1) - math.log(0.001)
    p = stats.kstest(steps.detach().log().numpy(), "uniform", args=(math.log(0.001), log_range)).pvalue
    assert p > ENOUGH
    for value in named(model, r"A_log"):
        assert torch.allclose(value, torch.arange(1.0, 17).log().expand(E, 16))
    for value in named(model, r"mixer\.D$"):
        assert (value == 1).all()


def steps_start_log_uniform(dt_bias: list[torch.Tensor]) -> bool:
    """Whether softplus of these is log-uniform on [0.001, 0.1]."""
    logs = torch.nn.functional.softplus(torch.cat([b.detach().flatten() for b in dt_bias])).log()
    low, high = math.log(0.001), math.log(0.1)
    return float(stats.kstest(logs.numpy(), "uniform", args=(low, high - low)).pvalue) > ENOUGH


def test_bare_parameters_of_newer_mixers() -> None:
    mamba2 = LM(50, 32, 2, "mamba2", {"num_heads": 32}, seed=1)
    assert steps_start_log_uniform(named(mamba2, "dt_bias"))
    assert all(torch.allclose(value, torch.arange(1.0, 33).log()) for value in named(mamba2, "A_log"))
    for weight in named(mamba2, r"out_proj\.weight"):
        assert uniform(weight, 64**-0.5 / math.sqrt(2)) > ENOUGH
    for mixer, least in (("gated_delta_net", 0.0), ("kda", 1.0)):
        model = LM(50, 128, 2, mixer, {"num_heads": 32}, seed=1)
        assert steps_start_log_uniform(named(model, "dt_bias"))
        A = torch.cat(named(model, "A_log")).detach().exp()
        assert float(stats.kstest(A.numpy(), "uniform", args=(least, 16 - least)).pvalue) > ENOUGH
    for value in named(LM(50, 32, 2, "mesa_net", seed=1), "lambda_params"):
        assert torch.allclose(torch.nn.functional.softplus(value) + 0.25, torch.ones(32))
    for value in named(LM(50, 64, 2, "rg_lru", seed=1), "recurrent_param"):
        decay = torch.exp(-8 * torch.nn.functional.softplus(value.detach()))
        assert float(stats.kstest(decay.square().numpy(), "uniform", args=(0.81, 0.999**2 - 0.81)).pvalue) > ENOUGH


def test_rwkv7_starts_with_spread_decays() -> None:
    """Its maps of low rank start at a constant, which the model around it leaves alone."""
    model = LM(50, 64, 2, "rwkv7", seed=1)
    for weight in named(model, r"lora\.0\.weight"):
        assert not weight.any()
    for bias in named(model, r"w_lora\.lora\.2\.bias"):
        torch.testing.assert_close(bias[[0, -1]].detach(), torch.tensor([-8.0, 3.0]))
    for share in named(model, r"x_k$"):
        torch.testing.assert_close(share.detach()[0, 0, [0, 32]], torch.tensor([1.0, 1 - 0.5**0.7]))


def test_bare_parameters_of_h3() -> None:
    model = LM(50, 32, 2, "h3", seed=1)
    for value in named(model, r"ssm_k_kernel\.kernel\.C"):
        assert uniform(value, 1 / 32) > ENOUGH
    for value in named(model, r"ssm_k_kernel\.kernel\.B"):
        assert (value[:, 0] == 1).all()
        assert not value[:, 1:].any()
    for value in named(model, r"mixer\.kernel\.kernel\.C"):
        assert normal(value, 0.5**0.5) > ENOUGH
    for value in named(model, r"mixer\.kernel\.kernel\.B"):
        assert (value == torch.tensor([1.0, 0.0])).all()
    for value in named(model, r"inv_A_real"):
        assert torch.allclose(value.exp(), torch.tensor(0.5))
    for value in named(model, r"A_imag"):
        assert torch.allclose(value, math.pi * torch.arange(512.0).expand_as(value))
    log_dt = torch.cat(named(model, r"log_dt"))
    assert stats.kstest(log_dt.detach().numpy(), "uniform", args=(math.log(0.001), math.log(100))).pvalue > ENOUGH
    assert normal(torch.cat(named(model, r"(ssm_k_D|mixer\.D)$")), 1) > ENOUGH


def test_bare_parameters_of_hyena() -> None:
    model = LM(50, 32, 2, "hyena", seed=1)
    assert normal(torch.cat(named(model, r"filter_fn\.bias")), 1) > ENOUGH
    assert all((value == 1).all() for value in named(model, r"freq"))
    mixer: Any = model.blocks[0].mixer
    z = mixer.filter_fn.pos_emb.z
    assert z[0, -1].tolist() == pytest.approx([1, math.cos(1e-4 * 2 * math.pi * 1023 / 1024), -6.277e-4], abs=1e-6)
