"""What a small scale is worth: how far it agrees with a large one on who recalls, and on where the key is stored.

The settings are those that both scales have (`mecheval.paper.standings`). Who recalls is compared by the ranks of the
likelihoods (Spearman's correlation) and by whether both verdicts, or neither, are `not_learnt`; where it is stored by
the verdicts on the settings that learnt at both scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mecheval.figures.mechanisms import words
from mecheval.paper.estimates import LEVEL, Tally
from mecheval.paper.standings import WIDTHS, about, points_at, standings
from mecheval.studies.axes import MIXERS, say

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.store import Store

FILE = "laptop.csv"
"""The standings at scale laptop that come with the package, as docs/scales.py has written them; some lack columns."""
RESAMPLES = 2000
"""Number of resamples of the settings behind the interval of a correlation."""
FEWEST = 4
"""Smallest number of settings of which a correlation is given."""
NOT_LEARNT = "not_learnt"
STEPS = {"ar": (5_000, 8_000, 16_000, 24_000, 32_000), "atr": (10_000, 20_000, 40_000, 60_000)}
"""Steps at which runs at the paper's size are looked at before their end, of 50,016 and 100,032."""
GROUPS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "the paper's mixers": lambda row: row["option"] == "" and row["mixer"] in MIXERS,
    "all mixers and hybrids": lambda row: row["option"] == "",
    "all settings": lambda row: True,
}
"""Groups of settings, from the fewest to all of them."""


class Rate(NamedTuple):
    """How many of some settings agree, with the 95 % interval of the share."""

    hits: int
    of: int

    @property
    def share(self) -> float:
        return self.hits / self.of if self.of else math.nan

    def interval(self) -> tuple[float, float]:
        return Tally(self.hits, self.of).interval() if self.of else (math.nan, math.nan)


def laptop() -> pd.DataFrame:
    """The standings at scale laptop that come with the package."""
    import pandas as pd

    with files(__package__).joinpath(FILE).open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype={"option": str, "lr": str, "runs": str}).fillna({"option": ""})


def beside(small: pd.DataFrame, large: pd.DataFrame) -> pd.DataFrame:
    """A row for each task, setting and width of `large` that `small` has, too, at its largest width of that task.

    Columns: task, setting, mixer, option, d_model, and d_small; likelihood and verdict, of the small scale as
    likelihood_small and verdict_small. Settings without a verdict are left out.
    """
    top = small.sort_values("d_model", kind="stable").drop_duplicates(["task", "setting"], keep="last")
    names = ["d_model", "likelihood", "verdict"]
    own = top[["task", "setting", *names]].rename(columns={name: f"{name}_small" for name in names})
    own = own.rename(columns={"d_model_small": "d_small"})
    both = large[["task", "setting", "mixer", "option", *names]].merge(own, on=["task", "setting"])
    return both.dropna(subset=["verdict", "verdict_small"]).reset_index(drop=True)


def agreement(small: pd.DataFrame, large: pd.DataFrame, widths: Sequence[int] = WIDTHS) -> pd.DataFrame:
    """How far the small scale agrees: a row for each task, width of the large scale and group of settings.

    Columns: task, d_model, group, settings; correlation with its interval (correlation_low, correlation_high);
    recalls, recalls_low and recalls_high, the share of settings of which both scales say alike whether they learnt,
    and recalls_hits of recalls_of; and the same for stored, the share with the same verdict of those that learnt at
    both. A group that is no larger than the one before is left out.
    """
    import pandas as pd

    pairs = beside(small, large)
    rows: list[dict[str, Any]] = []
    for task in dict.fromkeys(pairs["task"]):
        for width in widths:
            here, before = pairs[(pairs["task"] == task) & (pairs["d_model"] == width)], 0
            for group, belongs in GROUPS.items():
                own = here[[bool(belongs(row)) for row in here.to_dict("records")]]
                if len(own) > before:
                    rows.append({"task": task, "d_model": width, "group": group, **agreed(own)})
                before = max(before, len(own))
    return pd.DataFrame(rows)


