"""Checks of a custom mixer on random inputs (B, L, D), before anything is trained.

Every mistake is reported in one line that says what to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mecheval.analysis.runs import alone
from mecheval.custom import file_of, line_in
from mecheval.errors import UnknownName, UserError, said
from mecheval.mixers import Mixer
from mecheval.mixers.base import make_mixer
from mecheval.ops.queries import take

ROUNDING = 1e-4
"""Largest difference, relative to the largest output, that rounding explains; an FFT spreads it over all positions."""
SEED = 1


class Probe:
    """Runs a mixer with the same random numbers every time, so that dropout never makes two runs differ."""

    def __init__(self, name: str, mixer: nn.Module, file: Path | None) -> None:
        self.name, self.mixer, self.file = name, mixer, file
        self._generator = torch.Generator().manual_seed(SEED)  # separate from torch's own, which every run resets

    def draw(self, *shape: int) -> Tensor:
        """Random inputs as large as activations after a norm."""
        return torch.randn(shape, generator=self._generator)

    def run(self, x: Tensor, training: bool = False, seed: int = SEED) -> Tensor:
        """The output of the mixer; an error inside it is reported with the line in the user's file."""
        torch.default_generator.manual_seed(seed)
        self.mixer.train(training)
        try:
            y: Tensor = self.mixer(x)
        except UserError:
            raise
        except Exception as error:
            where = line_in(self.file, error)
            raise UserError(f"{self.name}.forward failed on an input {tuple(x.shape)}{where}: {said(error)}") from None
        return y

    def stirred(self, spread: float, x: Tensor) -> None:
        """Add a little noise to the weights; undo that if it makes the output for x infinite."""
        before = {name: weight.clone() for name, weight in self.mixer.named_parameters()}
        for weight in self.mixer.parameters():
            if weight.is_floating_point():
                weight.add_(spread * self.draw(*weight.shape))
        if not self.run(x).isfinite().all():
            for name, weight in self.mixer.named_parameters():
                weight.copy_(before[name])

    def check_output(self, x: Tensor, training: bool) -> None:
        """Check that the output has the shape of the input, and that it is finite."""
        with torch.no_grad():
            y = self.run(x, training)
        if isinstance(y, tuple | list):
            raise UserError(f"{self.name}.forward returns a {type(y).__name__}; return the tensor (B, L, D) alone.")
        if not isinstance(y, Tensor):
            raise UserError(f"{self.name}.forward returns {type(y).__name__}, not a tensor (B, L, D).")
        if y.shape != x.shape:
            raise UserError(
                f"{self.name}.forward gives shape {tuple(y.shape)} for an input (B, L, D) of {tuple(x.shape)}; "
                "both must be the same."
            )
        if y.dtype != x.dtype:
            raise UserError(f"{self.name}.forward gives {y.dtype} for an input of {x.dtype}; both must be the same.")
        bad = (~y.isfinite()).any(-1).nonzero()
        if len(bad):
            kind = "NaN" if y.isnan().any() else "infinite numbers"
            where = f"at position {int(bad[0, 1])} of {x.shape[1]}"
            raise UserError(f"{self.name} gives {kind} {where}, for ordinary inputs and with its initial weights.")

    def check_repeats(self, x: Tensor) -> None:
        """Check that the same input gives the same output in evaluation mode."""
        if not is_close(self.run(x), self.run(x, seed=SEED + 1)):
            raise UserError(
                f"{self.name} gives two outputs for the same input in evaluation mode; "
                "switch off dropout and noise unless self.training."
            )

    def check_alone(self, x: Tensor) -> None:
        """Check that a document's output depends neither on the other documents nor on its place in the batch.

        Every document is changed once, and the outputs of all others must stay the same. This reveals a leak whether it
        reaches later, earlier or neighbouring documents, or passes through a mean or maximum of the batch.
        """
        for training in (True, False):
            y = self.run(x, training)
            for changed in range(len(x)):
                other = x.clone()
                other[changed] = self.draw(*x[changed].shape)
                moved = (self.run(other, training) - y).abs().amax((1, 2))  # (B,)
                moved[changed] = 0.0
                document = int(moved.argmax())
                if not float(moved[document]) <= tolerance(y):
                    mode = "training" if training else "evaluation"
                    raise UserError(
                        f"{self.name} mixes the documents of a batch in {mode} mode: changing document {changed} "
                        f"changes the output of document {document} by {float(moved[document]):.2g}. Normalise over "
                        "the last axis (LayerNorm, RMSNorm), not over the batch, and give PyTorch's layers "
                        "batch_first=True."
                    )
        check_each_alone(self.name, "output", self.run, x, y)

    def check_causal(self, x: Tensor) -> None:
        """Check that a change at position t changes no output before t, in both modes; the worst case is reported."""
        length = x.shape[1]
        for training in (True, False):
            y = self.run(x, training)
            worst = (0.0, 0, 0)
            for t in sorted({1, 2, length // 3, length // 2, length - 2, length - 1} & set(range(1, length))):
                changed = x.clone()
                changed[:, t] = self.draw(*x[:, t].shape)
                moved = (self.run(changed, training) - y)[:, :t].abs().amax((0, 2))  # (t,)
                s = int(moved.argmax())
                worst = max(worst, (float(moved[s]), t, s))
            if worst[0] > tolerance(y):
                change, t, s = worst
                raise UserError(
                    f"{self.name} is not causal: changing the input at position {t} changes the output at position {s} "
                    f"by {change:.2g}, so a model could read the answer from the future. Mask it, e.g. "
                    "scores.masked_fill(future, -inf), is_causal=True, or padding on the left of a convolution alone."
                )

    def ignores(self, x: Tensor) -> bool:
        """Whether the output is the same for any input."""
        return torch.equal(self.run(x), self.run(self.draw(*x.shape)))


def check_each_alone(name: str, what: str, run: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> None:
    """Check that every document x[i] has the output y[i] when it is run alone, too, wherever in the batch it stands."""
    for i in range(len(x)):
        if not is_close(run(x[i : i + 1]), y[i : i + 1]):
            raise UserError(
                f"{name} gives document {i} another {what} alone than in a batch of {len(x)}; documents come first, "
                "(n, L, ...), and must not depend on each other (PyTorch's layers need batch_first=True)."
            )


def is_close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal up to rounding."""
    return float((a - b).abs().max()) <= tolerance(b)


def tolerance(y: Tensor) -> float:
    """The largest difference from y that rounding explains."""
    return ROUNDING * max(float(y.abs().max()), 1e-12)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode while the context lasts; afterwards every module has its previous mode."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


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
    check_class(cls, options)
    with alone(1):  # with a separate random state
        torch.default_generator.manual_seed(0)
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
    """Raise an error for mistakes in a class that show before it is built."""
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


def arguments_of(cls: type[nn.Module]) -> tuple[list[str], bool]:
    """Names of a mixer's options, and whether it accepts any other keyword, too."""
    declared = getattr(cls, "Options", None)
    if declared is not None:
        return list(declared.model_fields), False
    given = inspect.signature(cls).parameters.values()
    names = [p.name for p in given if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return [name for name in names if name not in ("d_model", "layer")], any(p.kind is p.VAR_KEYWORD for p in given)


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
