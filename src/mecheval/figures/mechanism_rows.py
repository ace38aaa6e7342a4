"""The runs of a store as rows for the drawing of mechanisms."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mecheval.errors import UserError
from mecheval.figures.mechanisms import COLUMNS
from mecheval.types import CARRIERS, SHORT_CONVOLUTIONS

if TYPE_CHECKING:  # slow to import
    import pandas as pd  # type: ignore[import-untyped]

    from mecheval.store import Store

STATE, SPLIT = "last", "test"
SETTING = ("task", "mixer", "model", "seed")
"""Parts of a config within which learning rates compete; documents of other tasks are not comparable."""
INSIDE = re.compile(rf"blocks\.(\d+)\.mixer\.(?:{'|'.join(SHORT_CONVOLUTIONS)})")
"""Outputs of short convolutions."""

Cells = dict[tuple[str, str], float]  # (site, role) -> restored share


def mechanism_rows(store: Store, task: str, among: Collection[str] | None = None) -> pd.DataFrame:
    """A row for each setting of a task: of its runs the one with the highest dev accuracy (ties: dev likelihood).

    `among` are the ids of the runs that count; None: all. Those without a verdict on the last state and test documents
    never do. A mixer whose runs differ in its options or in their position embeddings is named with these.
    """
    verdicts = store.verdicts()
    verdicts = verdicts[(verdicts["state"] == STATE) & (verdicts["split"] == SPLIT)]
    frame = store.runs().merge(verdicts.drop(columns=["state", "split", "step"]), on="run")
    frame = frame if among is None else frame[frame["run"].isin(among)]
    there = sorted(set(frame["task"].dropna()))
    frame = frame[frame["task"] == task].copy()
    if frame.empty:
        others = f"there are some of {', '.join(there)}" if there else "`mecheval intervene RUN` makes one"
        raise UserError(f"no run of task {task!r} in {store.path} has a verdict on {SPLIT}; {others}.")
    configs = [json.loads(config) for config in frame["config"]]
    frame["setting"] = [json.dumps([config.get(part) for part in SETTING], sort_keys=True) for config in configs]
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
    options = [{**config.get("mixer", {}), "positions": config.get("model", {}).get("positions")} for config in configs]
    names = []
    for mixer, own in zip(mixers, options, strict=True):
        same = [other for name, other in zip(mixers, options, strict=True) if name == mixer]
        apart = [name for name, value in own.items() if any(other.get(name) != value for other in same)]
        names.append(" · ".join([mixer, *(f"{name} {_plain(own[name])}" for name in apart)]))
    return names


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cells(store: Store, runs: set[str]) -> dict[str, Cells]:
    """Restored shares of these runs, run by run."""
    effects = store.effects()
    effects = effects[(effects["state"] == STATE) & (effects["split"] == SPLIT) & effects["run"].isin(runs)]
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
