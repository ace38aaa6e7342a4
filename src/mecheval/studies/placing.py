"""Where a custom mixer stands among others at the paper's size: the table of all, and the sentence about the one.

Terminal, report and notebook show what is said here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mecheval.studies.early_ends import after_guessing
from mecheval.studies.learning import Learning
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

NOUNS = {"ar": "pairs", "atr": "trees"}
"""What documents of these tasks hold, as sentences name it."""
MECHANISMS = {
    "conv_association": "its short convolution joins key and value: short-convolution association",
    "direct_retrieval": "the layer that answers finds the key itself: direct retrieval",
    "pointer": "the query finds where the value stands: a pointer",
    "redundant": "the key is held at several positions, each of which is enough: redundant",
    "joint": "the key is held at several positions together: joint",
    "mixed": "it recalls by a mixture of mechanisms",
    "undetermined": "the measurements do not settle its mechanism",
}  # fmt: skip
"""What a verdict says about a mixer that recalls; induction also names a place."""
SEEDS = 3
"""Number of seeds from which the spread over seeds counts as known."""
CONFIDENCE = 1.96
"""Standard deviations on either side of an estimate in its 95 % interval."""
COLUMNS = (
    "mixer", "title", "own", "verdict", "accuracy", "low", "high", "likelihood", "role", "share", "share_low",
    "share_high", "seeds", "least", "most", "steps", "note", "runs",
)  # fmt: skip
"""Columns of a placing: `low` and `high` are the 95 % interval of the accuracy over documents, `least` and `most` the
accuracies of the worst and the best seed, `steps` those that were trained, `note` says why that was early, and `runs`
are the ids."""
HEADS = ("mixer", "verdict", "recalls %", "95 %", "restored at", "share", "seeds", "steps")
"""Heads of a placing as text."""
LEGEND = (
    "Recalls: share of answers that are right on test, with a 95 % interval over documents. Restored at: where "
    "patching one clean activation into the input of layer 1 restores most of the answer, and its share. Seeds: how "
    "many, and from the worst to the best where there are three or more; with fewer, how far seeds move a number is "
    "unknown. {early}Each mixer has its best learning rate by dev."
)
EARLY = "*"
"""Marks the steps of a run that ended early."""


@dataclass(frozen=True, eq=False)
class Placing:
    """All mixers with results on a task at one width, the most accurate first."""

    task: str
    width: int
    chance: float  # accuracy of the best guess that recalls nothing
    frame: pd.DataFrame  # see COLUMNS
    verdicts: Mapping[str, Mapping[str, Any]]  # the stored verdict of each custom mixer, by mixer
    learnt: Mapping[str, Learning]  # how each custom mixer learnt
    rates: Mapping[str, Sequence[float]]  # the learning rates that each custom mixer was trained with

    @property
    def noun(self) -> str:
        """What the documents hold."""
        return NOUNS[self.task]

    @property
    def title(self) -> str:
        return f"{self.noun} at width {self.width}"

    @property
    def runs(self) -> list[str]:
        """The ids of all runs in the table."""
        return [run for runs in self.frame["runs"] for run in runs]

    def own(self) -> list[str]:
        """The custom mixers, the most accurate first."""
        return list(self.frame.loc[self.frame["own"], "mixer"])

    def sentence(self, mixer: str) -> str:
        """How well a custom mixer recalls, between which others, and by which mechanism."""
        row = self.frame.set_index("mixer").loc[mixer]
        who, what = row["title"], self.noun
        if row["accuracy"] != row["accuracy"]:
            return f"{who} has no result on {what} at width {self.width}: {row['verdict'].replace('_', ' ')}."
        learnt = self.learnt[mixer]
        if learnt.short:
            so_far = f"was trained for only {learnt.step:,} of {learnt.steps:,} steps on {what} at width {self.width}"
            return f"{who} {so_far}, too few to say whether it recalls ({percent(row['accuracy'])} so far)."
        score, here = percent(row["accuracy"]), f"{what} at width {self.width}"
        if row["verdict"] == "not_learnt":
            yet = "has not learnt yet" if learnt.falling else "did not learn"
            return f"{who} {yet} to recall {here} ({score}; guessing gives {percent(self.chance)})."
        how = self._mechanism(mixer, row["verdict"])
        return f"{who} recalls {score} of {here}{self._between(mixer)}; {how}."

    def details(self, mixer: str) -> list[str]:
        """What else must be known about a custom mixer's numbers: why it has not learnt, or that it ended early."""
        row, learnt = self.frame.set_index("mixer").loc[mixer], self.learnt.get(mixer)
        if learnt is None:
            return []
        if row["verdict"] == "not_learnt" or learnt.short:
            others = after_guessing(self.task, self.width) if learnt.guessed and not learnt.short else ""
            return [f"On {self.noun}, {learnt.describe(self.rates[mixer], f'--widths {2 * self.width}', others)}"]
        return [f"On {self.noun}, its run {learnt.message}."] if learnt.message else []

    def spread(self) -> str:
        """How far seeds are known to move an accuracy here; empty if no mixer has enough seeds."""
        known = self.frame[(self.frame["seeds"] >= SEEDS) & (self.frame["accuracy"] > self.chance)]
        if known.empty:
            return ""
        widest = known.loc[(known["most"] - known["least"]).idxmax()]
        points = round(100 * (widest["most"] - widest["least"]))
        return f"On {self.noun}, seeds are known to move an accuracy by up to {points} points ({widest['title']})."

    def cells(self) -> list[list[str]]:
        """The table as text, a row for each mixer and a cell for each of HEADS."""
        return [_cells(row) for row in self.frame.to_dict("records")]

    def _between(self, mixer: str) -> str:
        """The mixers that are next below and above, with their accuracies."""
        others = self.frame[~self.frame["own"] & self.frame["accuracy"].notna()]
        if others.empty:
            return ""
        own = float(self.frame.set_index("mixer").loc[mixer, "accuracy"])
        below, above = others[others["accuracy"] <= own], others[others["accuracy"] > own]
        if below.empty:
            return f", below {_scored(above.iloc[-1])}, the least of {len(others)} mixers"
        if above.empty:
            return f", above {_scored(below.iloc[0])}, the best of {len(others)} mixers"
        return f", between {_scored(below.iloc[0])} and {_scored(above.iloc[-1])}"

    def _mechanism(self, mixer: str, label: str) -> str:
        if label == "induction":
            at = str(self.verdicts[mixer].get("stored_at") or "").replace("_", " ")
            return f"it stores the key at the {at}: induction" if at else "it recalls by induction"
        if mixer not in self.verdicts or not self.verdicts[mixer]:
            return "`mecheval intervene` names its mechanism"
        words = label.replace("_", " ")
        return MECHANISMS.get(label, f"its seeds differ: {words}" if "," in label else f"verdict {words}")


