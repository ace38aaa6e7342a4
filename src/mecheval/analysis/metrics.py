"""Metrics: numbers computed from a model's logits at each prediction.

A metric is one function, registered by name, from logits (n, V) and answers (n,) to a number for each prediction (n,).
Every metric is computed whenever a model is scored, and its mean is kept with the run. Other packages add theirs
through entry points of the group `mecheval.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch.nn.functional as F
from torch import Tensor

from mecheval.registry import Registry

Metric = Callable[[Tensor, Tensor], Tensor]
METRICS: Registry[Metric] = Registry("metric", "mecheval.metrics")


@METRICS.register("likelihood")
def likelihood(logits_BV: Tensor, answers_B: Tensor) -> Tensor:
    """The probability that the model gives to the answer."""
    return (-loss(logits_BV, answers_B)).exp()


@METRICS.register("accuracy")
def accuracy(logits_BV: Tensor, answers_B: Tensor) -> Tensor:
    """1 where the answer is the likeliest token, else 0."""
    return (logits_BV.argmax(-1) == answers_B).double()


@METRICS.register("loss")
def loss(logits_BV: Tensor, answers_B: Tensor) -> Tensor:
    """The cross-entropy -log p(answer)."""
    return F.cross_entropy(logits_BV, answers_B, reduction="none").double()


def metrics() -> dict[str, Metric]:
    """Every metric by name; looking for entry points takes milliseconds, so they are looked for once."""
    return {name: METRICS.get(name) for name in sorted({*METRICS.registered(), *_plugged()})}


@cache
def _plugged() -> list[str]:
    return METRICS.names()
