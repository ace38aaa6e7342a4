"""A custom mixer among the mixers with results at the paper's size: the table of all, and the sentence about the one.

The built-in mixers come from the published results, or from the user's own store where that has them; nothing is
trained for it. Terminal, report and notebook show what `placings` returns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
from mecheval.studies.early_ends import after_guessing
from mecheval.studies.finding import named
from mecheval.studies.learning import Learning, learning
from mecheval.studies.table import STATE, best_rows, restoring
from mecheval.sweep.driver import rows_of
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

TASKS = ("ar", "atr")
"""The tasks at the paper's size, in the order in which they are evaluated and shown."""
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
LAYERS = 2
"""Number of layers of the models that are compared."""
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
            return [f"On {self.noun}, {learnt.describe(self.rates[mixer], self.width, others)}"]
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
        words = label.replace("_", " ")
        return MECHANISMS.get(label, f"its seeds differ: {words}" if "," in label else f"verdict {words}")


def legend(placed: Sequence[Placing]) -> str:
    """What the columns of these tables mean."""
    early = any(place.frame["note"].any() for place in placed)
    return LEGEND.format(early=f"{EARLY}: ended early by the rule in docs/training.md. " if early else "")


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
    """Whether a run has ended and is at the paper's size."""
    known = row["status"] in WHOLE and row["task"] in TASKS and row["n_layers"] == LAYERS
    return known and isinstance(row["config"], dict) and not is_small(row["task"], row["config"])


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
    learnt, verdicts = {}, {}
    for mixer, run in ((each["mixer"], each["runs"][0]) for each in records if each["own"]):
        history = taken.query(f"select step, loss from history where run = '{run}' order by step").to_dict("records")
        learnt[mixer] = learning(rows[run], history, made, chance, paper)
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


def _mean(frame: pd.DataFrame, column: str) -> float:
    return math.nan if frame.empty else float(frame[column].astype(float).mean())


def _title(mixer: str, mixers: Sequence[str]) -> str:
    """The mixer's name in a sentence: without its digest, unless another version stands beside it."""
    short = [each.partition(MARK)[0] for each in mixers]
    return mixer if short.count(mixer.partition(MARK)[0]) > 1 else named([mixer])


def _scored(row: pd.Series[Any]) -> str:
    return f"{row['title']} ({percent(row['accuracy'])})"


def percent(value: float) -> str:
    """A share in whole percent."""
    return MISSING if value != value else f"{100 * value:.0f} %"


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share that was measured on n documents."""
    if n < 1 or share != share:
        return math.nan, math.nan
    z = CONFIDENCE
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
