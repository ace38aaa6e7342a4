"""Any model as a map from tokens to logits, which is what interventions need of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mecheval.errors import UserError
from mecheval.model import LM


class Answering(nn.Module):
    """Wraps any model as a map from tokens (n, L) to logits (n, L, V), keeping the names of its parts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.vocabulary = 0  # number of logits, known after the first run

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits in at least single precision, even if the model returns them as `.logits` of an object."""
        answer: Any = self.model(tokens)
        logits = answer["logits"] if isinstance(answer, Mapping) and "logits" in answer else answer
        logits = getattr(logits, "logits", logits)
        if not isinstance(logits, Tensor):
            got = kind_of(answer)
            raise UserError(f"the model must return logits (n, L, V), or an object with .logits (got {got}).")
        self.vocabulary = logits.shape[-1]
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        found: Iterator[tuple[str, nn.Module]] = self.model.named_modules(memo, prefix, remove_duplicate)
        return found


def uncompiled(model: nn.Module) -> nn.Module:
    """The module inside one that `torch.compile` made, whose sites can be listened to."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    return inner


def answering(model: nn.Module) -> LM | Answering:
    """The model itself if it is certain to return logits, otherwise wrapped as `Answering`."""
    model = uncompiled(model)
    return model if isinstance(model, LM | Answering) else Answering(model)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode while the context lasts."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def kind_of(answer: Any) -> str:
    """What was returned, in words: the name of its type, and of how many parts it is."""
    return f"{type(answer).__name__} of {len(answer)}" if isinstance(answer, tuple | list) else type(answer).__name__
