"""Agreement with independent public implementations that run on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.peers import naive, naive_delta_rule
from mecheval.mixers import build_mixer
from mecheval.ops import dispatch
from mecheval.ops.linear_recurrence import linear_recurrence
from mecheval.ops.ridge import ridge
from ops import test_linear_recurrence as linear
from ops import test_ridge
from ops.agreement import assert_close, gradients

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


Rule = Callable[..., torch.Tensor]


def first(layout: int, rule: Callable[..., Any]) -> Rule:
    """The result alone of a rule over (B, H, L, .), if `layout` is 1, or (B, L, H, .), if it is 2.

    Peers divide q by the root of its width, which a caller of ours does.
    """

    def run(q: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        given = [x.transpose(1, 2) if layout == 1 else x for x in (q * q.shape[-1] ** 0.5, *rest)]
        found = rule(*given)
        o: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return o.transpose(1, 2) if layout == 1 else o

    return run


def simple_gla(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> Any:
    return naive("simple_gla").naive_recurrent_simple_gla(q, k, v, g)


def qwen(name: str) -> Callable[..., Any]:
    from transformers.models.qwen3_next import modeling_qwen3_next

    rule = getattr(modeling_qwen3_next, name)
    return lambda q, k, v, g, beta: rule(q, k, v, g=g, beta=beta, initial_state=None, output_final_state=False)


PEERS: dict[str, tuple[str, Callable[[], Rule]]] = {
    "simple_gla": ("retnet", lambda: first(2, simple_gla)),
    "simple_gla in chunks": ("retnet", lambda: first(2, naive("simple_gla").naive_chunk_simple_gla)),
    "gla": ("gla", lambda: first(2, naive("gla").naive_recurrent_gla)),
    "delta_rule": ("delta_net", lambda: first(1, naive("delta_rule").delta_rule_recurrence)),
    "gated_delta_rule": (
        "gated_delta_net",
        lambda: first(2, lambda q, k, v, g, beta: naive("gated_delta_rule").naive_recurrent_gated_delta_rule(
            q, k, v, beta, g)),
    ),
    "gated_delta_rule in chunks": (
        "gated_delta_net", lambda: first(2, naive("gated_delta_rule").naive_chunk_gated_delta_rule)
    ),
    "Qwen3-Next": ("gated_delta_net", lambda: first(2, qwen("torch_recurrent_gated_delta_rule"))),
    "Qwen3-Next in chunks": ("gated_delta_net", lambda: first(2, qwen("torch_chunk_gated_delta_rule"))),
    "kda": ("kda", lambda: first(2, naive("kda").naive_recurrent_kda)),
    "dplr": (
        "rwkv7",
        lambda: first(1, lambda q, k, v, g, a, b: naive("generalized_delta_rule/dplr").dplr_recurrence(
            q, k, v, a, b, g)),
    ),
}  # fmt: skip
"""Public recurrences, and the case of ours that each is; arguments come as q, k, v and that case's parts."""
SIZES = ((1, 1, 4, 4), (37, 3, 5, 9), (100, 2, 16, 6), (300, 2, 4, 7))
"""Length, heads, and the widths of keys and values."""


@pytest.mark.parametrize("peer", PEERS)
def test_linear_recurrence_equals_public_ones(peer: str) -> None:
    if naive("gla") is None:
        pytest.skip("flash-linear-attention is not installed; pip install fla-core to compare with it, too")
    if "Qwen" in peer:
        pytest.importorskip("transformers.models.qwen3_next")
    case, theirs = PEERS[peer]
    for length, heads, key_size, value_size in SIZES:
        given = linear.inputs(case, 2, length, heads, key_size, value_size)
        with dispatch.path("fast"):
            found = gradients(linear.op(case), given)
        assert_close(found, gradients(theirs(), given))


def test_fixed_decays_equal_retention() -> None:
    """Decays 1 - 2^(-5-h), which the peer knows by itself."""
    if naive("retention") is None:
        pytest.skip("flash-linear-attention is not installed; pip install fla-core to compare with it, too")
    for length, heads, key_size, value_size in SIZES:
        given = linear.inputs("linear attention", 2, length, heads, key_size, value_size)
        g = torch.log1p(-(2.0 ** (-5 - torch.arange(heads)))).expand(2, length, heads)
        found = gradients(lambda q, k, v, g=g: linear_recurrence(q, k, v, g=g), given)
        assert_close(found, gradients(first(1, naive("retention").naive_retention), given))


def test_ridge_regression_equals_mesa_net() -> None:
    if naive("mesa_net") is None:
        pytest.skip("flash-linear-attention is not installed; pip install fla-core to compare with it, too")

    def ours(q: torch.Tensor, k: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, *rest: torch.Tensor) -> Any:
        lamb, v = rest
        return linear_recurrence(ridge(q, k, g, beta, lamb), beta.unsqueeze(3) * k, v, g=g)

    def theirs(q: torch.Tensor, k: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, *rest: torch.Tensor) -> Any:
        lamb, v = rest
        return naive("mesa_net").naive_mesa_net_exact(q, k, v, g, lamb, beta)[0]

    for length, heads, size, _ in SIZES:
        given = test_ridge.inputs(2, length, heads, size)
        v = torch.randn(2, length, heads, size, generator=torch.Generator().manual_seed(0))
        assert_close(gradients(ours, [*given, v]), gradients(theirs, [*given, v]))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("heads", "window"), [(1, 1), (2, 5), (4, 16), (2, 64)])
def test_sliding_attention_equals_torch(heads: int, window: int, path: dispatch.Path) -> None:
    for length in (1, 37, 100, 300):
        ours: Any = build_mixer("sliding_attention", 32, num_heads=heads, window=window)
        theirs = nn.MultiheadAttention(32, heads, batch_first=True)
        with torch.no_grad():
            theirs.in_proj_weight.copy_(ours.Wqkv.weight)
            theirs.in_proj_bias.zero_()
            theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
        distance = torch.arange(length)[:, None] - torch.arange(length)
        mask = (distance < 0) | (distance >= window)
        with dispatch.path(path):
            check_same(ours, lambda x: theirs(x, x, x, attn_mask=mask, need_weights=False)[0], 32, length)  # noqa: B023


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [1, 100, 300])
def test_mamba2_and_rg_lru_equal_transformers(length: int, path: dispatch.Path) -> None:
    """At further lengths than those of the stored vectors."""
    mamba2 = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    gemma = pytest.importorskip("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
    from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig

    sizes: dict[str, Any] = {
        "hidden_size": 24,
        "num_heads": 3,
        "head_dim": 16,
        "state_size": 7,
        "n_groups": 1,
        "num_hidden_layers": 1,
    }
    ours = build_mixer("mamba2", 24, num_heads=3, d_state=7)
    theirs = mamba2.Mamba2Mixer(Mamba2Config(**sizes, chunk_size=16), 0)
    theirs.load_state_dict(ours.state_dict())
    with dispatch.path(path):
        check_same(ours, theirs, 24, length)
    ours = build_mixer("rg_lru", 24, num_heads=3, lru_width=18, conv1d_width=3)
    config = RecurrentGemmaConfig(hidden_size=24, num_attention_heads=3, lru_width=18, conv1d_width=3)
    block = gemma.RecurrentGemmaRecurrentBlock(config, 0)
    block.load_state_dict(ours.state_dict())
    place = torch.arange(length).expand(3, length)
    with dispatch.path(path):
        check_same(ours, lambda x: block(x, place, None, use_cache=False)[0], 24, length)
