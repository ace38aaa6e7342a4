"""Checks of a custom mixer on random inputs (B, L, D), before anything is trained.

Every mistake is reported in one line that says what to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mecheval.analysis.runs import alone
from mecheval.custom import MADE_BY, file_of, line_in
from mecheval.errors import UserError, said
from mecheval.evaluation.probe import Probe, described, is_close
from mecheval.mixers import Mixer, adapter
from mecheval.mixers.base import make_mixer
from mecheval.ops.queries import take

BATCH = 3
"""Number of documents. Lengths and widths differ from it, so that no axis can be mistaken for another."""
MIDDLE, LONG = 12, 64
"""Tokens in most checks: enough to reveal a window, few enough to be quick, and never more than the task has."""
STIR = 0.05
"""Standard deviation of the noise added to weights: a mixer that starts at zero would hide its mistakes."""


def check_mixer(cls: type[nn.Module], options: Mapping[str, Any], d_model: int, longest: int) -> list[str]:
    """Build a mixer and try it on random inputs (B, L, D); returns warnings about what is odd but not wrong.

    `longest` is the length of the task's longest document.
    """
    check_class(cls)
    with alone(1):  # with a separate random state
        torch.default_generator.manual_seed(0)
        mixer = _built(cls, options, d_model)
        warnings = [] if _repeats(cls, options, d_model, mixer) else [
            f"{cls.__name__} does not draw its initial weights from torch's generator; its runs cannot be repeated."
        ]  # fmt: skip
        probe = Probe(cls.__name__, mixer, file_of(cls), longest)
        middle = min(MIDDLE, longest)
        for length in dict.fromkeys((1, longest, middle)):
            _check_output(probe, length, d_model)
        with torch.no_grad():
            probe.check_forgets(probe.draw(BATCH, middle, d_model))
        warnings += _check_gradients(probe, middle, d_model)
        with torch.no_grad():
            probe.stirred(STIR, probe.draw(BATCH, middle, d_model))
            probe.check_forgets(probe.draw(BATCH, middle, d_model))
            probe.check_repeats(probe.draw(BATCH, middle, d_model))
            for length in dict.fromkeys((middle, min(7, longest), min(LONG, longest))):
                x = probe.draw(BATCH, length, d_model)
                probe.check_alone(x)
                probe.check_causal(x)
            if isinstance(mixer, Mixer):
                _check_at(probe, mixer, middle, d_model)
            if probe.ignores(probe.draw(BATCH, middle, d_model)):
                warnings.append(f"the output of {cls.__name__} does not depend on its input at all.")
    return warnings


def check_class(cls: type[nn.Module]) -> None:
    """Raise an error for a class that says before it is built that it cannot be a mixer."""
    if cls.forward is nn.Module.forward and MADE_BY not in vars(cls):
        raise UserError(f"{cls.__name__} has no forward; write `def forward(self, x)` with x (B, L, D) -> (B, L, D).")


def arguments_of(cls: type[nn.Module]) -> tuple[list[str], bool]:
    """Names of a mixer's options, and whether it accepts any other keyword, too."""
    declared = getattr(cls, "Options", None)
    return adapter.option_names(cls) if declared is None else (list(declared.model_fields), False)


def how_called(cls: type[nn.Module], options: Mapping[str, Any], d_model: int) -> str:
    """How a mixer is called and what is taken of its output, in words; call it after `check_mixer`."""
    if getattr(cls, "Options", None) is not None:
        return f"{cls.__name__}(d_model={d_model})"
    with alone(1), torch.no_grad():
        mixer = _built(cls, options, d_model)
        probe = Probe(cls.__name__, mixer, None, 1)
        probe.run(probe.draw(1, 1, d_model))
    call = str(adapter.call_of(cls, cls.__name__, d_model, 0, options))
    return f"{call}, takes the first of the {probe.taken} that forward returns" if probe.taken else call