def legend(placed: Sequence[Placing]) -> str:
    """What the columns of these tables mean."""
    early = any(place.frame["note"].any() for place in placed)
    return LEGEND.format(early=f"{EARLY}: ended early by the rule in docs/training.md. " if early else "")


def _cells(row: Mapping[str, Any]) -> list[str]:
    share = f"{row['share']:.2f}" if row["share"] == row["share"] else MISSING
    known = row["seeds"] >= SEEDS
    seeds = f"{row['seeds']} ({100 * row['least']:.0f}–{100 * row['most']:.0f})" if known else str(row["seeds"])
    interval = f"{100 * row['low']:.0f}–{100 * row['high']:.0f}" if row["low"] == row["low"] else MISSING
    accuracy = MISSING if row["accuracy"] != row["accuracy"] else f"{100 * row['accuracy']:.0f}"
    verdict = {"conv_association": "short convolution"}.get(row["verdict"], row["verdict"].replace("_", " "))
    role = str(row["role"]).replace("_", " ")
    name, steps = row["title"] if row["own"] else row["mixer"], f"{row['steps']:,}{EARLY * bool(row['note'])}"
    return [name, verdict, accuracy, interval, role, share, seeds, steps]


def _scored(row: pd.Series[Any]) -> str:
    return f"{row['title']} ({percent(row['accuracy'])})"


def percent(value: float) -> str:
    """A share in whole percent."""
    return MISSING if value != value else f"{100 * value:.0f} %"


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share that was measured on n documents."""
    if n < 1 or not 0 <= share <= 1:
        return math.nan, math.nan
    z = CONFIDENCE
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
