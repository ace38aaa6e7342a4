"""What can be wrong with an own mixer, found before anything is trained: each one line that says what to do."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mecheval.analysis.runs import alone
from mecheval.errors import UnknownName, UserError
from mecheval.evaluation.behaviour import Probe, is_close
from mecheval.evaluation.options import arguments_of
from mecheval.mixers import Mixer
from mecheval.mixers.base import make_mixer
from mecheval.mixers.sourcecode import file_of, line_in, said
from mecheval.ops.queries import take

BATCH = 3
"""Documents; with lengths and widths that differ from it, no axis is taken for another."""
MIDDLE, LONG = 12, 64
"""Tokens of most checks: enough for a window to show, few enough to be quick. Never more than the task's longest."""
STIR = 0.05
"""Spread of what is added to weights: a mixer that starts as zero would hide what it does."""


def check_mixer(cls: type[nn.Module], options: Mapping[str, Any], d_model: int, longest: int) -> list[str]:
    """Build a mixer and try it on random inputs (B, L, D); warnings, for what is odd but not wrong.

    `longest` is the length of the task's longest document.
    """
    check_class(cls, options)
    with alone(1):  # with random numbers of our own
        torch.manual_seed(0)
        mixer = _built(cls, options, d_model)
        warnings = [] if _repeats(cls, options, d_model, mixer) else [
            f"{cls.__name__} does not draw its initial weights from torch's generator; its runs cannot be repeated."
        ]  # fmt: skip
        probe = Probe(cls.__name__, mixer, file_of(cls))
        middle = min(MIDDLE, longest)
        for length in dict.fromkeys((1, longest, middle)):
            _check_output(probe, length, d_model)
        warnings += _check_gradients(probe, middle, d_model)
        with torch.no_grad():
            probe.stirred(STIR, probe.draw(BATCH, middle, d_model))
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


def check_class(cls: type[nn.Module], options: Mapping[str, Any]) -> None:
    """What shows without building it."""
    name = cls.__name__
    if cls.forward is nn.Module.forward:
        raise UserError(f"{name} has no forward; write `def forward(self, x)` with x (B, L, D) -> (B, L, D).")
    if getattr(cls, "Options", None) is None:
        given = inspect.signature(cls).parameters
        if "d_model" not in given and not any(p.kind is p.VAR_KEYWORD for p in given.values()):
            raise UserError(f"{name} must take its width by name: def __init__(self, d_model, ...).")
        needed = [
            p.name for p in given.values() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        missing = [each for each in needed if each not in (*options, "d_model", "layer")]
        if missing:
            commands = " ".join(f"--set {each}=VALUE" for each in missing)
            python = ", ".join(f"{each!r}: ..." for each in missing)
            raise UserError(f"{name} needs {', '.join(missing)}; give {commands} (in Python options={{{python}}}).")
    accepted, any_name = arguments_of(cls)
    for option in options:
        if option not in accepted and not any_name:
            raise UnknownName(f"option of {name}", option, accepted)
    try:
        inspect.signature(cls.forward).bind(None, None)
    except TypeError as error:
        raise UserError(f"{name}.forward must work with x (B, L, D) alone: {error}.") from None


def _built(cls: type[nn.Module], options: Mapping[str, Any], d_model: int) -> nn.Module:
    name = cls.__name__
    try:
        mixer = make_mixer(cls, name, d_model, 0, dict(options))
    except UserError:
        raise
    except Exception as error:
        call = ", ".join([f"d_model={d_model}", *(f"{key}={value!r}" for key, value in options.items())])
        raise UserError(f"{name}({call}) failed{line_in(file_of(cls), error)}: {said(error)}") from None
    if any(isinstance(each, nn.UninitializedParameter) for each in mixer.parameters()):
        raise UserError(f"{name} has lazy parameters; give every layer its size, which follows from d_model.")
    return mixer


def _repeats(cls: type[nn.Module], options: Mapping[str, Any], d_model: int, mixer: nn.Module) -> bool:
    """Whether the same seed gives the same weights."""
    torch.manual_seed(0)
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
    """Finite where there are any; a mixer without parameters is fine, one whose parameters get none is odd."""
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
