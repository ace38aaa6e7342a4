"""How well a model answers: likelihood, accuracy and loss at the predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mecheval.training.data import Questions


@dataclass(frozen=True)
class Scores:
    """Means over all predictions of all documents."""

    likelihood: float  # p(answer)
    accuracy: float  # share of predictions whose most likely token is the answer
    loss: float  # -log p(answer)
    n: int  # predictions

    @property
    def rank(self) -> tuple[float, float]:
        """What makes one state better than another: accuracy, then likelihood."""
        return self.accuracy, self.likelihood

    @property
    def finite(self) -> bool:
        """False for a model that has diverged."""
        return math.isfinite(self.loss)


@torch.inference_mode()
def evaluate(lm: nn.Module, pieces: Iterable[Questions]) -> Scores:
    """Score `lm` in evaluation mode; it is left in the mode in which it came."""
    training = lm.training
    lm.eval()
    try:
        likelihood = loss = right = 0.0
        n = 0
        for tokens, at, targets in pieces:
            logits = lm(tokens, at=at).flatten(0, 1)  # (B * k, V)
            losses = F.cross_entropy(logits, targets.flatten(), reduction="none").double()
            likelihood += float((-losses).exp().sum())
            loss += float(losses.sum())
            right += int((logits.argmax(-1) == targets.flatten()).sum())
            n += len(losses)
    finally:
        lm.train(training)
    return Scores(likelihood / n, right / n, loss / n, n)
