"""Intervene on a model and judge it: the one way from a model and documents to effects and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from mecheval.intervene import Depths, Verdict, interchange, verdict
from mecheval.intervene.effects import EVIDENCE
from mecheval.store.bounds import ON_THE_WAY
from mecheval.tasks import Task
from mecheval.types import Batch

if TYPE_CHECKING:
    import pandas as pd

CELL = ["site", "role", "corruption", "direction"]
"""Columns that identify one intervention on one model."""
FINDING = ("label", "layer", "stored_by", "stored_at", "found_by")
"""Parts of a finding that have a column of their own."""
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
        effects = [{**place, **{name: _plain(value) for name, value in row.items()}} for row in joined]
        found = self.verdict
        judged = {
            **place, **{name: getattr(found.finding, name) for name in FINDING}, "agreement": found.agreement,
            "chance": _plain(found.chance), "n": found.n, "places": ", ".join(found.finding.places) or None,
            "summary": str(found.finding), "evidence": "\n".join(found.evidence),
        }  # fmt: skip
        return {"effects": effects, "verdicts": [judged]}


def judged_on(task: Task, n: int, split: str, seed: int) -> tuple[Batch, Batch]:
    """Clean and corrupted documents on which a model is judged: each about one of its queries, all queries in turn."""
    clean = task.each_query_in_turn(task.sample(n, split, seed))
    return clean, task.corrupt(clean, seed)


def measure(
    model: nn.Module, clean: Batch, corrupted: Batch, sites: Sequence[str] | None = None, depths: Depths | None = None
) -> Measured:
    """Put clean activations back into the corrupted run, at all sites (or these) and roles, and judge the effects."""
    effects = interchange(model, clean, corrupted, sites, depths=depths)
    return Measured(effects, verdict(effects))


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
