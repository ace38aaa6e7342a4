"""The paper's numbers and claims, as published, and the settings behind its numbers and ours."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from mecheval.config import RunConfig, run_config

if TYPE_CHECKING:  # slow to import
    import pandas as pd


class PublishedFigure(NamedTuple):
    """The cells of a figure: their file, the axes that distinguish them, and the quantities in each.

    `places` are the interventions among the quantities: where a clean activation was patched in. All numbers are means
    over this number of `documents`.
    """

    file: str
    documents: int
    axes: tuple[str, ...]
    places: tuple[str, ...]

    @property
    def quantities(self) -> tuple[str, ...]:
        return ("original", "corrupted", *self.places)


PUBLISHED = {
    "ar": PublishedFigure(
        "fig3_ar.csv", 320, ("mixer", "d_model"), ("restored_key", "restored_value", "restored_query")
    ),
    "ar_mamba_inside": PublishedFigure(
        "fig5_mamba_short_conv.csv", 64, ("lr", "d_model"), ("conv0_at_value", "conv0_at_next_key", "conv1_at_value")
    ),
}
"""The published cells by study; other figures have numbers only in the text, which are claims."""


def published(study: str) -> pd.DataFrame:
    """The cells of a study's figure, a row each: mixer, d_model, (lr,) and the quantities as fractions."""
    import pandas as pd

    figure = PUBLISHED[study]
    with files(__package__).joinpath(figure.file).open() as file:
        frame = pd.DataFrame(csv.DictReader(file))
    frame = frame.assign(**{name: frame[name].map(float) / 100 for name in figure.quantities})
    if "lr" in frame:
        frame["lr"] = frame["lr"].map(float)
    return frame.assign(d_model=frame["d_model"].map(int), mixer=frame.get("mixer", "mamba"))


@dataclass(frozen=True)
class Setting:
    """A task and the length of training."""

    task: str
    options: Mapping[str, Any]
    steps: int
    batch_size: int
    early: bool = False  # training may stop sooner
    documents: int = 320  # of test

    @classmethod
    def of(cls, config: RunConfig) -> Setting:
        data, early = config.data, config.evaluate.stop_at is not None or config.evaluate.patience is not None
        return cls(config.task.name, config.task.options, data.steps, data.batch_size, early, config.evaluate.documents)

    @classmethod
    def paper(cls, task: str) -> Setting:
        return cls.of(run_config(task, preset="paper"))

    @property
    def guessing(self) -> float:
        """Accuracy in associative recall of a model that knows the values of a document, but not which key has which.

        It excludes answers already given: with k queries about p pairs, this is the mean of 1 / (p - j) over j < k. NaN
        for other tasks, where guessing depends on what the model memorised.
        """
        if self.task != "ar":
            return math.nan
        pairs, queries = self.options["pairs"], self.options["queries"]
        return float(sum(1 / (pairs - already) for already in range(queries)) / queries)

    def describe(self) -> str:
        """The size of the task and the length of training in words."""
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
    """The setting of each task in a grid, taken from the first run of the task: all runs of a study share it."""
    first: dict[str, RunConfig] = {}
    for config in configs:
        first.setdefault(config.task.name, config)
    return {task: Setting.of(config) for task, config in first.items()}
