"""How every mixer stands at a scale, on pairs and on trees: the one table behind a page, a picture and a comparison.

A *setting* is a mixer, a hybrid, or a mixer with another convolution (`mamba · d_conv 2`). Of its runs at a width, the
one with the best learning rate on dev counts, for each seed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mecheval.mixers import options_of
from mecheval.mixers.pattern import is_pattern
from mecheval.paper.estimates import estimate, estimate_share
from mecheval.store import Store
from mecheval.studies import STUDIES, best_rows, seeds_in, study_points, study_table
from mecheval.studies.axes import USUAL, named, ordered, plain, say
from mecheval.studies.scales import AT_BLOCK_1
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.sweep import Point

SOURCES = ("newer", "hybrids", "ar_mamba_conv", "atr_mamba_conv", "ar_based_conv")
"""The studies whose runs are taken; a run that several have counts once."""
PLACE = ("task", "setting", "d_model")
"""Columns that identify a row."""
WIDTHS = (32, 64)
"""Widths at the paper's size that are shown."""
SCORES = ("likelihood", "accuracy")
COLUMNS = (
    *PLACE, "mixer", "option", *(f"{score}{end}" for score in SCORES for end in ("", "_low", "_high")), "restored_at",
    "share", "share_low", "share_high", "verdict", "verdicts", "seeds", "lr", "runs",
)  # fmt: skip
"""Columns of the table; `option` is empty for a mixer as it is, and texts of several runs are joined by commas."""


def standings(store: Store, scale: str) -> pd.DataFrame:
    """A row for each task, setting and width that has a finished run, with the columns `COLUMNS`.

    Likelihood and accuracy are means over seeds on test, with 95 % intervals that hold documents and seeds (see
    `mecheval.paper.estimates`). `restored_at` is where the clean input of layer 1 restores most, of key, value and
    query, and `share` how much of the loss, over the runs that learnt, with the same kind of interval. `verdict` is
    that of most seeds, and `verdicts` counts all of them.
    """
    return standings_of(points_at(scale, store), store)


def points_at(scale: str, store: Store) -> list[Point]:
    """The runs of the `SOURCES` at a scale, with all seeds that the store has of them.

    A mixer as it is comes from the first two alone: at scale laptop, the others have a slightly different task.
    """
    found = []
    for name in SOURCES:
        every = study_points(STUDIES[name], scale, seeds_in(STUDIES[name], scale, store))
        found += [point for point in every if name in SOURCES[:2] or _option(point)]
    return found


def standings_of(points: Sequence[Point], store: Store) -> pd.DataFrame:
    """The same for runs of any grid: of those that are done, the best on dev of each setting, width and seed."""
    import pandas as pd

    by_run = {point.config.id: point for point in points}
    frame = study_table(replace(STUDIES["ar"], readings=AT_BLOCK_1), list(by_run.values()), store).frame
    frame = frame[frame["status"] == "done"]
    known = [about(by_run[run]) for run in frame["run"]]
    every = frame.assign(
        **{name: [each[name] for each in known] for name in ("task", "setting", "option", "documents")}
    )
    best = best_rows(every, [*PLACE, "seed"])
    rows = [_row(dict(zip(PLACE, place, strict=True)), runs) for place, runs in best.groupby(list(PLACE), sort=False)]
    return in_order(pd.DataFrame(rows, columns=list(COLUMNS)))


def panels(frame: pd.DataFrame, scale: str) -> dict[str, pd.DataFrame]:
    """The mixers as they are, without their variants, by the titles of panels; each has a row for a task and mixer.

    At scale paper a panel is a width of `WIDTHS`, elsewhere the largest width that each task has.
    """
    own = frame[frame["option"] == ""]
    if scale == "paper":
        return {f"width {width}": own[own["d_model"] == width] for width in WIDTHS}
    top = own.sort_values("d_model", kind="stable").drop_duplicates(["task", "mixer"], keep="last")
    return {f"scale {scale}": top.sort_index()}


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows by task, then mixers before their variants and hybrids, then widths."""
    tasks, mixers = (ordered(axis, frame[axis]) for axis in ("task", "mixer"))

    def place(i: int) -> tuple[int, bool, int, int]:
        row = frame.iloc[i]
        return tasks.index(row["task"]), row["option"] != "", mixers.index(row["mixer"]), int(row["d_model"])

    return frame.iloc[sorted(range(len(frame)), key=place)].reset_index(drop=True)


def about(point: Point) -> dict[str, Any]:
    """The task, the setting, the option that it has its name from, and the number of test documents of a run."""
    config, option = point.config, _option(point)
    setting = " · ".join(filter(None, (config.mixer.name, option)))
    return {"task": config.task.name, "setting": setting, "option": option, "documents": config.evaluate.documents}


def _option(point: Point) -> str:
    """The option in which a mixer differs from its defaults, in words; empty if it does not."""
    name = point.config.mixer.name
    declared = None if is_pattern(name) else options_of(name)
    fields = {} if declared is None else declared.model_fields
    axes = {axis: value for axis, value in point.axes.items() if axis not in USUAL and axis in fields}
    return ", ".join(
        named(axis, say(axis, value)) for axis, value in axes.items() if value != fields[axis].get_default()
    )


def _row(place: dict[str, Any], runs: pd.DataFrame) -> dict[str, Any]:
    """The runs of one setting, which differ in their seeds, as one row."""
    first = runs.iloc[0]
    row = {**place, "mixer": first["mixer"], "option": first["option"], "seeds": len(runs)}
    for score in SCORES:
        mean = estimate([float(value) for value in runs[f"test_{score}"]], int(first["documents"]))
        low, high = mean.interval()
        row |= {score: mean.value, f"{score}_low": max(0.0, low), f"{score}_high": min(1.0, high)}
    row |= _restored(runs[runs["verdict"].notna() & (runs["verdict"] != "not_learnt")], int(first["documents"]))
    verdicts = Counter(verdict for verdict in map(plain, runs["verdict"]) if verdict)
    said = [f"{n} {label}" if len(runs) > 1 else label for label, n in verdicts.most_common()]
    row |= {"verdict": verdicts.most_common(1)[0][0] if verdicts else None, "verdicts": ", ".join(said) or MISSING}
    return {**row, "lr": _each(say("lr", plain(rate)) for rate in runs["lr"]), "runs": _each(runs["run"])}


def _restored(learnt: pd.DataFrame, documents: int) -> dict[str, Any]:
    """The columns about the position that restores most, of runs that learnt."""
    found = {}
    for reading in AT_BLOCK_1:
        runs = learnt[["original", "corrupted", reading.name]].dropna()
        if len(runs):
            triples = [(float(a), float(b), float(c)) for a, b, c in runs.itertuples(index=False)]
            found[reading.role] = estimate_share(triples, documents)
    if not found:
        return {"restored_at": None, "share": math.nan, "share_low": math.nan, "share_high": math.nan}
    role = max(found, key=lambda role: found[role].value)
    low, high = found[role].interval()
    return {"restored_at": role, "share": found[role].value, "share_low": low, "share_high": high}


def _each(texts: Iterable[str]) -> str:
    """The different texts, most frequent first."""
    return ", ".join(text for text, _ in Counter(map(str, texts)).most_common())
