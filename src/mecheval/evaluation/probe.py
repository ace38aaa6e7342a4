"""Runs a custom mixer on random inputs (B, L, D), and says in one line what is wrong with it and what to do."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mecheval.custom import line_in
from mecheval.errors import UserError, said
from mecheval.mixers.base import FirstOutput

ROUNDING = 1e-4
"""Largest difference, relative to the largest output, that rounding explains; an FFT spreads it over all positions."""
SEED = 1
IN_FLOAT = "build it without dtype=... or .to(...), or convert x, and the output back, inside forward."
"""What to do about weights or outputs of another type."""
LENGTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048)
"""Lengths that are tried to find out which ones a mixer takes that fails at another."""
FEW_LENGTHS = 3
"""Largest number of these that an error names."""


class Probe:
    """Runs a mixer with the same random numbers every time, so that dropout never makes two runs differ."""

    def __init__(self, name: str, mixer: nn.Module, file: Path | None, longest: int) -> None:
        self.name, self.mixer, self.file, self.longest = name, mixer, file, longest
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
            where, shape = line_in(self.file, error), tuple(x.shape)
            cure = self._cure(x, error)
            what = f"{self.name}.forward failed on an input {shape}{where}"
            raise UserError(f"{what}: {described(error)}{cure}") from None
        return y

    def _cure(self, x: Tensor, error: Exception) -> str:
        """What to do about an error in forward, as far as its kind is known; else nothing."""
        text, code = str(error), _code_of(error)
        kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in self.mixer.parameters()} - {"float32"}
        if "dtype" in text and kinds:
            return f". Its weights are {', '.join(sorted(kinds))}, and models here are float32: {IN_FLOAT}"
        if "NoneType" in text:
            given = list(inspect.signature(type(self.mixer).forward).parameters.values())[2:]
            for name in (each.name for each in given if each.default is None and each.name in code):
                return (
                    f". It is called with x alone, so {name} is None: make it inside forward, e.g. positions by "
                    "torch.arange(x.shape[1])."
                )
        if "embedding" in text and "indices" in text:
            return ". A mixer gets activations (B, L, D), not tokens; of a whole model, give me.evaluate an instance."
        if "CUDA" in text or "cuda" in code:
            return ". It is checked on the CPU: make tensors on x.device."
        if "numpy" in text:
            return ". Keep to torch's operations, because numpy's have no gradient."
        works = [length for length in LENGTHS if length != x.shape[1] and self._takes(x, length)]
        if not works:
            return ""
        most = _few(works)
        if set(works) >= {each for each in LENGTHS if each <= max(works)}:
            last = next(length for length in range(max(works), x.shape[1]) if not self._takes(x, length + 1))
            most = f"up to {last}"
        return (
            f". It takes {most} tokens, but documents have 1 to {self.longest}: make its tables longer, or pad inside "
            "forward and cut the output to the input's length."
        )

    def _takes(self, x: Tensor, length: int) -> bool:
        """Whether forward works on inputs of this length."""
        try:
            self.mixer(x.new_zeros(len(x), length, x.shape[2], requires_grad=x.requires_grad))
        except Exception:
            return False
        return True

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
        before = x.clone()
        with torch.no_grad():
            y = self.run(x, training)
        if not torch.equal(x, before):
            raise UserError(
                f"{self.name}.forward changes its input in place (x += ..., x[...] = ..., x.mul_()), which others also "
                "read; write x = x + ..., or begin with x = x.clone()."
            )
        if not isinstance(y, Tensor):
            what = f"{type(y).__name__}, and neither it nor its first part is"
            raise UserError(f"{self.name}.forward returns {what} a tensor (B, L, D).")
        if y.shape != x.shape:
            first = f"returns a {self.taken}, whose first tensor has" if self.taken else "gives"
            raise UserError(
                f"{self.name}.forward {first} shape {tuple(y.shape)} for an input (B, L, D) of {tuple(x.shape)}; "
                f"both must be the same{', and what is mixed must come first' if self.taken else ''}: a vector of the "
                "model's width for every position."
            )
        if y.dtype != x.dtype:
            raise UserError(
                f"{self.name}.forward gives {y.dtype} for an input of {x.dtype}; both must be the same: {IN_FLOAT}"
            )
        bad = (~y.isfinite()).any(-1).nonzero()
        if len(bad):
            kind = "NaN" if y.isnan().any() else "infinite numbers"
            where = f"at position {int(bad[0, 1])} of {x.shape[1]}"
            raise UserError(
                f"{self.name} gives {kind} {where}, for ordinary inputs and with its initial weights; is there "
                "a logarithm, root, exponential or division of what can be anything?"
            )

    @property
    def taken(self) -> str | None:
        """The kind of object of which the mixer's output is the first tensor; None if forward returns a tensor."""
        hooks = [hook for hook in self.mixer._forward_hooks.values() if isinstance(hook, FirstOutput)]
        return hooks[0].taken_from if hooks else None

    def check_forgets(self, x: Tensor) -> None:
        """Check that nothing is kept from one call to the next, so that documents are independent of those before."""
        before = _tensors_in(self.mixer)
        y = self.run(x)
        after = _tensors_in(self.mixer)
        try:
            again = self.run(x)
        except UserError:
            again = torch.full_like(y, torch.nan)
        if not is_close(again, y):
            kept = [name for name, value in after.items() if name not in before or not torch.equal(before[name], value)]
            what = f" ({kept[0]})" if kept else ""
            raise UserError(
                f"{self.name} keeps something from one call to the next{what}: the same input gives two outputs. "
                "Documents are independent: begin every forward with a fresh state, and do not store it in self."
            )

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


def _tensors_in(mixer: nn.Module) -> dict[str, Tensor]:
    """The tensors that a module has as buffers or plain attributes, by name."""
    inside = ((f"{name}." if name else "", module) for name, module in mixer.named_modules())
    each = ((f"{name}{key}", value) for name, module in inside for key, value in _attributes(module))
    return {name: value.detach().clone() for name, value in each if isinstance(value, Tensor)}


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for key, value in (*module._buffers.items(), *vars(module).items()):
        if isinstance(value, tuple | list):
            yield from ((key, inner) for inner in value)
        else:
            yield key, value


def _few(lengths: Sequence[int]) -> str:
    more = " ..." if lengths[FEW_LENGTHS:] else ""
    return ", ".join(map(str, lengths[:FEW_LENGTHS])) + more


def described(error: Exception) -> str:
    """An error in one line without its full stop; of an assertion without a message, the line of code."""
    return said(error).rstrip(".") if str(error) else f"{type(error).__name__}: {_code_of(error)}"


def _code_of(error: Exception) -> str:
    """The line of code that raised an error."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].line or "" if frames else ""


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
