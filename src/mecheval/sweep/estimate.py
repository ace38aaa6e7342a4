"""How long runs take: from runs of the same shape that are in the store, else a rough count of operations."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from mecheval.config import RunConfig
from mecheval.store.schema import WHOLE
from mecheval.tasks import build_task

OPERATIONS = 25e9
"""A second, on one core, in matrices as small as these."""
OVERHEAD = 1.2e-3
"""Seconds of a step and layer that do not depend on sizes."""
SLOWER = {"attention": 1.0, "base_conv": 1.0, "based": 1.0, "delta_net": 2.0, "hyena": 1.6, "h3": 3.0, "mamba": 2.2}
"""A mixer's step against attention's at these lengths; others are taken for 2."""


class Estimate:
    """Seconds that runs take on one core."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._known: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            if row["status"] in WHOLE and row["seconds"] and row["config"]:
                self._known[_shape(row["config"])].append(row["seconds"])

    def learn(self, config: RunConfig, seconds: float) -> None:
        """A run of this config took so long."""
        self._known[_shape(config.to_dict())].append(seconds)

    def seconds(self, config: RunConfig) -> float:
        """The whole run; what stops early is not known in advance."""
        known = self._known.get(_shape(config.to_dict()))
        return statistics.fmean(known) if known else _guess(config)


def _shape(config: Mapping[str, Any]) -> str:
    """All that the time depends on: not the seed, and the learning rate only through when a run may stop."""
    rest = {name: value for name, value in config.items() if name not in ("seed", "optimiser")}
    return json.dumps(rest, sort_keys=True)


def _guess(config: RunConfig) -> float:
    model, data = config.model, config.data
    vocabulary, length, queries = _sizes(json.dumps(config.task.data(), sort_keys=True))
    d, tokens = model.d_model, data.batch_size * length
    inside = 6 * 14 * d * d * tokens * SLOWER.get(config.mixer.name, 2.0)  # forward and backward, a layer
    head = 6 * d * vocabulary * data.batch_size * queries
    adam = 60 * (vocabulary * d + model.n_layers * 14 * d * d) / 6
    step = model.n_layers * (OVERHEAD + inside / OPERATIONS) + (head + adam) / OPERATIONS
    return data.steps * step * 1.1  # evaluations


@lru_cache
def _sizes(task: str) -> tuple[int, float, int]:
    """Vocabulary, mean tokens and queries of a document."""
    options = json.loads(task)
    made = build_task(options.pop("name"), **options)
    batch = made.sample(64, "dev", 0)
    return made.vocab_size, float(batch.lengths.float().mean()), int(batch.targets.shape[1])
