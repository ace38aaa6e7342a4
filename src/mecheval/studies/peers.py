"""The runs at the paper's size, published or in a user's store, and custom mixers among them.

The built-in mixers come from the published results, or from the user's own store where that has them; nothing is
trained for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mecheval.config import RunConfig, run_config
from mecheval.custom import MARK
from mecheval.errors import UserError
from mecheval.mixers.options import BUILT_IN
from mecheval.mixers.pattern import mixers_of
from mecheval.store import Store
from mecheval.store.published import Published
from mecheval.store.schema import WHOLE
from mecheval.store.store import snapshot_of
from mecheval.studies.axes import is_custom, ordered
from mecheval.studies.finding import named
from mecheval.studies.learning import learning
from mecheval.studies.placing import COLUMNS, Placing, wilson
from mecheval.studies.table import STATE, best_rows, restoring
from mecheval.sweep.driver import rows_of
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

TASKS = ("ar", "atr")
"""The tasks at the paper's size, in the order in which they are evaluated and shown."""
LAYERS = 2
"""Number of layers of the models that are compared."""
NEEDED = ("mixer", "d_model", "lr", "seed", "step", "steps")
"""Columns of table `runs` without which a run has no place."""


def placings(store: Store, tasks: Sequence[str] = TASKS, among: Collection[str] | None = None) -> list[Placing]:
    """The placings of all custom mixers in a store, by task and width: only those with a custom mixer's run.

    `store` is joined by the published results. `among` are the ids of the custom mixers' runs that count (all).
    """
    both = Published(store.path)
    rows = [row for row in rows_of(both) if _counts(row)]
    own = [
        row
        for row in rows
        if row["task"] in tasks and is_custom(row["mixer"]) and (among is None or row["run"] in among)
    ]
    places = sorted({(row["task"], row["d_model"]) for row in own}, key=lambda each: (tasks.index(each[0]), each[1]))
    made = []
    for task, width in places:
        here = [row for row in rows if (row["task"], row["d_model"]) == (task, width)]
        others = [row for row in here if not is_custom(row["mixer"]) and _is_standard(row)]
        made.append(_placing(both, task, width, [row for row in own if row in here], others))
    return made


def published_mixers(store: Store, task: str, width: int) -> list[str]:
    """The mixers with results on a task at the paper's size and this width, published or in the store."""
    rows = rows_of(Published(store.path))
    here = [row for row in rows if (row["task"], row["d_model"]) == (task, width) and _counts(row)]
    return ordered("mixer", [row["mixer"] for row in here if not is_custom(row["mixer"]) and _is_standard(row)])


def is_small(task: str, config: Mapping[str, Any]) -> bool:
    """Whether a run is on pairs or trees, but on other ones than the paper's."""
    return task in TASKS and config.get("task") != _paper_task(task).task.data()


def is_at_paper_size(config: Mapping[str, Any]) -> bool:
    """Whether a config is about one of the tasks exactly as in the paper, with two layers."""
    task = config["task"]["name"]
    return task in TASKS and not is_small(task, config) and config["model"]["n_layers"] == LAYERS


def _counts(row: Mapping[str, Any]) -> bool:
    """Whether a run has ended and is at the paper's size; other programs may have written anything into a row."""
    config = row["config"]
    if row["status"] not in WHOLE or row["task"] not in TASKS or row["n_layers"] != LAYERS:
        return False
    if not isinstance(config, dict) or any(row[name] is None for name in NEEDED):
        return False
    return (
        isinstance(config.get("mixer"), dict)
        and isinstance(config.get("evaluate"), dict)
        and not is_small(row["task"], config)
    )


@lru_cache
def _paper_task(task: str) -> RunConfig:
    """The config of a run on this task in the paper."""
    return run_config(task, preset="paper")


def _is_standard(row: Mapping[str, Any]) -> bool:
    """Whether a run of a built-in mixer, or of several, has the paper's settings and the mixer's default options."""
    try:
        if not set(mixers_of(row["mixer"])) <= set(BUILT_IN):
            return False
        usual = run_config(row["task"], row["mixer"], "paper", d_model=row["d_model"], lr=row["lr"], seed=row["seed"])
    except UserError:
        return False
    given = {**row["config"], "evaluate": {**row["config"]["evaluate"], "early": False}}
    return RunConfig.read(given).id == usual.id


