"""A mixer under test: how it answers to random inputs (B, L, D)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.mixers.sourcecode import line_in, said

ROUNDING = 1e-4
"""Differences, relative to the largest output, that rounding explains; a convolution by FFT spreads some over all."""
SEED = 1


class Probe:
    """Runs a mixer with the same random numbers every time, so that dropout is no difference between two runs."""

    def __init__(self, name: str, mixer: nn.Module, file: Path | None) -> None:
        self.name, self.mixer, self.file = name, mixer, file
        self._generator = torch.Generator().manual_seed(SEED)  # apart from torch's own, which every run sets back

    def draw(self, *shape: int) -> Tensor:
        """Ordinary inputs: after a norm, activations are about this large."""
        return torch.randn(shape, generator=self._generator)

    def run(self, x: Tensor, training: bool = False, seed: int = SEED) -> Tensor:
        """The output; what goes wrong inside is told with its line."""
        torch.manual_seed(seed)
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
        """Move the weights a little away from their start; back again where that makes the output of x infinite."""
        before = {name: weight.clone() for name, weight in self.mixer.named_parameters()}
        for weight in self.mixer.parameters():
            if weight.is_floating_point():
                weight.add_(spread * self.draw(*weight.shape))
        if not self.run(x).isfinite().all():
            for name, weight in self.mixer.named_parameters():
                weight.copy_(before[name])

    def check_output(self, x: Tensor, training: bool) -> None:
        """A tensor like the input, of finite numbers."""
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
        """In evaluation mode the same input gives the same output."""
        if not is_close(self.run(x), self.run(x, seed=SEED + 1)):
            raise UserError(
                f"{self.name} gives two outputs for the same input in evaluation mode; "
                "switch off dropout and noise unless self.training."
            )

    def check_alone(self, x: Tensor) -> None:
        """A document's output depends neither on its batch-mates nor on its place in the batch.

        Every document is changed once, and every other one must stay as it was: what leaks to later, earlier or
        neighbouring documents only, or through a mean or maximum of the batch, shows in some pair of them.
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
        """A change at position t changes no output before t, in both modes; the worst case is told."""
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
    """Every document x[i] has the answer y[i] also when it is run alone, wherever in the batch it stands."""
    for i in range(len(x)):
        if not is_close(run(x[i : i + 1]), y[i : i + 1]):
            raise UserError(
                f"{name} gives document {i} another {what} alone than in a batch of {len(x)}; documents come first, "
                "(n, L, ...), and must not depend on each other (PyTorch's layers need batch_first=True)."
            )


def is_close(a: Tensor, b: Tensor) -> bool:
    """Up to rounding."""
    return float((a - b).abs().max()) <= tolerance(b)


def tolerance(y: Tensor) -> float:
    """The difference from y that rounding explains."""
    return ROUNDING * max(float(y.abs().max()), 1e-12)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; afterwards every part is in the mode in which it was."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
