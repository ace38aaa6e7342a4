"""The paper's numbers and claims, as published."""

from __future__ import annotations

import csv
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

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
