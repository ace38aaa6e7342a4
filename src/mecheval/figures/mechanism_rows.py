"""The runs of a store as rows for the drawing of mechanisms."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from mecheval.errors import UserError
from mecheval.figures.heatmap import split_site
from mecheval.figures.mechanisms import COLUMNS, SHARES
from mecheval.figures.names import mixer_names, setting_of
from mecheval.store.snapshot import snapshot_of
from mecheval.studies import best_rows
from mecheval.types import CARRIERS, LAST, SHORT_CONVOLUTIONS

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.store import Store

SPLIT = "test"
DECIDING = "site like 'blocks.%.input' or site like 'blocks.%.mixer.%'"
"""SQL that holds for the sites whose shares matter here, to read no others."""
INSIDE = tuple(f"mixer.{name}" for name in SHORT_CONVOLUTIONS)
"""Parts of a block that are outputs of short convolutions."""


def mechanism_rows(store: Store, task: str, among: Collection[str] | None = None) -> pd.DataFrame:
    """A row for each setting of a task: of its runs, the one with the highest dev accuracy (ties: dev likelihood).

    `among` are the ids of the runs that count, by default all. Runs without a verdict on the last state and test
    documents never count. A mixer whose runs differ in its options or position embeddings is named with these.
    """
    store = snapshot_of(store, "runs", "effects", "verdicts")
    verdicts = store.query(f"select * from verdicts where state = '{LAST}' and split = '{SPLIT}'")
    frame = store.runs().merge(verdicts.drop(columns=["state", "split", "step"]), on="run")
    frame = frame if among is None else frame[frame["run"].isin(among)]
    there = sorted(set(frame["task"].dropna()))
    frame = frame[frame["task"] == task].dropna(subset=["mixer", "n_layers", "d_model"]).reset_index(drop=True)
    if frame.empty:
        others = f"there are some of {', '.join(there)}" if there else "`mecheval intervene RUN` makes one"
        raise UserError(f"no run of task {task!r} in {store.path} has a verdict on {SPLIT}; {others}.")
    whole = {row["run"]: row["config"] or {} for row in store.rows()}
    configs = [whole[run] for run in frame["run"]]
    frame["setting"] = [setting_of(run, config) for run, config in zip(frame["run"], configs, strict=True)]
    frame["mixer"] = mixer_names(list(frame["mixer"]), configs, all_same=True)
    chosen = best_rows(frame, ["setting"]).rename(columns={"label": "verdict"}).reset_index(drop=True)
    return chosen.join(_shares(store, chosen), on="run").loc[:, ["run", *COLUMNS]]


def _shares(store: Store, chosen: pd.DataFrame) -> pd.DataFrame:
    """The columns `SHARES` of these runs, by run; NaN where a share was not measured."""
    import pandas as pd

    effects = store.query(
        f"select run, site, role, share from effects where state = '{LAST}' and split = '{SPLIT}' and ({DECIDING})"
    )
    places = {site: split_site(site) for site in effects["site"].unique()}
    cells: dict[str, dict[tuple[int | None, str, str], float]] = {run: {} for run in chosen["run"]}
    for run, site, role, share in effects[effects["run"].isin(set(chosen["run"]))].itertuples(index=False):
        cells[run][(*places[site], role)] = float(share)
    found = {}
    for run, layer in zip(chosen["run"], chosen["layer"], strict=True):
        own, known = cells[run], None if pd.isna(layer) else int(layer)  # the layer that retrieves
        shares = [own.get((known or 1, "input", role), math.nan) for role in CARRIERS]
        inside = sorted({part for block, part, _ in own if block == known and part in INSIDE})
        pairs = [[own.get((known, part, role), math.nan) for role in ("value", "next_key")] for part in inside]
        most = max((pair for pair in pairs if not math.isnan(sum(pair))), key=sum, default=[math.nan, math.nan])
        found[run] = [*shares, *most]
    return pd.DataFrame.from_dict(found, orient="index", columns=list(SHARES))
