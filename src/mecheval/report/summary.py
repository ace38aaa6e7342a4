"""The first section: the best run of every setting, and the drawing of who stores the association where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures.mechanism_rows import SETTING, mechanism_rows
from mecheval.figures.mechanisms import mechanisms_figure
from mecheval.report.grids import Found
from mecheval.report.specs import Spec, page_spec
from mecheval.store import Store
from mecheval.studies.axes import ordered

if TYPE_CHECKING:  # slow to import
    import pandas as pd

TASKS = 8
"""Tasks whose mechanisms are drawn, in the order of charts."""


def best_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Of the runs of each setting (task, mixer, model, seed) the one with the highest dev accuracy, then likelihood.

    Ordered by task, then what is usual before what is varied, mixer, depth and width. A setting whose
    runs all failed or diverged is there too, with its first.
    """
    settings = []
    for row in frame.to_dict("records"):
        parts = [row["config"].get(part) for part in SETTING] if row["config"] else [row["run"]]
        settings.append(json.dumps(parts, sort_keys=True))
    ranked = frame.assign(setting=settings, ended=frame["status"] == "done").sort_values(
        ["ended", "dev_accuracy", "dev_likelihood"], ascending=False, na_position="last", kind="stable"
    )
    best = ranked.drop_duplicates("setting")
    names = {axis: best[axis].fillna("?") for axis in ("task", "mixer")}
    for axis, values in names.items():
        places = {value: place for place, value in enumerate(ordered(axis, values))}
        best = best.assign(**{f"{axis}_place": [places[value] for value in values]})
    usual = best["n_layers"].mode()
    varied = (best["mixer_name"] != names["mixer"]).astype(int) + ~best["n_layers"].isin(usual[:1])
    best = best.assign(other_task=best["task_name"] != names["task"], varied=varied)
    order = ["task_place", "other_task", "varied", "mixer_place", "n_layers", "d_model", "seed"]
    return best.sort_values(order, kind="stable")


def mechanism_figures(store: Store, frame: pd.DataFrame, studies: Sequence[Found]) -> list[Spec]:
    """A drawing for each task whose runs have verdicts.

    Where the store has the paper's study of a task, the drawing is of its runs and of those of mixers that are not in
    it; else of all runs of the task.
    """
    by_name = {found.study.name: found for found in studies}
    drawn = []
    for task in ordered("task", frame["task"].dropna())[:TASKS]:
        own = frame[frame["task"] == task]
        among: set[str] | None = None
        if task in by_name:
            grid = by_name[task].table.frame
            others = own[~own["mixer"].isin(set(grid["mixer"]))]
            among = {*grid["run"], *others["run"]}
        try:
            rows = mechanism_rows(store, task, among)
        except UserError:  # none of them has a verdict
            continue
        drawn.append(page_spec(mechanisms_figure(rows, f"Who stores the association where: {task}")))
    return drawn


def updated(frame: pd.DataFrame) -> str:
    """When a run last changed, as far as that is known."""
    latest = frame["updated"].max()
    return "an unknown time" if latest != latest else f"{latest:%Y-%m-%d %H:%M} UTC"


def overview(frame: pd.DataFrame) -> dict[str, Any]:
    """How much there is."""
    return {
        "runs": len(frame), "statuses": frame["status"].value_counts().to_dict(),
        "tasks": [str(each) for each in ordered("task", frame["task"].dropna())],
        "mixers": [str(each) for each in ordered("mixer", frame["mixer"].dropna())],
        "seeds": int(frame["seed"].nunique()), "hours": float(frame["seconds"].sum()) / 3600,
    }  # fmt: skip