def _placing(store: Store, task: str, width: int, own: list[dict[str, Any]], others: list[dict[str, Any]]) -> Placing:
    import pandas as pd

    rows = {row["run"]: row for row in own + others}
    taken = snapshot_of(store, "effects", "verdicts", "history", "scores", among=set(rows))
    judged = taken.query(f"select * from verdicts where state = '{STATE}' and split = 'test'").set_index("run")
    every = pd.DataFrame(list(rows.values()))
    every["name"] = _names(every)
    best = best_rows(every, ["name", "seed"])
    restored = restoring(taken, list(best["run"]))
    sizes = taken.query(f"select run, max(n) as n from scores where state = '{STATE}' and split = 'test' group by run")
    answers = sizes.set_index("run")["n"]
    records = [_record(name, runs, judged, restored, answers) for name, runs in best.groupby("name", sort=False)]
    frame = pd.DataFrame(records, columns=list(COLUMNS))
    frame["title"] = [_title(mixer, list(frame["mixer"])) for mixer in frame["mixer"]]
    order = {mixer: place for place, mixer in enumerate(ordered("mixer", frame["mixer"]))}
    frame = frame.assign(place=frame["mixer"].map(order)).sort_values(
        ["accuracy", "place"], ascending=[False, True], na_position="last"
    )
    chances = judged["chance"].dropna()
    chance = float(chances.median()) if len(chances) else math.nan
    made, paper = _paper_task(task).build_task(), _paper_task(task).data.steps
    histories = taken.query("select run, step, loss from history order by step")
    learnt, verdicts = {}, {}
    for mixer, run in ((each["mixer"], each["runs"][0]) for each in records if each["own"]):
        learnt[mixer] = learning(rows[run], histories[histories["run"] == run].to_dict("records"), made, chance, paper)
        verdicts[mixer] = judged.loc[run].to_dict() if run in judged.index else {}
    rates = {name: sorted(set(runs["lr"])) for name, runs in every.groupby("name")}
    return Placing(task, width, chance, frame.drop(columns="place").reset_index(drop=True), verdicts, learnt, rates)


def _names(rows: pd.DataFrame) -> list[str]:
    """Each mixer's name; with its options where a custom mixer has runs with different ones."""
    options = [json.dumps(config["mixer"], sort_keys=True) for config in rows["config"]]
    several = rows.assign(options=options).groupby("mixer")["options"].nunique()
    return [
        mixer
        if several[mixer] == 1
        else " · ".join([mixer, *(f"{n} {v}" for n, v in config["mixer"].items() if n != "name")])
        for mixer, config in zip(rows["mixer"], rows["config"], strict=True)
    ]


def _record(
    name: str, runs: pd.DataFrame, judged: pd.DataFrame, restored: pd.DataFrame, answers: pd.Series[Any]
) -> dict[str, Any]:
    """One row of a placing: the runs of one mixer, one for each seed."""
    accuracy, likelihood = (float(runs[f"test_{name}"].astype(float).mean()) for name in ("accuracy", "likelihood"))
    ids = list(runs["run"])
    words = [judged.loc[run, "label"] if run in judged.index else status
             for run, status in zip(ids, runs["status"], strict=True)]  # fmt: skip
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    known = restored[restored.index.isin(run for run, word in zip(ids, words, strict=True) if word != "not_learnt")]
    role = MISSING if known.empty else str(known["role"].iloc[0]) if known["role"].nunique() == 1 else "several"
    low, high = wilson(accuracy, int(answers.reindex(ids).fillna(0).min()))
    early = [f"{row.message}" for row in runs.itertuples() if row.step < row.steps and row.message]
    return {
        "mixer": name, "title": "", "own": is_custom(name), "accuracy": accuracy, "low": low, "high": high,
        "verdict": words[0] if len(counts) == 1 else ", ".join(f"{n} {word}" for word, n in counts.items()),
        "likelihood": likelihood, "role": role, "share": _mean(known, "share"), "share_low": _mean(known, "share_low"),
        "share_high": _mean(known, "share_high"), "seeds": len(ids), "least": float(runs["test_accuracy"].min()),
        "most": float(runs["test_accuracy"].max()), "steps": int(runs["step"].max()),
        "note": "; ".join(dict.fromkeys(early)), "runs": ids,
    }  # fmt: skip


def _mean(frame: pd.DataFrame, column: str) -> float:
    return math.nan if frame.empty else float(frame[column].astype(float).mean())


def _title(mixer: str, mixers: Sequence[str]) -> str:
    """The mixer's name in a sentence: without its digest, unless another version stands beside it."""
    short = [each.partition(MARK)[0] for each in mixers]
    return mixer if short.count(mixer.partition(MARK)[0]) > 1 else named([mixer])
