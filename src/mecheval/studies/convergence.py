"""Convergence: which learning rates work, how soon, and whether the mechanism appears before the accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mecheval.intervene.finding import NO_NAME
from mecheval.intervene.intervals import difference_interval, mean_interval
from mecheval.store import Store
from mecheval.store.bounds import ON_THE_WAY
from mecheval.store.store import snapshot_of
from mecheval.studies.scales import AT_BLOCK_1, MIXERS, QUICK, RATES, runs
from mecheval.studies.study import Study
from mecheval.sweep import Point

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.studies.table import StudyTable

LEARNT = 0.9
"""Smallest accuracy at which a run has learnt."""
RECURRENT = ("mamba", "h3", "delta_net", "based")
"""The paper's mixers whose state does not grow with the document."""
PACES = ("to_90", "jumps", "appears")
"""Columns with steps: when dev accuracy reaches LEARNT, when it rises most above chance, and from when the final
verdict holds."""


def points(scale: str, mixers: Sequence[str] = MIXERS, rates: Sequence[float] | None = None) -> list[Point]:
    """Every mixer and learning rate; on a laptop one width, fewer steps and three pairs, so that Mamba learns, too."""
    if scale != "laptop":
        return runs("ar", scale, {"interchange_every": 500}, mixer=mixers)
    options = {**QUICK, "pairs": 3, "queries": 3, "steps": 1500, "evaluate.every": 25, "evaluate.documents": 128,
               "interchange_every": 50}  # fmt: skip
    every = [rate for rate in RATES["ar", "paper"] if rate >= 3e-4]
    return runs("ar", scale, options, mixer=mixers, d_model=(64,), lr=every if rates is None else rates)


def paces(frame: pd.DataFrame, store: Store) -> pd.DataFrame:
    """The columns PACES by run, for rows of a study's table; NaN if a run never gets there."""
    import pandas as pd

    found = pd.DataFrame(index=pd.Index(frame["run"].unique(), name="run"), columns=list(PACES), dtype=float)
    if (frame["status"] == "missing").all():
        return found
    opened = snapshot_of(store, "history", "verdicts", among=set(found.index))
    history = dict(list(opened.query("select run, step, dev_accuracy from history order by step").groupby("run")))
    way = opened.query(f"select run, step, label from verdicts where state = '{ON_THE_WAY}' order by step")
    labels = dict(list(way.groupby("run")))
    for row in frame.to_dict("records"):
        run = row["run"]
        if run in history:
            steps, scores = list(history[run]["step"]), list(history[run]["dev_accuracy"])
            chance = 0.0 if pd.isna(row["chance"]) else row["chance"]
            found.loc[run, ["to_90", "jumps"]] = pace(steps, scores, chance)
        if run in labels and isinstance(row["verdict"], str) and row["verdict"] not in NO_NAME:
            on_the_way = list(zip(labels[run]["step"], labels[run]["label"], strict=True))
            found.loc[run, "appears"] = appearance(on_the_way, row["verdict"], row["step"])
    return found


def pace(steps: Sequence[int], scores: Sequence[float], chance: float = 0.0) -> tuple[float, float]:
    """The first step with an accuracy of LEARNT, and the one after the largest rise; NaN if it is never reached.

    Only rises above `chance` count: the first rise of many runs is that they learn to guess among the values.
    """
    reached = next((step for step, score in zip(steps, scores, strict=True) if score >= LEARNT), None)
    if reached is None:
        return np.nan, np.nan
    rises = np.diff(np.maximum([0.0, *scores], chance))
    return float(reached), float(steps[int(np.argmax(rises))])


def appearance(on_the_way: Sequence[tuple[int, str]], final: str, last: float) -> float:
    """The first step from which every verdict during training is the final one; the last step if there is none."""
    first = float(last)
    for step, label in reversed(on_the_way):
        if label != final:
            break
        first = float(step)
    return first


def windows(table: StudyTable) -> list[dict[str, Any]]:
    """A row for each mixer and width: how many of its runs learn, with which rates, and how soon.

    `share` of runs that learn, with the ends `low` and `high` of its 95 % interval; the longest window of rates,
    `first` to `last`, with each of which at least half of the seeds learn; medians of PACES at the soonest rate.
    """
    rows = []
    for (mixer, width), own in _known(table).groupby(["mixer", "d_model"], sort=False):
        hits = own["learnt"].to_numpy(float)
        low, high = mean_interval(hits)
        by_rate = own.groupby("lr")["learnt"].mean().sort_index()
        window = _longest(list(by_rate.index), [share >= 0.5 for share in by_rate])
        learnt = own[own["learnt"]]
        soonest = learnt.groupby("lr")[list(PACES)].median().sort_values("to_90").head(1).to_dict("records")
        rows.append({
            "mixer": mixer, "d_model": int(width), "runs": len(own), "learnt": int(hits.sum()), "share": hits.mean(),
            "low": float(low), "high": float(high), "first": window[0] if window else None,
            "last": window[-1] if window else None, **(soonest[0] if soonest else dict.fromkeys(PACES)),
        })  # fmt: skip
    return rows


