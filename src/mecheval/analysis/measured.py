"""Intervene on a model and judge it: the one way from a model and documents to effects and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from mecheval.intervene import Depths, Verdict, interchange, verdict
from mecheval.intervene.effects import EVIDENCE
from mecheval.store.bounds import ON_THE_WAY
from mecheval.tasks import Task
from mecheval.types import ALL_ROLES, Batch

if TYPE_CHECKING:
    import pandas as pd

CELL = ["site", "role", "corruption", "direction"]
"""Columns that identify one intervention on one model."""
FINDING = ("label", "layer", "stored_by", "stored_at", "found_by")
"""Parts of a finding that have a column of their own."""
STANDARD = ("key", "restore")
"""The corruption and the direction that verdicts are about, as in the paper."""
Row = dict[str, Any]
"""A row of one of the store's tables, by column."""
PLACE = ("state", "step", "split")
"""Columns that identify one evaluation among those of the same run."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What interventions say about a model: the effects at every site and role, and the verdict."""

    effects: pd.DataFrame
    verdict: Verdict

    def rows(self, state: str, step: int, split: str) -> dict[str, list[dict[str, Any]]]:
        """Rows of the store's tables `effects` and `verdicts`; what is not a number is missing."""
        import pandas as pd

        place = dict(zip(PLACE, (state, step, split), strict=True))
        evidence = self.effects.attrs[EVIDENCE]
        rows = None if state == ON_THE_WAY or evidence is None or not evidence.cells else evidence.table()
        tables = [self.effects] if rows is None else [self.effects, rows]
        every = pd.concat(tables, ignore_index=True).drop_duplicates(CELL)
        intervals = self.verdict.shares.rename(columns={"low": "share_low", "high": "share_high"}).drop(columns="share")
        joined = every.merge(intervals, on=CELL, how="left").to_dict("records")
        effects = rows_of(joined, place)
        found = self.verdict
        judged = {
            **place, **{name: getattr(found.finding, name) for name in FINDING}, "agreement": found.agreement,
            "chance": _plain(found.chance), "n": found.n, "places": ", ".join(found.finding.places) or None,
            "summary": str(found.finding), "evidence": "\n".join(found.evidence),
        }  # fmt: skip
        return {"effects": effects, "verdicts": [judged]}


def judged_on(task: Task, n: int, split: str, seed: int, corruption: str = "key") -> tuple[Batch, Batch]:
    """Clean and corrupted documents on which a model is judged: each about one of its queries, all queries in turn."""
    clean = task.each_query_in_turn(task.sample(n, split, seed))
    return clean, task.corrupt(clean, seed, corruption)


def measure(
    model: nn.Module, clean: Batch, corrupted: Batch, sites: Sequence[str] | None = None, depths: Depths | None = None
) -> Measured:
    """Put clean activations back into the corrupted run, at all sites (or these) and roles, and judge the effects."""
    effects = interchange(model, clean, corrupted, sites, depths=depths)
    return Measured(effects, verdict(effects))


def rows_of(effects: Sequence[Mapping[str, Any]], place: Mapping[str, Any]) -> list[Row]:
    """Effects as rows of the store's table, at a state, step and split (`place`); what is not a number is missing."""
    blank = {"share_low": None, "share_high": None}
    return [{**place, **blank, **{name: _plain(value) for name, value in row.items()}} for row in effects]


def beside(new: Sequence[Row], before: Sequence[Row], *, judged: bool) -> list[Row]:
    """New rows of table `effects`, and those from `before` of the same state and split that stay beside them.

    Rows of other corruptions and directions stay, and so does the evidence of a verdict (other roles than maps show,
    or rows with an interval) unless a verdict was `judged` anew. Of one intervention that is in both, the row about
    more documents stays, with the interval that is known.
    """
    rows = {tuple(row[name] for name in CELL): row for row in new}
    places = {tuple(row[name] for name in PLACE) for row in new}
    about = {STANDARD} if judged else {(row["corruption"], row["direction"]) for row in new}
    for old in before:
        if tuple(old[name] for name in PLACE) not in places:
            continue
        cell = tuple(old[name] for name in CELL)
        if cell in rows:
            found = rows[cell]
            interval = found if found["share_low"] is not None else old
            more = old if (old["n"] or 0) > found["n"] else found
            rows[cell] = {**more, "share_low": interval["share_low"], "share_high": interval["share_high"]}
        else:
            evidence = old["role"] not in ALL_ROLES or old["share_low"] is not None
            if (old["corruption"], old["direction"]) not in about or (evidence and not judged):
                rows[cell] = old
    return list(rows.values())


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
