"""The runs of a store as rows for the drawing of mechanisms."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures.mechanisms import COLUMNS
from mecheval.store.bounds import name_of
from mecheval.store.store import snapshot_of
from mecheval.types import CARRIERS, SHORT_CONVOLUTIONS

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.store import Store

STATE, SPLIT = "last", "test"
SETTING = ("task", "mixer", "model", "seed")
"""Parts of a config within which learning rates compete; documents of other tasks are not comparable."""
INSIDE = re.compile(rf"blocks\.(\d+)\.mixer\.(?:{'|'.join(SHORT_CONVOLUTIONS)})", re.ASCII)
"""Outputs of short convolutions."""
DECIDING = "site like 'blocks.%.input' or site like 'blocks.%.mixer.%'"
"""Sites whose shares are looked at, as SQL: fewer than there are."""

Cells = dict[tuple[str, str], float]  # (site, role) -> restored share


def mechanism_rows(store: Store, task: str, among: Collection[str] | None = None) -> pd.DataFrame:
    """A row for each setting of a task: of its runs the one with the highest dev accuracy (ties: dev likelihood).

    `among` are the ids of the runs that count; None: all. Those without a verdict on the last state and test documents
    never do. A mixer whose runs differ in its options or in their position embeddings is named with these.
    """
    store = snapshot_of(store, "runs", "effects", "verdicts")
    verdicts = store.verdicts()
    verdicts = verdicts[(verdicts["state"] == STATE) & (verdicts["split"] == SPLIT)]
    frame = store.runs().merge(verdicts.drop(columns=["state", "split", "step"]), on="run")
    frame = frame if among is None else frame[frame["run"].isin(among)]
    there = sorted(set(frame["task"].dropna()))
    frame = frame[frame["task"] == task].dropna(subset=["mixer", "n_layers", "d_model"]).copy()
    if frame.empty:
        others = f"there are some of {', '.join(there)}" if there else "`mecheval intervene RUN` makes one"
        raise UserError(f"no run of task {task!r} in {store.path} has a verdict on {SPLIT}; {others}.")
    whole = {row["run"]: row["config"] or {} for row in store.rows()}
    configs = [whole[run] for run in frame["run"]]
    frame["setting"] = [
        json.dumps([config.get(part) for part in SETTING], sort_keys=True) if config else run
        for run, config in zip(frame["run"], configs, strict=True)
    ]
    frame["mixer"] = _named(list(frame["mixer"]), configs)
    best = frame.sort_values(["dev_accuracy", "dev_likelihood"], ascending=False, kind="stable", na_position="last")
    chosen = best.drop_duplicates("setting").rename(columns={"label": "verdict"}).reset_index(drop=True)
    cells = _cells(store, set(chosen["run"]))
    shares = [_shares(cells.get(row["run"], {}), row["layer"]) for row in chosen.to_dict("records")]
    for name in shares[0]:
        chosen[name] = [each[name] for each in shares]
    return chosen.loc[:, ["run", *COLUMNS]]


def _named(mixers: list[str], configs: list[dict[str, Any]]) -> list[str]:
    """Each run's mixer, with what sets it apart from other runs of the same mixer."""
    options = [
        {name: value for name, value in config.get("mixer", {}).items() if name != "name"}
        | {"positions": config.get("model", {}).get("positions")}
        for config in configs
    ]
    values: dict[str, dict[str, set[str]]] = {}  # mixer -> option -> what its runs have there
    for mixer, own in zip(mixers, options, strict=True):
        for name, value in own.items():
            values.setdefault(mixer, {}).setdefault(name, set()).add(_plain(value))
    counts = Counter(mixers)
    named = Counter((mixer, name) for mixer, own in zip(mixers, options, strict=True) for name in own)
    names = []
    for mixer, own in zip(mixers, options, strict=True):
        apart = [name for name in own if len(values[mixer][name]) > 1 or named[mixer, name] < counts[mixer]]
        told = [mixer, *(f"{name} {_plain(own[name])}" for name in apart)]
        names.append(name_of(" · ".join(told)) if apart else mixer)
    return names


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _cells(store: Store, runs: set[str]) -> dict[str, Cells]:
    """Restored shares of these runs, run by run."""
    effects = store.query(
        f"select run, site, role, share from effects where state = '{STATE}' and split = '{SPLIT}' and ({DECIDING})"
    )
    effects = effects[effects["run"].isin(runs)]
    cells: dict[str, Cells] = {}
    for run, site, role, share in zip(*(effects[name] for name in ("run", "site", "role", "share")), strict=True):
        cells.setdefault(run, {})[site, role] = float(share)
    return cells


def _shares(cells: Cells, layer: Any) -> dict[str, float]:
    """The columns `SHARES` of a run; `layer` is the one that retrieves, if the verdict names one."""
    import pandas as pd

    known = None if pd.isna(layer) else int(layer)
    shares = {f"share_{role}": cells.get((f"blocks.{known or 1}.input", role), math.nan) for role in CARRIERS}
    inside = {site for site, _ in cells if (found := INSIDE.fullmatch(site)) and int(found[1]) == known}
    pairs = [tuple(cells.get((site, role), math.nan) for role in ("value", "next_key")) for site in sorted(inside)]
    value, next_key = max((pair for pair in pairs if not math.isnan(sum(pair))), key=sum, default=(math.nan, math.nan))
    return shares | {"conv_value": value, "conv_next_key": next_key}
