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


class Published(NamedTuple):
    """The cells of a figure: its file, what tells its cells apart, and what each cell holds.

    `places` are the interventions among the quantities: where the clean activation was put back. All numbers are means
    over so many `documents`.
    """

    file: str
    documents: int
    axes: tuple[str, ...]
    places: tuple[str, ...]

    @property
    def quantities(self) -> tuple[str, ...]:
        """Columns with numbers."""
        return ("original", "corrupted", *self.places)


PUBLISHED = {
    "ar": Published("fig3_ar.csv", 320, ("mixer", "d_model"), ("restored_key", "restored_value", "restored_query")),
    "ar_mamba_inside": Published(
        "fig5_mamba_short_conv.csv", 64, ("lr", "d_model"), ("conv0_at_value", "conv0_at_next_key", "conv1_at_value")
    ),
}
"""By study; of the other figures there are no numbers but those in the text, which are claims."""


class Claim(NamedTuple):
    """A sentence of the paper: in which section or figure, about what, and what it says."""

    id: str
    where: str
    setting: str
    quantity: str
    value: str
    note: str

    @property
    def said(self) -> str:
        """What the paper says, in one line; its numbers are percentages."""
        return f"{self.quantity}: {self.value}{f' ({self.note})' if self.note else ''}"


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


def claims() -> list[Claim]:
    """All claims, in the paper's order."""
    with files(__package__).joinpath("claims.csv").open() as file:
        return [Claim(**row) for row in csv.DictReader(file)]


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
