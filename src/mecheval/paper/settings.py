"""What the runs of a study have in common, and what that means for its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mecheval.config import RunConfig, run_config


@dataclass(frozen=True)
class Setting:
    """A task and how long it is trained."""

    task: str
    options: Mapping[str, Any]
    steps: int
    batch_size: int
    early: bool = False  # training may stop sooner

    @classmethod
    def of(cls, config: RunConfig) -> Setting:
        """The setting of one run."""
        data, early = config.data, config.evaluate.stop_at is not None or config.evaluate.patience is not None
        return cls(config.task.name, config.task.options, data.steps, data.batch_size, early)

    @classmethod
    def paper(cls, task: str) -> Setting:
        """The paper's own."""
        return cls.of(run_config(task, preset="paper"))

    @property
    def guessing(self) -> float:
        """Accuracy in associative recall of a model that knows which values are in the document, but not whose.

        Answers that were given already are no longer guessed: with queries k of pairs p the mean of 1 / (p - j), j < k.
        NaN for other tasks, where how well one can guess depends on what was memorised.
        """
        if self.task != "ar":
            return math.nan
        pairs, queries = self.options["pairs"], self.options["queries"]
        return float(sum(1 / (pairs - already) for already in range(queries)) / queries)

    def describe(self) -> str:
        """The size of the task and the length of training, in words."""
        return f"{self._size()}, {'up to ' if self.early else ''}{self.steps:,} steps of {self.batch_size} documents"

    def _size(self) -> str:
        if self.task == "ar":
            queries = self.options["queries"]
            asked = f" with {queries} queries" if queries > 1 else ""
            return f"{self.options['pairs']} pairs of {self.options['keys']:,} keys{asked}"
        if self.task == "atr":
            return f"trees of up to {self.options['max_length']:,} of {self.options['terminals']} terminals"
        return self.task


def settings_of(configs: Iterable[RunConfig]) -> dict[str, Setting]:
    """The setting of each task in a grid; all runs of a study share it, so the first one of a task tells."""
    found: dict[str, Setting] = {}
    for config in configs:
        if config.task.name not in found:
            found[config.task.name] = Setting.of(config)
    return found
