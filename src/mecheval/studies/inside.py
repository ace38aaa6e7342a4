"""Inside: what each layer reads at the query, and what its state holds, for every mixer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.mixers.options import BUILT_IN
from mecheval.store import Store, StoreError
from mecheval.studies.beyond import on_both_tasks
from mecheval.studies.study import Study
from mecheval.sweep import Point

if TYPE_CHECKING:  # slow to import
    import pandas as pd

ROLES = ("value", "key", "next_key")
LAYERS = 2
DOCUMENTS = 64
READS = {f"layer_{i}_{role}": f"layer {i} reads {role}" for i in range(LAYERS) for role in ROLES}
"""Columns of shares: how much of what a layer reads at the query comes from a role."""


def points(scale: str) -> list[Point]:
    """The runs of study `newer` on associative recall."""
    return [point for point in on_both_tasks(scale) if point.axes["task"] == "ar" and point.axes["mixer"] in BUILT_IN]


def reads_of(frame: pd.DataFrame, store: Store) -> pd.DataFrame:
    """The columns READS by run, from its weights; NaN where a run has none."""
    import pandas as pd

    found = pd.DataFrame(index=pd.Index(frame["run"].unique(), name="run"), columns=list(READS), dtype=float)
    for run in frame.loc[frame["status"] == "done", "run"]:
        from mecheval.analysis.runs import documents, load_run
        from mecheval.intervene import reads

        try:
            trained = load_run(store.folder(run))
        except (StoreError, UserError):  # published results have no weights
            continue
        clean, _ = documents(trained.task, trained.config, "test", DOCUMENTS)
        for row in reads(trained.lm, clean).table(ROLES).to_dict("records"):
            found.loc[run, f"layer_{row['layer']}_{row['role']}"] = row["share"]
    return found


STUDIES = (
    Study(
        "inside", "–", "How much of what each layer reads at the query comes from value, key and next key?", points,
        "inside", columns=reads_of,
    ),
)  # fmt: skip