def says(table: StudyTable) -> list[str]:
    """A sentence for each mixer and width, then the hypotheses with their outcomes."""
    return [*map(_said, windows(table)), *hypotheses(table)]


def hypotheses(table: StudyTable) -> list[str]:
    """Each hypothesis with its outcome by a 95 % interval: it holds, is contradicted or is inconclusive."""
    known = _known(table)
    said = []
    usual = known[known["mixer"] == "attention"].set_index(["d_model", "lr", "seed"])["learnt"].astype(float)
    for mixer in RECURRENT:
        own = known[known["mixer"] == mixer].set_index(["d_model", "lr", "seed"])["learnt"].astype(float)
        both = own.index.intersection(usual.index)
        if len(both) > 1:
            low, high = map(float, difference_interval(usual[both].to_numpy(), own[both].to_numpy()))
            numbers = f"{own[both].mean():.0%} of its runs learn, {usual[both].mean():.0%} of attention's; difference"
            sentence = f"{mixer} learns with fewer learning rates than attention"
            most, _ = difference_interval(np.ones(len(both)), np.zeros(len(both)))
            hint = f"; {len(both)} pairs of runs cannot decide it, more --seeds can" if most <= 0 else ""
            said.append(f"{sentence}: {outcome(low, high, 0)} ({numbers} [{low:+.2f}, {high:+.2f}]{hint}).")
    timed = known[known["learnt"]].dropna(subset=["jumps", "appears"])
    if len(timed) > 1:
        before = (timed["appears"] <= timed["jumps"]).to_numpy(float)
        low, high = map(float, mean_interval(before))
        numbers = f"{int(before.sum())} of {len(before)} runs; share [{low:.2f}, {high:.2f}]"
        sentence = "In most runs the mechanism appears no later than the accuracy jumps"
        said.append(f"{sentence}: {outcome(low, high, 0.5)} ({numbers}).")
    return said


def _known(table: StudyTable) -> pd.DataFrame:
    """The runs that ended, with the column `learnt`; one that diverged has not."""
    frame = table.frame[table.frame["status"].isin(["done", "diverged"])]
    return frame.assign(learnt=(frame["status"] == "done") & (frame["test_accuracy"] >= LEARNT))


def _longest(rates: Sequence[float], works: Sequence[bool]) -> list[float]:
    best: list[float] = []
    now: list[float] = []
    for rate, yes in zip(rates, works, strict=True):
        now = [*now, rate] if yes else []
        best = max(best, now, key=len)
    return best


def outcome(low: float, high: float, edge: float) -> str:
    """The outcome of the hypothesis that a quantity exceeds `edge`, given its interval."""
    return "holds" if low > edge else "contradicted" if high < edge else "inconclusive"


def in_most_runs(asked: Mapping[str, pd.Series]) -> list[str]:
    """Each hypothesis with its outcome: by a 95 % interval, is it true in more than half of the runs?

    `asked` maps each sentence to whether it is true of each run; with a single run, there is no outcome.
    """
    said = []
    for sentence, true in asked.items():
        if len(true) > 1:
            low, high = map(float, mean_interval(true.to_numpy(float)))
            numbers = f"{int(true.sum())} of {len(true)} runs; share [{low:.2f}, {high:.2f}]"
            said.append(f"{sentence}: {outcome(low, high, 0.5)} ({numbers}).")
    return said


def _said(row: dict[str, Any]) -> str:
    about = f"{row['mixer']}, d_model {row['d_model']}: {row['learnt']} of {row['runs']} runs learn"
    about += f" ({row['share']:.0%} [{row['low']:.0%}, {row['high']:.0%}])"
    if row["first"] is None:
        return f"{about}; no learning rate works."
    several = row["first"] < row["last"]
    about += f"; rates {row['first']:g} to {row['last']:g} work" if several else f"; rate {row['first']:g} works"
    reached, appears, jumps = (math.nan if row[name] is None else row[name] for name in ("to_90", "appears", "jumps"))
    about += "; none reaches 90 % on dev" if math.isnan(reached) else (
        f"; the soonest reaches 90 % after {reached:,.0f} steps"
    )  # fmt: skip
    gap = appears - jumps
    if math.isnan(gap):
        return f"{about}."
    order = "with" if gap == 0 else f"{abs(gap):,.0f} steps {'after' if gap > 0 else 'before'}"
    return f"{about}; its mechanism appears {order} the jump of its accuracy."


STUDIES = (
    Study(
        "convergence", "–", "Which learning rates work, how soon, and does the mechanism appear before the accuracy?",
        points, "convergence", AT_BLOCK_1, every_rate=True, columns=paces, says=says,
    ),
)  # fmt: skip
