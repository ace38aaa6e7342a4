"""The study `inside`: what each layer reads at the query, and how its state grows and changes, for every mixer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mecheval.errors import UserError
from mecheval.store import Store, StoreError
from mecheval.studies import convergence
from mecheval.studies.beyond import EVERY, on_both_tasks
from mecheval.studies.convergence import in_most_runs
from mecheval.studies.scales import MIXERS, RATES
from mecheval.studies.study import Study
from mecheval.sweep import Point

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.studies.table import StudyTable

ROLES = ("value", "key", "next_key")
LAYERS = 2
DOCUMENTS = 64
READS = {f"layer_{i}_{role}": f"layer {i} reads {role}" for i in range(LAYERS) for role in ROLES}
"""Columns of shares: how much of what a layer reads at the query comes from a role."""
CHANGES = {f"layer_{i}_change_{role}": f"layer {i} changes at {role}" for i in range(LAYERS) for role in ROLES}
"""Columns of changes: how much of its state, by norm, a layer's state changes at the token of a role."""
NORMS = {f"layer_{i}_norm": f"norm of layer {i}'s state" for i in range(LAYERS)}
"""Columns of norms of the states after the query."""
COLUMNS = (*READS, *CHANGES, *NORMS)


def points(scale: str) -> list[Point]:
    """The runs of study `newer` on associative recall.

    On a laptop, those of study `convergence` instead, and of newer mixers in the same setting with the usual rates.
    """
    if scale != "laptop":
        return [point for point in on_both_tasks(scale) if point.axes["task"] == "ar" and point.axes["mixer"] in EVERY]
    newer = [name for name in EVERY if name not in MIXERS]
    return [*convergence.points(scale), *convergence.points(scale, newer, RATES["ar", scale])]


def read_off(frame: pd.DataFrame, store: Store) -> pd.DataFrame:
    """The COLUMNS by run, computed from its weights; NaN if a run has no weights, or a mixer no state as a tensor.

    Of several learning rates, only the run that counts is read.
    """
    import pandas as pd

    from mecheval.studies.table import best_rows

    found = pd.DataFrame(index=pd.Index(frame["run"].unique(), name="run"), columns=list(COLUMNS), dtype=float)
    best = best_rows(frame, ("mixer", "d_model", "seed"))
    for run in best.loc[best["status"] == "done", "run"]:
        from mecheval.analysis.runs import documents, load_run
        from mecheval.intervene import reads

        try:
            trained = load_run(store.folder(run))
        except (StoreError, UserError):  # published results have no weights
            continue
        clean, _ = documents(trained.task, trained.config, "test", DOCUMENTS)
        seen = reads(trained.lm, clean)
        for row in seen.table(ROLES).to_dict("records"):
            found.loc[run, f"layer_{row['layer']}_{row['role']}"] = row["share"]
        for row in seen.states((*ROLES, "query")).to_dict("records"):
            if row["role"] == "query":
                found.loc[run, f"layer_{row['layer']}_norm"] = row["norm"]
            else:
                found.loc[run, f"layer_{row['layer']}_change_{row['role']}"] = row["change"]
    return found


def says(table: StudyTable) -> list[str]:
    """A sentence for each mixer and width, over several seeds about the means, then the hypotheses with outcomes."""
    known = table.frame[table.frame[list(READS)].notna().any(axis=1)]
    said = []
    for (mixer, width), own in known.groupby(["mixer", "d_model"], sort=False):
        name = f"{mixer}, d_model {width}" if known["d_model"].nunique() > 1 else mixer
        means = own[list(COLUMNS)].mean()
        layers = []
        for i in range(LAYERS):
            shares = ", ".join(f"{role} {_two(means[f'layer_{i}_{role}'])}" for role in ROLES)
            state = "no state as a tensor"
            if not np.isnan(means[f"layer_{i}_norm"]):
                changes = ", ".join(f"{role} {means[f'layer_{i}_change_{role}']:.2f}" for role in ROLES)
                state = f"state of norm {means[f'layer_{i}_norm']:.3g} that changes by {changes}"
            layers.append(f"layer {i} reads {shares}; {state}")
        said.append(f"{name}: {'. '.join(layers)}.".replace(". layer", ". Layer"))
    return [*said, *hypotheses(known)]


def _two(share: float) -> str:
    """A share with two decimals, and never -0.00."""
    return f"{round(share, 2) + 0.0:.2f}"


def hypotheses(known: pd.DataFrame) -> list[str]:
    """Each hypothesis with its outcome by a 95 % interval of the share of runs in which it is true."""
    induction = known[known["verdict"] == "induction"]
    with_state = known[known["layer_0_norm"].notna()]
    asked = {
        "Where the verdict is induction, layer 1 reads more than half of its result at the query from the value":
            (induction["layer_1_value"] > 0.5),
        "A state of layer 0 changes more at the value than at the key, in most runs":
            (with_state["layer_0_change_value"] > with_state["layer_0_change_key"]),
    }  # fmt: skip
    return in_most_runs(asked)


STUDIES = (
    Study(
        "inside", "–", "How much of what each layer reads at the query comes from value, key and next key?", points,
        "inside", columns=read_off, says=says,
    ),
)  # fmt: skip
