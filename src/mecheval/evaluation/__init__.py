"""Evaluate a custom architecture: a mixer that is trained here, or a model that was trained elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import nn

from mecheval.custom import checked, not_while_loading
from mecheval.errors import UnknownName, UserError
from mecheval.evaluation.classes import evaluate_mixer
from mecheval.evaluation.result import Evaluation, PaperEvaluation
from mecheval.evaluation.trained import evaluate_model
from mecheval.mixers.base import first_tensor
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:
    from mecheval.tasks import Task

__all__ = ["Evaluation", "PaperEvaluation", "evaluate"]


@overload
def evaluate(
    model: Callable[..., nn.Module], task: str | Task | None = None, *, scale: Literal["laptop"] = "laptop",
    options: Mapping[str, Any] | None = None, seeds: int = 1, lr: float | Sequence[float] = (),
    compare: bool | None = None, store: str | Path = DEFAULT_STORE, report: str | Path | None = None,
    workers: int | None = None,
) -> Evaluation: ...  # fmt: skip


@overload
def evaluate(
    model: Callable[..., nn.Module], task: str | Task | None = None, *, scale: Literal["paper"],
    options: Mapping[str, Any] | None = None, widths: Sequence[int] = (), seeds: int = 1,
    lr: float | Sequence[float] = (), store: str | Path = DEFAULT_STORE, report: str | Path | None = None,
) -> PaperEvaluation: ...  # fmt: skip


@overload
def evaluate(
    model: nn.Module | str | Path, task: str | Task | None = None, *, layers: Sequence[str] | None = None,
    mixers: Sequence[str] = (), sites: Sequence[str] | None = None, n: int = 320, split: str = "test", seed: int = 0,
    name: str | None = None, compare: bool = True, store: str | Path = DEFAULT_STORE, report: str | Path | None = None,
) -> Evaluation: ...  # fmt: skip


def evaluate(
    model: Callable[..., Any] | str | Path, task: str | Task | None = None, **given: Any
) -> Evaluation | PaperEvaluation:
    """Find out how an architecture recalls: a custom mixer that is trained here, or a trained model as it is.

    **A mixer**: a torch module class (B, L, D) -> (B, L, D), or a function that builds one, called as
    `cls(d_model=...)`, or by the name that it has for the width (`dim`, `hidden_size`, a config's field). It is
    checked, trained on `task` (a name or a Task; ar) at `scale` (laptop or paper) with learning rates `lr` (the
    scale's) and `seeds` seeds, intervened on, and compared with the built-in mixers unless `compare` is False.
    `options` are the mixer's own arguments, and settings of the run by name, which apply to all mixers
    (`{"d_state": 16, "steps": 4000}`). Runs are kept in `store` and never trained twice; an edited mixer is another
    one. `report` is an HTML file to write, and `workers` the number of processes for the built-in mixers.

    At scale paper the mixer alone is trained, on pairs and trees (`task="ar"` or `"ar,atr"`), at width 32 (`widths`),
    and placed among the published results of the built-in mixers.

    **A model**: any torch module that maps tokens (n, L) to logits (n, L, V), or to an object with `.logits`; or the
    folder of a Hugging Face checkpoint on disk (safetensors), whose tokenizer a task about text then uses. `layers`
    names the submodules that are its blocks, in order; `mixers` those that are their sequence mixers; `sites` other
    activations (`<submodule>.output` or `.input`). It is intervened on with `n` documents of `split`, drawn from
    `seed`; `name` is its name in tables. The built-in mixers that `store` has on the same task are shown with it.
    """
    not_while_loading("mecheval.evaluate")
    model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    if isinstance(model, FunctionType | partial):
        model = checked(model, "the mixer")
    if isinstance(model, type):
        function: Any = evaluate_mixer
        kind, other = "a mixer class", "trained models"
    elif isinstance(model, nn.Module | str | Path):
        function, kind, other = evaluate_model, "a trained model", "mixer classes"
        if isinstance(model, nn.Module) and takes_no_tokens(model):
            checked(model, f"the {type(model).__name__} given to evaluate")
    else:
        what = type(model).__name__
        raise UserError(
            f"evaluate takes a torch module class, a trained torch module or the folder of a checkpoint (got {what})."
        )
    names, others = (_options(each) for each in (function, _OTHER[function]))
    for option in given:
        if option in others and option not in names:
            raise UserError(f"evaluate: {option} is for {other}, and this is {kind}. Choices: {', '.join(names)}.")
        if option not in names:
            raise UnknownName("option of evaluate", option, names)
    result: Evaluation | PaperEvaluation = function(
        model, "ar" if task is None and function is evaluate_model else task, **given
    )
    return result


_OTHER = {evaluate_mixer: evaluate_model, evaluate_model: evaluate_mixer}


def takes_no_tokens(model: nn.Module) -> bool:
    """Whether a module is a mixer rather than a model of tokens: it fails on tokens, but not on (B, L, D)."""
    width = next((weight.shape[-1] for weight in model.parameters() if weight.ndim > 1), 0)
    if not width or any(isinstance(part, nn.Embedding) for part in model.modules()):
        return False
    with torch.no_grad():
        try:
            model(torch.zeros(2, 3, dtype=torch.int64))
        except Exception:
            with suppress(Exception):
                return bool(first_tensor(model(torch.zeros(2, 3, width))).shape == (2, 3, width))
    return False


def _options(function: Any) -> list[str]:
    return [name for name, each in inspect.signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY]
