"""Laws of every mixer: causality, fast = reference, independence of batch-mates and padding, `at`, gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mecheval.mixers import MIXERS, build_mixer
from mecheval.mixers.options import LONG
from mecheval.ops import dispatch
from ops.agreement import rounding

VARIANTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{name: (name, 0, {}) for name in MIXERS.names()},
    "attention, 2 heads": ("attention", 0, {"num_heads": 2}),
    "attention, rotary": ("attention", 0, {"num_heads": 2, "rotary": True, "bias": True}),
    "base_conv, long": ("base_conv", 1, {}),
    "base_conv, one tap": ("base_conv", 0, {"kernel_size": 1}),
    "based, attention": ("based", 1, {}),
    "based, attention, 2 heads": ("based", 1, {"num_heads": 2, "feature_dim": 3}),
    "based, long": ("based", 0, {"kernel_size": LONG}),
    "delta_net, 2 heads": ("delta_net", 0, {"num_heads": 2}),
    "delta_net, no conv": ("delta_net", 0, {"use_short_conv": False}),
    "h3, head of 4": ("h3", 0, {"head_dim": 4, "d_state": 64}),
    "hyena, skip": ("hyena", 0, {"filter_bias": True, "short_filter_order": 4}),
    "delta_net, signs": ("delta_net", 0, {"allow_neg_eigval": True}),
    "gated_delta_net, bare": ("gated_delta_net", 0, {"use_short_conv": False, "use_gate": False, "num_heads": 2}),
    "gated_delta_net, signs": ("gated_delta_net", 0, {"allow_neg_eigval": True, "head_dim": 5, "expand_v": 0.6}),
    "gla, conv": ("gla", 0, {"use_short_conv": True, "use_output_gate": False, "num_heads": 2}),
    "kda, bare": ("kda", 0, {"use_short_conv": False, "use_gate": False, "num_heads": 2, "expand_v": 1.5}),
    "kda, signs": ("kda", 0, {"allow_neg_eigval": True}),
    "mamba2, no conv": ("mamba2", 0, {"d_conv": 0, "d_state": 5, "num_heads": 4}),
    "mesa_net, bare": ("mesa_net", 0, {"use_short_conv": False, "use_output_gate": True, "num_heads": 1}),
    "retnet, conv": ("retnet", 0, {"use_short_conv": True, "rotary": False, "use_output_gate": False}),
    "rg_lru, bare": ("rg_lru", 0, {"conv1d_width": 0, "lru_width": 6, "num_heads": 3}),
    "rwkv7, bare": ("rwkv7", 0, {"token_shift": False, "use_gate": False, "num_heads": 2}),
    "rwkv7, conv": ("rwkv7", 0, {"use_short_conv": True, "conv_size": 3, "low_rank_dim": 3}),
    "sliding_attention, conv": ("sliding_attention", 0, {"use_short_conv": True, "window": 3, "num_heads": 2}),
    "sliding_attention, rotary": ("sliding_attention", 0, {"rotary": True, "bias": True, "window": 5}),
    "mamba, no conv": ("mamba", 0, {"d_conv": 0}),
    "mamba, 2 taps, 5 states": ("mamba", 0, {"d_conv": 2, "d_state": 5, "expand": 3}),
}
LENGTHS = (1, 2, 37, 63, 100)
PATHS: tuple[dispatch.Path, ...] = ("reference", "fast")
D = 8
ROUNDING = rounding(40)
"""What another order of additions explains, relative to the largest output: a library's products decide in every mixer,
over up to 40 tokens here, and take another order for another shape, another place in memory or another CPU."""


def build(variant: str, d_model: int = D, **more: Any) -> nn.Module:
    """With every parameter moved off its start, so that no term is trivially neutral."""
    name, layer, options = VARIANTS[variant]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mixer = build_mixer(name, d_model, layer, **{**options, **more})
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return mixer


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().abs().max()) / max(float(theirs.detach().abs().max()), 1e-30)


def gradients(mixer: nn.Module, x: Tensor, cotangent: Tensor, at: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """The output, and gradients of sum(output * cotangent): of the input, then of every parameter."""
    x = x.clone().requires_grad_()
    y = mixer(x) if at is None else mixer(x, at)
    wanted = [x, *(p for p in mixer.parameters() if p.requires_grad)]
    found = torch.autograd.grad((y * cotangent).sum(), wanted, allow_unused=True)
    return y, [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]


def assert_gradients(found: list[Tensor], wanted: list[Tensor], relative: float) -> None:
    """Each within `relative` of its largest entry, or of zero, where its terms cancel, by the rounding of those terms.

    They cancel in q's at length 1, say; such terms are as large as the gradients that do not cancel.
    """
    left = rounding(1) * max(float(g.abs().max()) for g in wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert float((ours - theirs).abs().max()) <= max(relative * float(theirs.abs().max()), left)


@pytest.mark.parametrize("variant", VARIANTS)
def test_fast_equals_the_double_precision_reference(variant: str) -> None:
    mixer = build(variant)
    exactly = copy.deepcopy(mixer).double()
    for length in LENGTHS:
        x, cotangent = random(3, length, D), random(3, length, D, seed=1)
        with dispatch.path("fast"):
            y, found = gradients(mixer, x, cotangent)
        exact_y, exact = gradients(exactly, x.double(), cotangent.double())
        assert error(y, exact_y) <= 1e-5, length
        assert_gradients(found, exact, 1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_changing_a_token_changes_no_earlier_output(variant: str) -> None:
    mixer, x = build(variant), random(2, 30, D)
    changed = x.clone()
    changed[:, 17] += 1
    for path in PATHS:
        with torch.no_grad(), dispatch.path(path):
            before, after = mixer(x), mixer(changed)
        assert error(after[:, :17], before[:, :17]) <= ROUNDING, path
        assert (after[:, 17] - before[:, 17]).abs().max() > 1e-4, path


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_document_depends_on_neither_batch_mates_nor_padding(variant: str) -> None:
    mixer, x = build(variant), random(4, 40, D)
    with torch.no_grad():
        together = mixer(x)
        for i in range(4):
            assert error(mixer(x[i : i + 1, :29])[0], together[i, :29]) <= ROUNDING
        for i in (0, 5):  # before all others and after them
            others = random(6, 40, D, seed=9) * 100
            others[i] = x[2]
            assert error(mixer(others)[i], together[2]) <= ROUNDING


@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_at_positions_are_those_of_the_whole(variant: str) -> None:
    mixer, x = build(variant), random(3, 21, D)
    at = torch.tensor([[20, 3, 3], [0, 1, 2], [19, 20, 5]])  # any order, repeats, the first tokens
    cotangent = random(3, 3, D, seed=1)
    spread = torch.zeros(3, 21, D).index_put((torch.arange(3)[:, None], at), cotangent, accumulate=True)
    for path in PATHS:
        with dispatch.path(path):
            whole, whole_gradients = gradients(mixer, x, spread)
            y, found = gradients(mixer, x, cotangent, at)
        assert error(y, whole[torch.arange(3)[:, None], at]) <= ROUNDING, path
        assert_gradients(found, whole_gradients, 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_positions_and_inputs_may_lie_in_memory_in_any_way(variant: str) -> None:
    mixer, x = build(variant), random(3, 21, D)
    layouts = [x, x.mT.contiguous().mT, x.transpose(0, 1).contiguous().transpose(0, 1), torch.cat([x, x], 2)[..., :D]]
    positions = [
        torch.tensor([[20, 0, 7], [3, 3, 1]]).mT,
        torch.tensor([[20, 2]]).expand(3, 2),
        torch.arange(30).view(3, 10)[:, ::4] % 21,
        torch.empty(3, 0, dtype=torch.int64),
    ]
    with torch.no_grad():
        whole = mixer(x)
        for each in layouts:
            assert error(mixer(each), whole) <= ROUNDING
            for at in positions:
                found, wanted = mixer(each, at), whole[torch.arange(3)[:, None], at]
                assert found.shape == wanted.shape
                assert not at.numel() or error(found, wanted) <= ROUNDING


@pytest.mark.parametrize("variant", VARIANTS)
def test_positions_that_do_not_exist_are_refused(variant: str) -> None:
    mixer, x = build(variant), random(2, 21, D)
    for wrong in ([[0], [21]], [[-1], [0]]):
        with pytest.raises(IndexError, match="there are positions 0 to 20"):
            mixer(x, torch.tensor(wrong))
    with pytest.raises(ValueError, match="at is int64 of shape"):
        mixer(x, torch.tensor([[0], [1]], dtype=torch.int32))


@pytest.mark.parametrize("variant", VARIANTS)
def test_double_precision_gradients_are_derivatives(variant: str) -> None:
    small = {"h3": {"d_state": 4}, "hyena": {"filter_order": 3, "l_max": 8}, "base_conv": {"l_max": 8}}
    name = VARIANTS[variant][0]
    mixer = build(variant, 4, **small.get(name, {})).double()
    parameters = {n: p for n, p in mixer.named_parameters() if p.requires_grad}

    def run(x: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(mixer, named, x)  # type: ignore[no-any-return]

    x = random(2, 4, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(run, (x, *parameters.values()), fast_mode=True)
