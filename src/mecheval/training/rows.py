"""Effects and verdicts as rows of the store."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mecheval.intervene import Verdict

if TYPE_CHECKING:
    import pandas as pd

PLACE = ("state", "step", "split")
"""What tells the effects of one evaluation from those of another in the same run."""


def effect_rows(effects: pd.DataFrame, found: Verdict, state: str, step: int, split: str) -> list[dict[str, Any]]:
    """A row of the table `effects` for each site and role; what is not a number is missing."""
    place = dict(zip(PLACE, (state, step, split), strict=True))
    intervals = found.shares.rename(columns={"low": "share_low", "high": "share_high"}).drop(columns="share")
    rows = effects.merge(intervals, on=["site", "role"], how="left").to_dict("records")
    return [{**place, **{name: _plain(value) for name, value in row.items()}} for row in rows]


def verdict_row(found: Verdict, state: str, step: int, split: str) -> dict[str, Any]:
    """A row of the table `verdicts`."""
    return {
        **dict(zip(PLACE, (state, step, split), strict=True)), **vars(found.finding), "agreement": found.agreement,
        "summary": str(found.finding), "evidence": "\n".join(found.evidence),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