def agreed(pairs: pd.DataFrame) -> dict[str, Any]:
    """The numbers of one group of settings, `pairs` as from `beside`."""
    ours, theirs = (pairs[name].to_numpy(dtype=float) for name in ("likelihood_small", "likelihood"))
    low, high = interval(ours, theirs)
    learnt = [pairs[name] != NOT_LEARNT for name in ("verdict_small", "verdict")]
    both = pairs[learnt[0] & learnt[1]]
    recalls = Rate(int((learnt[0] == learnt[1]).sum()), len(pairs))
    stored = Rate(int((both["verdict_small"] == both["verdict"]).sum()), len(both))
    found: dict[str, Any] = {"settings": len(pairs), "correlation": spearman(ours, theirs), "correlation_low": low,
             "correlation_high": high}  # fmt: skip
    return found | _columns("recalls", recalls) | _columns("stored", stored)


def _columns(name: str, rate: Rate) -> dict[str, Any]:
    low, high = rate.interval()
    return {name: rate.share, f"{name}_low": low, f"{name}_high": high, f"{name}_hits": rate.hits,
            f"{name}_of": rate.of}  # fmt: skip


def early(store: Store, among: Container[str], width: int = 32) -> pd.DataFrame:
    """How well likelihoods on dev at a step rank runs at the paper's size as likelihoods on test do at their end.

    A row for each task and each of the `STEPS`: task, step, settings, correlation, correlation_low, correlation_high.
    At a step, the rate counts that is best by then. `among` are the settings that count.
    """
    import pandas as pd

    large, history, rows = standings(store, "paper"), store.history(), []
    of = {
        point.config.id: {**about(point), "d_model": point.config.model.d_model} for point in points_at("paper", store)
    }
    history = history[history["run"].isin(of)]
    for task, steps in STEPS.items():
        own = history[[(of[run]["task"], of[run]["d_model"]) == (task, width) for run in history["run"]]]
        own = own.assign(setting=[of[run]["setting"] for run in own["run"]])
        ends = large[(large["task"] == task) & (large["d_model"] == width)]
        ends = ends[[name in among for name in ends["setting"]]]
        for step in steps:
            seen = own[own["step"].between(0.8 * step, step)].sort_values("step", kind="stable")
            seen = seen.drop_duplicates("run", keep="last")
            best = seen.sort_values(["dev_accuracy", "dev_likelihood"], ascending=False, kind="stable")
            both = best.drop_duplicates("setting")[["setting", "dev_likelihood"]].merge(ends, on="setting")
            ours, theirs = (both[name].to_numpy(dtype=float) for name in ("dev_likelihood", "likelihood"))
            found = dict(zip(("correlation_low", "correlation_high"), interval(ours, theirs), strict=True))
            rows.append(
                {"task": task, "step": step, "settings": len(both), "correlation": spearman(ours, theirs), **found}
            )
    return pd.DataFrame(rows)


def spearman(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """The correlation of ranks; NaN of fewer than `FEWEST` settings, or where all values of one side are alike."""
    if len(ours) < FEWEST or np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return math.nan
    return float(np.corrcoef(ranks(ours), ranks(theirs))[0, 1])


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ranks of the values from 0; equal ones share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle: NDArray[np.float64] = (last - (counts + 1) / 2)[place]
    return middle


def interval(ours: NDArray[np.float64], theirs: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the correlation, over resamples of the settings; those that have none do not count."""
    if math.isnan(spearman(ours, theirs)):
        return math.nan, math.nan
    drawn = np.random.default_rng(seed).integers(len(ours), size=(RESAMPLES, len(ours)))
    found = np.array([spearman(ours[each], theirs[each]) for each in drawn])
    low, high = np.nanquantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def differences(pairs: pd.DataFrame, widths: Sequence[int] = WIDTHS) -> list[str]:
    """A sentence for each row of `beside` with one of these widths on which the verdicts differ."""
    said = []
    for row in pairs[(pairs["verdict"] != pairs["verdict_small"]) & pairs["d_model"].isin(widths)].to_dict("records"):
        said.append(
            f"{say('task', row['task'])}, {row['setting']}, width {row['d_model']}: {words(row['verdict'])} "
            f"({row['likelihood']:.2f}); laptop: {words(row['verdict_small'])} ({row['likelihood_small']:.2f})"
        )
    return said
