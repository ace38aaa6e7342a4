"""How long runs take: from runs of the same shape that are in the store, else a rough count of operations."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from mecheval.config import RunConfig
from mecheval.store.schema import WHOLE
from mecheval.tasks import build_task

OVERHEAD = 0.8e-3
"""Seconds of a step and layer that do not depend on sizes. This and what follows was measured on one core (Zen 3)."""
OPERATIONS = 90e9
"""A second, in products of matrices."""
SHARE = 0.5
"""Of the products of a layer are computed on average: the last one answers only where it is asked."""
CHANNEL = {"attention": 16, "base_conv": 12, "based": 16, "delta_net": 45, "h3": 70, "hyena": 38, "mamba": 90}
"""Nanoseconds a step for each token, channel and layer, beside products of matrices; others are taken for 50."""
PARAMETER = 1.6e-9
"""Seconds a step for each parameter: AdamW, bound by memory."""
NEEDED = {"attention": 0.1, "based": 0.15, "delta_net": 0.05, "h3": 0.52, "hyena": 0.38, "mamba": 0.7}
"""Share of its steps after which a run on associative recall that may stop early (`stop_at`) has stopped, as in study
`ar` at scale laptop and width 128. BaseConv and all others are expected to need every step."""


class Estimate:
    """Seconds that runs take on one core: to begin with the longest, and to tell how long a sweep will take."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._known: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            if row["status"] in WHOLE and row["seconds"] and row["config"]:
                self._known[_shape(row["config"])].append(row["seconds"])

    def learn(self, config: RunConfig, seconds: float) -> None:
        """A run of this config took so long."""
        self._known[_shape(config.to_dict())].append(seconds)

    def seconds(self, config: RunConfig) -> float:
        """How long the whole run is expected to take."""
        known = self._known.get(_shape(config.to_dict()))
        return statistics.fmean(known) if known else _guess(config)


def _shape(config: Mapping[str, Any]) -> str:
    """All that the time depends on: not the seed, and the learning rate only through when a run may stop."""
    rest = {name: value for name, value in config.items() if name not in ("seed", "optimiser")}
    return json.dumps(rest, sort_keys=True)


def _guess(config: RunConfig) -> float:
    model, data = config.model, config.data
    d, layers = model.d_model, model.n_layers
    vocabulary, length, queries = _sizes(json.dumps(config.task.data(), sort_keys=True), data.batch_size)
    tokens, weights = data.batch_size * length, 12 * d * d
    inside = OVERHEAD + tokens * (1e-9 * CHANNEL.get(config.mixer.name, 50) * d + SHARE * 6 * weights / OPERATIONS)
    head = 6 * d * vocabulary * data.batch_size * queries / OPERATIONS
    step = layers * inside + head + PARAMETER * (vocabulary * d + layers * weights)
    evaluations = 3.5 / config.evaluate.every * config.evaluate.documents / 320  # each takes as long as 3.5 steps
    stops = config.evaluate.stop_at is not None and config.task.name == "ar"
    needed = NEEDED.get(config.mixer.name, 1.0) if stops else 1.0
    return needed * data.steps * step * (1 + evaluations)


@lru_cache
def _sizes(task: str, batch_size: int) -> tuple[int, int, int]:
    """Vocabulary, tokens of a padded document, and queries."""
    options = json.loads(task)
    made = build_task(options.pop("name"), **options)
    corpus = made.corpus(batch_size, "dev", 0)
    return made.vocab_size, int(np.diff(corpus.starts).max()), corpus.targets.shape[1]
