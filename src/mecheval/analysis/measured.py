"""Intervene on a model and judge it: the one way from a model and documents to effects and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from mecheval.intervene import Depths, Verdict, interchange, verdict
from mecheval.types import Batch

if TYPE_CHECKING:
    import pandas as pd

PLACE = ("state", "step", "split")
"""Columns that identify one evaluation among those of the same run."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What interventions say about a model: the effects at every site and role, and the verdict."""

    effects: pd.DataFrame
    verdict: Verdict

    def rows(self, state: str, step: int, split: str) -> dict[str, list[dict[str, Any]]]:
        """Rows of the store's tables `effects` and `verdicts`; what is not a number is missing."""
        place = dict(zip(PLACE, (state, step, split), strict=True))
        intervals = self.verdict.shares.rename(columns={"low": "share_low", "high": "share_high"}).drop(columns="share")
        joined = self.effects.merge(intervals, on=["site", "role"], how="left").to_dict("records")
        effects = [{**place, **{name: _plain(value) for name, value in row.items()}} for row in joined]
        found = self.verdict
        judged = {
            **place, **vars(found.finding), "agreement": found.agreement, "summary": str(found.finding),
            "evidence": "\n".join(found.evidence),
        }  # fmt: skip
        return {"effects": effects, "verdicts": [judged]}


def measure(
    model: nn.Module, clean: Batch, corrupted: Batch, sites: Sequence[str] | None = None, depths: Depths | None = None
) -> Measured:
    """Put clean activations back into the corrupted run, at all sites (or these) and roles, and judge the effects."""
    effects = interchange(model, clean, corrupted, sites)
    return Measured(effects, verdict(effects, depths=depths))


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
