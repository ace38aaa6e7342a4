"""Metrics, and how well a model answers: the mean of every metric over the predictions of documents.

A metric is one function, registered by name, from logits (n, V) and answers (n,) to a number for each prediction (n,).
Every metric is computed whenever a model is scored, and its mean is kept with the run. Other packages add theirs
through entry points of the group `mecheval.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecheval.errors import UnknownName
from mecheval.model import LM
from mecheval.registry import Registry
from mecheval.store import RunFolder
from mecheval.types import LAST, Questions

if TYPE_CHECKING:  # slow to import
    import pandas as pd

AT_ONCE = 64
"""Number of documents in one pass of `ladder`."""
Metric = Callable[[Tensor, Tensor], Tensor]
METRICS: Registry[Metric] = Registry("metric", "mecheval.metrics")


@METRICS.register("likelihood")
def likelihood(logits_BV: Tensor, answers_B: Tensor) -> Tensor:
    """The probability that the model gives to the answer."""
    return (-loss(logits_BV, answers_B)).exp()


@METRICS.register("accuracy")
def accuracy(logits_BV: Tensor, answers_B: Tensor) -> Tensor:
    """1 if the answer is the likeliest token, else 0."""
    return (logits_BV.argmax(-1) == answers_B).double()


@METRICS.register("loss")
def loss(logits_BV: Tensor, answers_B: Tensor) -> Tensor:
    """The cross-entropy -log p(answer)."""
    return F.cross_entropy(logits_BV, answers_B, reduction="none").double()


def metrics() -> dict[str, Metric]:
    """All metrics by name, cached because looking for entry points takes milliseconds."""
    return {name: METRICS.get(name) for name in sorted({*METRICS.registered(), *_plugged()})}


@cache
def _plugged() -> list[str]:
    return METRICS.names()


@dataclass(frozen=True)
class Scores:
    """Means over all predictions of all documents."""

    values: Mapping[str, float]  # metric -> mean
    n: int  # number of predictions

    @property
    def accuracy(self) -> float:
        """The share of predictions whose likeliest token is the answer."""
        return self.values["accuracy"]

    @property
    def likelihood(self) -> float:
        """The mean probability of the answer."""
        return self.values["likelihood"]

    @property
    def loss(self) -> float:
        """The mean cross-entropy."""
        return self.values["loss"]

    @property
    def rank(self) -> tuple[float, float]:
        """The key by which states are compared: accuracy, then likelihood."""
        return self.accuracy, self.likelihood

    @property
    def finite(self) -> bool:
        """Whether all scores are finite, which they are not if the model has diverged."""
        return math.isfinite(self.loss)

    def rows(self, state: str, step: int, split: str) -> list[dict[str, Any]]:
        """Rows of the store's table `scores`, one for each metric."""
        place = {"state": state, "step": step, "split": split}
        return [{**place, "metric": name, "value": value, "n": self.n} for name, value in self.values.items()]

    def to_dict(self) -> dict[str, Any]:
        """The scores as plain data, from which `read` makes the same scores."""
        return {**self.values, "n": self.n}

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Scores:
        return cls({name: value for name, value in given.items() if name != "n"}, given["n"])


@torch.inference_mode()
def score(model: nn.Module, pieces: Iterable[Questions]) -> Scores:
    """Score a model in evaluation mode; afterwards it is in its previous mode.

    `model` is an `LM`, which computes logits only where there is a prediction, or any module from tokens (B, L) to
    logits (B, L, V).
    """
    every = metrics()
    training = model.training
    model.eval()
    try:
        sums, n = dict.fromkeys(every, 0.0), 0
        for tokens, at, targets in pieces:
            if isinstance(model, LM):
                logits = model(tokens, at=at)
            else:
                logits = model(tokens)[torch.arange(len(tokens), device=tokens.device)[:, None], at]
            logits, answers = logits.flatten(0, 1), targets.flatten()  # (B * k, V), (B * k,)
            for name, metric in every.items():
                sums[name] += float(metric(logits, answers).sum())
            n += len(answers)
    finally:
        model.train(training)
    return Scores({name: total / n for name, total in sums.items()}, n)


@torch.no_grad()
def ladder(
    folder: RunFolder, fact: str, state: str = LAST, split: str = "test", n: int | None = None
) -> pd.DataFrame:  # fmt: skip
    """Accuracy and likelihood of a finished run by a fact of its documents, such as depth or distance.

    A row for each value of the fact, with the number of documents that have it and the 95 % interval of their accuracy
    (low, high). Only the first question of each document counts.
    """
    import pandas as pd

    from mecheval.analysis.runs import alone, load_run
    from mecheval.intervene.intervals import mean_interval

    trained = load_run(folder, state)
    if fact not in trained.task.facts:
        raise UnknownName(f"fact of {trained.task.name}", fact, trained.task.facts)
    with alone(trained.config.machine.threads):
        n = trained.config.evaluate.documents if n is None else n
        batch = trained.task.sample(n, split, trained.config.evaluate.seed)
        parts = [slice(first, first + AT_ONCE) for first in range(0, n, AT_ONCE)]
        logits = torch.cat([trained.lm(batch.tokens[some], batch.predict_at[some, 0]) for some in parts])
    frame = pd.DataFrame({
        fact: batch.facts[fact].numpy(), "accuracy": accuracy(logits, batch.answers).numpy(),
        "likelihood": likelihood(logits, batch.answers).numpy(),
    })  # fmt: skip
    rows = []
    for value, some in frame.groupby(fact):
        low, high = mean_interval(some["accuracy"].to_numpy())
        means = some[["accuracy", "likelihood"]].mean()
        rows.append({fact: value, **means, "low": float(low), "high": float(high), "n": len(some)})
    return pd.DataFrame(rows, columns=[fact, "accuracy", "likelihood", "low", "high", "n"])