def _built(cls: type[nn.Module], options: Mapping[str, Any], d_model: int) -> nn.Module:
    name = cls.__name__
    try:
        mixer = make_mixer(cls, name, d_model, 0, dict(options))
    except Exception as problem:
        error = problem.__cause__ if isinstance(problem, UserError) else problem
        if not isinstance(error, Exception):
            raise
        call = adapter.call_of(cls, name, d_model, 0, options)
        known = adapter.option_names(cls)[0]
        cure = f". Its options are set by --set NAME=VALUE: {', '.join(known)}." if known else ""
        where = line_in(file_of(cls), error)
        raise UserError(f"{call} failed{where}: {described(error)}{cure}") from None
    try:
        inspect.signature(type(mixer).forward).bind(None, None)
    except TypeError as error:
        raise UserError(
            f"{name}.forward must work with x (B, L, D) alone: {error}. Give the others defaults and make them inside "
            "forward, or write a module that calls it with all of them."
        ) from None
    if lost := _lost(mixer):
        raise UserError(
            f"{name} has layers or parameters in a plain list ({lost}), where they are neither trained nor saved; use "
            "nn.ModuleList or nn.ParameterList."
        )
    if any(isinstance(each, nn.UninitializedParameter) for each in mixer.parameters()):
        raise UserError(f"{name} has lazy parameters; give every layer its size, which follows from d_model.")
    return mixer


def _lost(mixer: nn.Module) -> str | None:
    """The first list or dictionary of a mixer that has parameters of which torch does not know."""
    known = {id(weight) for weight in mixer.parameters()}
    for part in mixer.modules():
        for name, value in vars(part).items():
            inside = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else ()
            for each in inside if not name.startswith("_") else ():
                weights = each.parameters() if isinstance(each, nn.Module) else [each]
                if any(isinstance(one, nn.Parameter) and id(one) not in known for one in weights):
                    return name
    return None


def _repeats(cls: type[nn.Module], options: Mapping[str, Any], d_model: int, mixer: nn.Module) -> bool:
    """Whether the same seed gives the same weights."""
    torch.default_generator.manual_seed(0)
    again = dict(_built(cls, options, d_model).named_parameters())
    return all(torch.equal(weight, again[name]) for name, weight in mixer.named_parameters() if name in again)


def _check_output(probe: Probe, length: int, d_model: int) -> None:
    before = {name: value.shape for name, value in probe.mixer.state_dict().items()}
    for training in (True, False):
        probe.check_output(probe.draw(BATCH, length, d_model), training)
    grown = [name for name, value in probe.mixer.state_dict().items() if before.get(name) != value.shape]
    if grown:
        raise UserError(
            f"{probe.name} makes {grown[0]} in forward; make it in __init__, so that it is trained and saved."
        )


def _check_gradients(probe: Probe, length: int, d_model: int) -> list[str]:
    """Check that gradients are finite. A mixer may lack parameters; parameters without a gradient give a warning."""
    x = probe.draw(BATCH, length, d_model).requires_grad_()
    y = probe.run(x, training=True)
    weights = {name: weight for name, weight in probe.mixer.named_parameters() if weight.requires_grad}
    if not y.requires_grad:
        return [f"no gradient passes through {probe.name} (is there a detach or a no_grad in it?)."]
    try:
        y.square().mean().backward()
    except RuntimeError as error:
        raise UserError(f"the gradient of {probe.name} cannot be computed: {said(error)}") from None
    gradients: dict[str, Tensor | None] = {"its input": x.grad}
    gradients |= {name: weight.grad for name, weight in weights.items()}
    for name, gradient in gradients.items():
        if gradient is not None and not gradient.isfinite().all():
            kind = "NaN" if gradient.isnan().any() else "infinite"
            raise UserError(f"{probe.name}: the gradient of {name} is {kind} for ordinary inputs.")
    probe.mixer.zero_grad(set_to_none=True)
    if weights and all(gradients[name] is None for name in weights):
        return [f"no parameter of {probe.name} gets a gradient, so none is trained."]
    return []


def _check_at(probe: Probe, mixer: Mixer, length: int, d_model: int) -> None:
    x, at = probe.draw(BATCH, length, d_model), torch.tensor([[0, length - 1], [length - 1, 0], [0, 0]])
    wanted, got = take(probe.run(x), at), mixer(x, at)
    if got.shape != wanted.shape or not is_close(got, wanted):
        raise UserError(
            f"{probe.name}: forward(x, at) must give the outputs at positions `at` (B, K), as forward(x) does."
        )
