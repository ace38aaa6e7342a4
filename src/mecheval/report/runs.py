"""The runs of a store as columns: what each is, how well it answers, its verdict, its config and its map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mecheval.figures.heatmap import AFTER, BEFORE, arranged, split_site
from mecheval.report.configs import mixer_names, packed, task_names
from mecheval.report.plain import columns, tidy
from mecheval.store import Store
from mecheval.types import SHORT_CONVOLUTIONS

if TYPE_CHECKING:  # slow to import
    import pandas as pd

SHOWN = (
    "run", "status", "task", "mixer", "d_model", "n_layers", "lr", "seed", "steps", "step", "parameters",
    "test_accuracy", "test_likelihood", "dev_accuracy", "dev_likelihood", "seconds", "message",
    "task_name", "mixer_name",
)  # fmt: skip
VERDICT = ("label", "layer", "agreement", "summary", "evidence")
PARTS = (*BEFORE, *AFTER, *(f"mixer.{name}" for name in SHORT_CONVOLUTIONS))
"""Sites of a block that maps show: its parts, and the outputs of short convolutions."""
STATE, SPLIT = "last", "test"
BOUNDARY = "blocks.1.input"
"""Where the summary says what restores the answer."""

Cell = tuple[str, str]  # site, role
Map = list[Any]
"""[number of its layout, whether it is of shares, original, corrupted, one number for each site and role]."""


def run_frame(store: Store) -> pd.DataFrame:
    """Table runs with the verdict on the last state and test documents; config as plain data.

    Names of tasks and mixers say in what a run differs from most others of that name.
    """
    frame = store.runs()
    rows = {row["run"]: row["config"] for row in store.rows()}
    configs = [rows[run] if isinstance(rows[run], dict) else {} for run in frame["run"]]
    frame["config"] = configs
    frame["task_name"] = _or_column(task_names(configs), frame["task"])
    frame["mixer_name"] = _or_column(mixer_names(configs), frame["mixer"])
    verdicts = store.query(
        f"select run, {', '.join(VERDICT)} from verdicts where state = '{STATE}' and split = '{SPLIT}'"
    )
    return frame.merge(verdicts, on="run", how="left")


def runs_data(frame: pd.DataFrame, effects: pd.DataFrame) -> dict[str, Any]:
    """Columns of all runs, with their configs and maps."""
    layouts, maps = maps_data(effects)
    return {
        **columns(frame, SHOWN), **columns(frame, VERDICT),
        "config": packed(list(frame["config"])), "layouts": layouts, "map": [maps.get(run) for run in frame["run"]],
        "restored": _restored(frame, effects),
    }  # fmt: skip


def _or_column(names: list[str], column: pd.Series) -> list[str]:
    """A run that cannot be read has no config, and perhaps no name at all."""
    said = [tidy(value) for value in column]
    return [name if name != "None" else str(other or "?") for name, other in zip(names, said, strict=True)]


def mean_effects(store: Store) -> pd.DataFrame:
    """Effects of the last state at the sites that maps show: on test, or else on the split that there is."""
    effects = store.query(f"select * from effects where state = '{STATE}'")
    shown = [split_site(site)[1] in PARTS for site in effects["site"]]
    effects = effects[np.array(shown, dtype=bool)]  # an empty list would choose no columns
    order = {SPLIT: 0, "dev": 1, "train": 2}
    splits = {split: order.get(split, len(order) + place) for place, split in enumerate(effects["split"].unique())}
    rank = effects["split"].map(splits)
    return effects[rank == rank.groupby(effects["run"]).transform("min")]


def maps_data(effects: pd.DataFrame) -> tuple[list[dict[str, Any]], dict[str, Map]]:
    """Layouts (which sites and roles), and each run's map; runs of one kind of model share a layout."""
    places: dict[tuple[Cell, ...], list[Cell]] = {}  # the cells of a run -> the same in the order of their layout
    maps: dict[str, Map] = {}
    names = ("site", "role", "share", "restored", "original", "corrupted", "n")
    every = {name: effects[name].to_numpy() for name in names}
    for run, rows in effects.groupby("run", sort=False).indices.items():
        own = {name: values[rows] for name, values in every.items()}
        cells = tuple(zip(own["site"], own["role"], strict=True))
        if cells not in places:
            places[cells] = _ordered(effects.iloc[rows])
        is_share = bool((own["share"] == own["share"]).any())  # else nothing is learnt; NaN is not itself
        numbers = dict(zip(cells, own["share" if is_share else "restored"].tolist(), strict=True))
        whole = own["n"].argmax()  # not every document has every role
        likelihoods = (tidy(float(own[name][whole])) for name in ("original", "corrupted"))
        maps[run] = [places[cells], int(is_share), *likelihoods, [three(numbers.get(cell)) for cell in places[cells]]]
    layouts: list[dict[str, Any]] = []
    numbers_of: dict[tuple[Cell, ...], int] = {}
    for made in maps.values():
        cells = tuple(made[0])
        if cells not in numbers_of:
            layout = layout_of(cells)
            if layout not in layouts:
                layouts.append(layout)
            numbers_of[cells] = layouts.index(layout)
        made[0] = numbers_of[cells]
    return layouts, maps


def _ordered(own: pd.DataFrame) -> list[Cell]:
    """Every site by depth, with every role."""
    frame = arranged(own)
    return [(site, role) for site in frame["site"].unique() for role in frame["role"].unique()]


def layout_of(cells: Sequence[Cell]) -> dict[str, Any]:
    """Sites (layer, name) and roles of cells that are ordered by them."""
    sites, roles = (list(dict.fromkeys(each)) for each in zip(*cells, strict=True))
    return {"sites": [list(split_site(site)) for site in sites], "roles": roles}


def three(value: float | None) -> float | int | None:
    """Three decimals; a map shows two."""
    short: float | int | None = tidy(None if value is None or value != value else round(value, 3))
    return short


def _restored(frame: pd.DataFrame, effects: pd.DataFrame) -> list[list[Any] | None]:
    """For each run that learnt the role that restores most at the input of layer 1, and its share; else None."""
    learnt = set(frame["run"][frame["label"] != "not_learnt"])
    here = effects[(effects["site"] == BOUNDARY) & effects["share"].notna() & effects["run"].isin(learnt)]
    top = here.sort_values("share", ascending=False, kind="stable").drop_duplicates("run").set_index("run")
    found = {run: [role, tidy(share)] for run, role, share in zip(top.index, top["role"], top["share"], strict=True)}
    return [found.get(run) for run in frame["run"]]
