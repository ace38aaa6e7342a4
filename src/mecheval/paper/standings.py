"""How every mixer stands at a scale, on pairs and on trees: the one table behind a page, a picture and a comparison.

A *setting* is a mixer, a hybrid, or a mixer with another convolution (`mamba · d_conv 2`). Of its runs at a width, the
one with the best learning rate on dev counts, for each seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mecheval.mixers import options_of
from mecheval.paper.estimates import estimate
from mecheval.store import Store
from mecheval.studies import STUDIES, StudyTable, best_rows, restoring, seeds_in, study_points, study_table
from mecheval.studies.axes import USUAL, named, ordered, plain, say
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.sweep import Point

SOURCES = ("newer", "hybrids", "ar_mamba_conv", "atr_mamba_conv", "ar_based_conv")
"""The studies whose runs are taken; a run that several have counts once."""
PLACE = ("task", "setting", "d_model")
"""Columns that identify a row."""
SCORES = ("likelihood", "accuracy")
COLUMNS = (
    *PLACE, "mixer", "option", *(f"{score}{end}" for score in SCORES for end in ("", "_low", "_high")), "restored_at",
    "share", "verdict", "verdicts", "seeds", "lr", "runs",
)  # fmt: skip
"""Columns of the table; `option` is empty for a mixer as it is, and texts of several runs are joined by commas."""


def standings(store: Store, scale: str) -> pd.DataFrame:
    """A row for each task, setting and width that has a finished run, with the columns `COLUMNS`.

    Likelihood and accuracy are means over seeds on test, with 95 % intervals that hold documents and seeds (see
    `mecheval.paper.estimates`). `restored_at` is where the clean input of layer 1 restores most, and `share` how much
    of the loss, the mean over the runs that learnt. `verdict` is that of most seeds, `verdicts` counts all of them.
    """
    import pandas as pd

    found = chosen(store, scale)
    restored = restoring(store, list(found["run"])) if len(found) else None
    rows = [_row(dict(zip(PLACE, place, strict=True)), runs, restored)
            for place, runs in found.groupby(list(PLACE), sort=False)]  # fmt: skip
    return in_order(pd.DataFrame(rows, columns=list(COLUMNS)))


def chosen(store: Store, scale: str) -> pd.DataFrame:
    """The run that counts for each task, setting, width and seed: of those that are done, the best on dev."""
    import pandas as pd

    tables = [_runs(name, store, scale) for name in SOURCES]
    every = pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
    every = every[every["status"] == "done"].drop_duplicates("run").reset_index(drop=True)
    return best_rows(every, [*PLACE, "seed"]).reset_index(drop=True)


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows by task, then mixers before their variants and hybrids, then widths."""
    mixers = ordered("mixer", frame["mixer"])
    keys = {"task": ordered("task", frame["task"]).index, "option": lambda text: text != "", "mixer": mixers.index}
    places = [[key(value) for value in frame[name]] for name, key in keys.items()]
    by = sorted(range(len(frame)), key=lambda i: (*(place[i] for place in places), int(frame["d_model"].iloc[i])))
    return frame.iloc[by].reset_index(drop=True)


def _runs(name: str, store: Store, scale: str) -> pd.DataFrame:
    """The runs of a study that the store has, with their task, setting and option."""
    study = STUDIES[name]
    points = study_points(study, scale, seeds_in(study, scale, store))
    by_run = {point.config.id: point for point in points}
    table: StudyTable = study_table(study, points, store)
    frame = table.frame[table.frame["status"] != "missing"]
    about = [(point.config.task.name, _option(point), point.config.evaluate.documents)
             for point in map(by_run.__getitem__, frame["run"])]  # fmt: skip
    options = [option for _, option, _ in about]
    return frame.assign(
        task=[task for task, _, _ in about], option=options, documents=[n for _, _, n in about],
        setting=[" · ".join(filter(None, each)) for each in zip(frame["mixer"], options, strict=True)],
    )  # fmt: skip


def _option(point: Point) -> str:
    """The option in which a mixer differs from its defaults, in words; empty if it does not."""
    declared = options_of(point.config.mixer.name)
    fields = {} if declared is None else declared.model_fields
    axes = {axis: value for axis, value in point.axes.items() if axis not in USUAL and axis in fields}
    return ", ".join(
        named(axis, say(axis, value)) for axis, value in axes.items() if value != fields[axis].get_default()
    )


def _row(place: dict[str, Any], runs: pd.DataFrame, restored: pd.DataFrame | None) -> dict[str, Any]:
    """The runs of one setting, which differ in their seeds, as one row."""
    first = runs.iloc[0]
    row = {**place, "mixer": first["mixer"], "option": first["option"], "seeds": len(runs)}
    for score in SCORES:
        mean = estimate([float(value) for value in runs[f"test_{score}"]], int(first["documents"]))
        low, high = mean.interval()
        row |= {score: mean.value, f"{score}_low": max(0.0, low), f"{score}_high": min(1.0, high)}
    learnt = runs.loc[runs["verdict"].notna() & (runs["verdict"] != "not_learnt"), "run"]
    there = None if restored is None else restored[restored.index.isin(learnt)]
    if there is not None and len(there):
        row |= {"restored_at": _each(there["role"]), "share": float(there["share"].mean())}
    verdicts = Counter(verdict for verdict in map(plain, runs["verdict"]) if verdict)
    said = [f"{label} ({n} of {len(runs)})" if len(verdicts) > 1 else label for label, n in verdicts.most_common()]
    row |= {"verdict": verdicts.most_common(1)[0][0] if verdicts else None, "verdicts": ", ".join(said) or MISSING}
    return {**row, "lr": _each(say("lr", plain(rate)) for rate in runs["lr"]), "runs": _each(runs["run"])}


def _each(texts: Sequence[str] | Any) -> str:
    """The different texts, most frequent first."""
    return ", ".join(text for text, _ in Counter(map(str, texts)).most_common())
