"""Every mixer and whole model equals the published implementation, on the readable and on the fast path."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from golden.cases import DATA, LM_CASES, MIXER_CASES, Case, relative_error
from mecheval.mixers import build_mixer
from mecheval.mixers.parts import RMSNorm
from mecheval.model import load_zoology
from mecheval.model.block import MLP
from mecheval.model.interop import our_name
from mecheval.ops import dispatch

FORWARD, GRADIENT = 1e-5, 1e-4
PATHS = ("reference", "fast")


def check_module(module: torch.nn.Module, case: Case) -> None:
    module.load_state_dict(case.group("param/"))
    x = case["input"].requires_grad_()
    y = module(x)
    assert relative_error(y, case["output"]) <= FORWARD
    (y * case["cotangent"]).sum().backward()
    assert x.grad is not None
    assert relative_error(x.grad, case["dinput"]) <= GRADIENT
    gradients = case.group("pgrad/")
    for name, parameter in module.named_parameters():
        if name in gradients:
            assert parameter.grad is not None, name
            assert relative_error(parameter.grad, gradients[name]) <= GRADIENT, name
        else:
            assert parameter.grad is None or not parameter.grad.any(), name
    assert set(gradients) <= {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", MIXER_CASES)
def test_mixer_equals_upstream(name: str, path: dispatch.Path) -> None:
    mixer, layer, options = MIXER_CASES[name]
    with dispatch.path(path):
        check_module(build_mixer(mixer, 16, layer, **options), Case(DATA / f"{name}__d16__L37__pert.npz"))


def test_mlp_and_rmsnorm_equal_upstream() -> None:
    check_module(MLP(16), Case(DATA / "mlp__d16__L37__pert.npz"))
    check_module(RMSNorm(16), Case(DATA / "rmsnorm__d16__L37__pert.npz"))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", LM_CASES)
def test_language_model_equals_upstream(name: str, path: dispatch.Path) -> None:
    mixer, options = LM_CASES[name]
    [file] = DATA.glob(f"lm_{name}__d16__*__pert.npz")
    case = Case(file)
    lm = load_zoology(case.group("param/"), mixer, **options)
    seen: dict[str, torch.Tensor] = {}

    def keep(site: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def listener(x: torch.Tensor) -> torch.Tensor:
            seen[site] = x
            return x

        return listener

    for site, tap in lm.taps().items():
        tap.listener = keep(site)
    with dispatch.path(path):
        logits = lm(case["tokens"])
        assert relative_error(logits, case["logits"]) <= FORWARD
        for i in range(2):
            for theirs, ours in (("block{}_input", "input"), ("block{}_output", "output")):
                assert relative_error(seen[f"blocks.{i}.{ours}"], case[theirs.format(i)]) <= FORWARD
            for theirs, ours in (("mixer{}_input", "mixer.input"), ("mixer{}_output", "mixer.output")):
                assert relative_error(seen[f"blocks.{i}.{ours}"], case[theirs.format(i)]) <= FORWARD
        [gradient] = torch.autograd.grad((logits * case["cotangent"]).sum(), seen["blocks.0.input"], retain_graph=True)
        assert relative_error(gradient, case["d_block0_input"]) <= GRADIENT
        labels = case["labels"]
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        assert relative_error(loss, case["loss"]) <= FORWARD
        loss.backward()
    ours_by_name = dict(lm.named_parameters())
    for upstream, gradient in case.group("pgrad/").items():
        ours_gradient = ours_by_name[our_name(upstream)].grad
        assert ours_gradient is not None, upstream
        assert relative_error(ours_gradient, gradient) <= GRADIENT, upstream
