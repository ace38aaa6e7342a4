"""What ending early would have cost runs that went on to their last step: the rule is replayed on their histories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mecheval.config import RunConfig
from mecheval.store import RESULTS, Store
from mecheval.store.store import snapshot_of
from mecheval.sweep.driver import rows_of
from mecheval.training.early import GUESSING, ending, guess_level

if TYPE_CHECKING:  # slow to import
    import pandas as pd

COLUMNS = (
    "run",
    "mixer",
    "d_model",
    "lr",
    "seed",
    "guess",
    "steps",
    "step",
    "why",
    "early",
    "accuracy",
    "likelihood_gain",
)
"""Columns of `replayed`: `step` and `early` are the step and the dev accuracy at which the run would have ended, `why`
the reason (empty if it goes on to the end), `accuracy` is that of the last step, and `likelihood_gain` what the
likelihood gained in between."""


def after_guessing(task: str, width: int) -> str:
    """What became of published runs that were no better than guessing at half of their steps, in words."""
    rows = replayed(task, width)
    guessing = rows[rows["why"] == GUESSING]
    if guessing.empty:
        return ""
    best = f"{100 * guessing['accuracy'].max():.0f} %"
    return f"Of {len(guessing)} published runs that guessed at half of their steps, the best came to {best} in the end."


def replayed(task: str, width: int | None = None, store: Store | None = None) -> pd.DataFrame:
    """A row for each finished run of a task with two layers (of this width) that was trained to its last step.

    Published histories have about fifty rows, so steps are exact to 3 % of the run.
    """
    import pandas as pd

    store = Store(RESULTS) if store is None else store
    rows = [row for row in rows_of(store) if row["task"] == task and row["n_layers"] == 2 and row["status"] == "done"]
    rows = [row for row in rows if row["step"] == row["steps"] and width in (None, row["d_model"])]
    taken = snapshot_of(store, "history", among={row["run"] for row in rows})
    histories = dict(list(taken.query("select * from history order by run, step").groupby("run")))
    levels: dict[str, float] = {}
    found = []
    for row in rows:
        config = RunConfig.read(row["config"])
        guess = levels.setdefault(str(config.task.data()), guess_level(config, config.build_task()))
        found.append(_replay(row, histories[row["run"]].to_dict("records"), guess))
    return pd.DataFrame(found, columns=list(COLUMNS))


def _replay(row: Mapping[str, Any], history: list[dict[str, Any]], guess: float) -> dict[str, Any]:
    last, end, why = history[-1], history[-1], ""
    for n in range(1, len(history)):
        if said := ending(history[:n], row["steps"], guess):
            end, why = history[n - 1], said.kind
            break
    return {
        **{name: row[name] for name in ("run", "mixer", "d_model", "lr", "seed", "steps")},
        "guess": guess, "step": end["step"], "why": why, "early": end["dev_accuracy"],
        "accuracy": last["dev_accuracy"], "likelihood_gain": last["dev_likelihood"] - end["dev_likelihood"],
    }  # fmt: skip
