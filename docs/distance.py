"""What the pretrained models of trees restore by the distance from key to value: docs/results/distance.csv.

python docs/distance.py        # a minute; then python docs/tables.py writes the table into the pages
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mecheval.analysis.runs import probe_by
from mecheval.analysis.weights import find_run
from mecheval.sites import Site
from mecheval.store import RESULTS, Store
from mecheval.store.published import pretrained_files

FILE = Path(__file__).parent / "results" / "distance.csv"
DOCUMENTS = 3000
"""Test documents; about 40 % of them count for a verdict."""


def rows(name: str) -> list[dict[str, object]]:
    """A row for each group of distances."""
    before, found = str(Site(1, "input", "stream")), []
    for distance, verdict in probe_by(find_run(Store(RESULTS), name), "distance", n=DOCUMENTS).items():
        restored = verdict.shares.query("corruption == 'key' and direction == 'restore'")
        shares = restored[restored["site"] == before].set_index("role")["share"].round(3).to_dict()
        found.append({
            "model": name, "distance": distance, "documents": verdict.n, "original": round(verdict.original, 4),
            "corrupted": round(verdict.corrupted, 4), "key": shares.get("key"), "between": shares.get("between"),
            "query": shares.get("question"), "verdict": verdict.label, "finding": str(verdict.finding),
        })  # fmt: skip
    return found


if __name__ == "__main__":
    models = [name for name in pretrained_files() if name.startswith("atr-")]
    pd.DataFrame([row for name in models for row in rows(name)]).to_csv(FILE, index=False)
