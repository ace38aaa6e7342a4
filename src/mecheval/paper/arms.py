"""Two arms: the same order of documents in every epoch, as in the published program, and a new order in every epoch.

The arms are the same runs but for option `shuffle`, each with the learning rate that is best on dev among those that
it has. Which of them is nearer to the paper's numbers says which order the paper's runs may have had, or something
with the same effect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from mecheval.config import RunConfig
from mecheval.paper.estimates import PRIOR, at_least, student
from mecheval.paper.limits import USUAL
from mecheval.paper.numbers import PUBLISHED, published
from mecheval.studies.finding import named
from mecheval.sweep import Point

if TYPE_CHECKING:  # slow to import
    import pandas as pd

SAME, NEW = "same order", "new order"
"""The names of the arms."""
FLOOR = 0.1
"""Likelihood below which a number counts as near zero: two numbers there agree whatever the models do."""
RARE = 0.05
"""A difference this improbable, if the arms were alike, counts."""


def in_new_order(points: Sequence[Point]) -> list[Point]:
    """The same runs with a new order of documents in every epoch."""
    found = []
    for point in points:
        data = point.config.to_dict()
        data["data"]["shuffle"] = True
        found.append(Point(point.axes, RunConfig.read(data)))
    return found


@dataclass(frozen=True)
class Arms:
    """Both arms beside the paper.

    `cells`: a row for each number of a setting that both arms have and that is not near zero everywhere: mixer, (lr,)
    d_model, quantity, paper, and for each arm its mean and its number of seeds. `settings`: for each setting how far
    each arm is from the paper, on average over its numbers, and `closed`, the part of the gap in likelihood that a new
    order closes (NaN where the same order is within a point).
    """

    study: str
    cells: pd.DataFrame
    settings: pd.DataFrame

    @property
    def said(self) -> str:
        """What the distances say about the paper's runs, with how uncertain that is."""
        count, nearer = len(self.settings), int((self.settings[NEW] < self.settings[SAME]).sum())
        if not count:
            return "No setting has runs of both arms."
        same, new = (100 * self.cells[arm].sub(self.cells["paper"]).abs().mean() for arm in (SAME, NEW))
        gains = (self.settings[SAME] - self.settings[NEW]).tolist()
        p = min(1.0, 2 * at_least(max(nearer, count - nearer), count, 0.5))
        who = named(list(dict.fromkeys(self.settings["mixer"])))
        text = (
            f"Over {len(self.cells)} numbers of {count} settings ({who}), the same order is {same:.1f} points from the "
            f"paper and a new order {new:.1f}; the new order is nearer in {nearer} of {count} settings (sign test, p = "
            f"{p:.2f})"
        )
        if count > PRIOR:
            half = student(0.95, count - 1) * stdev(gains) / math.sqrt(count)
            text += f", by {100 * (fmean(gains) - half):.1f} to {100 * (fmean(gains) + half):.1f} points on average"
        closed = self.settings["closed"].dropna()
        if len(closed):
            text += f". It closes {100 * closed.min():.0f} to {100 * closed.max():.0f} % of the gap in likelihood"
        agree = self.settings[self.settings[SAME] <= USUAL.tolerance]
        moved = 100 * (agree[NEW] - agree[SAME]).max()
        text += (
            f". Of {len(agree)} settings that agree with the paper in the same order, a new one moves none away "
            f"from it by more than {max(moved, 0.0):.1f} points" if len(agree) else
            ". There is no negative control: no setting that agrees with the paper in the same order has runs of both"
        )  # fmt: skip
        once = self.cells[[f"seeds {SAME}", f"seeds {NEW}"]].min(axis=None)
        text += f". The fewest seeds of a setting: {once}. "
        if p >= RARE:
            return f"{text}This does not decide which order the paper's runs had."
        return f"{text}The paper's runs are more like those with {'a new' if 2 * nearer > count else 'the same'} order."


def compare_arms(study: str, same: pd.DataFrame, new: pd.DataFrame) -> Arms:
    """Both arms beside the paper's numbers, by their tables of chosen runs."""
    axes = list(dict.fromkeys(("mixer", *PUBLISHED[study].axes)))
    quantities = list(PUBLISHED[study].quantities)
    cells = published(study).melt(axes, quantities, "quantity", "paper")
    for arm, frame in ((SAME, same), (NEW, new)):
        long = frame[frame["status"] == "done"].melt([*axes, "seed"], quantities, "quantity", "value").dropna()
        found = long.groupby([*axes, "quantity"])["value"].agg(**{arm: "mean", f"seeds {arm}": "count"}).reset_index()
        cells = cells.merge(found, on=[*axes, "quantity"])
    original = cells[cells["quantity"] == "original"].set_index(axes)
    cells = cells[cells[["paper", SAME, NEW]].max(axis=1) >= FLOOR]
    apart = cells.assign(**{arm: (cells[arm] - cells["paper"]).abs() for arm in (SAME, NEW)})
    settings = apart.groupby(axes, sort=False)[[SAME, NEW]].mean()
    gap = (original["paper"] - original[SAME]).where(lambda gap: gap.abs() > 0.01)
    settings["closed"] = (original[NEW] - original[SAME]) / gap
    return Arms(study, cells, settings.reset_index())
