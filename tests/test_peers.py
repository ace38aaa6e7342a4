"""Agreement with independent public implementations that run on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.peers import naive_delta_rule
from mecheval.mixers import build_mixer
from mecheval.ops import dispatch

PATHS = ("reference", "fast")


def check_close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    assert float((ours - theirs).detach().abs().max()) <= tolerance * float(theirs.detach().abs().max())


def check_same(ours: nn.Module, theirs: Callable[[torch.Tensor], torch.Tensor], d_model: int, length: int = 41) -> None:
    """Outputs and input gradients, for one random input and cotangent."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, length, d_model, generator=generator, requires_grad=True)
    cotangent = torch.randn(3, length, d_model, generator=generator)
    [a, b] = [f(x) for f in (ours, theirs)]
    check_close(a, b, 1e-5)
    [da], [db] = [torch.autograd.grad((y * cotangent).sum(), x) for y in (a, b)]
    check_close(da, db, 1e-4)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("heads", [1, 4])
def test_attention_equals_torch(heads: int, path: dispatch.Path) -> None:
    ours: Any = build_mixer("attention", 32, num_heads=heads)
    theirs = nn.MultiheadAttention(32, heads, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.Wqkv.weight)
        theirs.in_proj_bias.zero_()
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    mask = nn.Transformer.generate_square_subsequent_mask(41)
    with dispatch.path(path):
        check_same(ours, lambda x: theirs(x, x, x, attn_mask=mask, need_weights=False)[0], 32)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("d_conv", [4, 2])
def test_mamba_equals_transformers(d_conv: int, path: dispatch.Path) -> None:
    modeling = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    configuration = pytest.importorskip("transformers.models.mamba.configuration_mamba")
    sizes = {"hidden_size": 48, "state_size": 16, "expand": 2, "conv_kernel": d_conv, "use_bias": False}
    config = configuration.MambaConfig(**sizes, use_mambapy=False, use_associative_scan=False)  # the plain loop
    theirs = modeling.MambaMixer(config, layer_idx=0)
    ours = build_mixer("mamba", 48, d_conv=d_conv)
    theirs.load_state_dict(ours.state_dict())
    with dispatch.path(path):
        check_same(ours, theirs, 48)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("heads", [1, 2])
def test_delta_net_equals_flash_linear_attention(heads: int, path: dispatch.Path) -> None:
    recurrence = naive_delta_rule()
    if recurrence is None:
        pytest.skip("flash-linear-attention is not installed; pip install fla-core to compare with it, too")
    ours: Any = build_mixer("delta_net", 32, num_heads=heads)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        """Their recurrence inside a layer written out in PyTorch's own modules."""

        def project(linear: nn.Linear, conv: nn.Conv1d) -> torch.Tensor:
            u = linear(x).transpose(1, 2)
            u = nn.functional.conv1d(u, conv.weight, padding=3, groups=32)[..., : x.shape[1]]
            out: torch.Tensor = nn.functional.silu(u).unflatten(1, (heads, -1)).transpose(2, 3)  # (B, H, L, E)
            return out

        q, k = project(ours.q_proj, ours.q_conv1d), project(ours.k_proj, ours.k_conv1d)
        v = project(ours.v_proj, ours.v_conv1d)
        q, k = (a / (a.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for a in (q, k))
        beta = torch.sigmoid(ours.b_proj(x)).transpose(1, 2)
        o, _ = recurrence(q, k, v, beta)  # scales q by 1/sqrt(E) itself
        o = nn.functional.rms_norm(o, (32 // heads,), ours.o_norm.weight, 1e-5)
        out: torch.Tensor = ours.o_proj(o.transpose(1, 2).flatten(2))
        return out

    with dispatch.path(path):
        check_same(ours, theirs, 32)
