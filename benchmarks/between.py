"""Is there a scale between laptop and paper, a minute a run, that predicts the paper's size better than the laptop's?

python -m benchmarks.between run STORE        # trains what is missing; stop and repeat it at any time
python -m benchmarks.between table STORE      # the candidates, on the half of the settings on which one is chosen
python -m benchmarks.between table STORE --report "paper, 8,000 steps"    # the chosen one, on the other half
python -m benchmarks.between early            # the published runs themselves, seen before their end

`between_split.csv` has the halves, drawn with a fixed seed before any of these runs. Runs have the lowest priority and
one core, and all candidates have the same two rates and one seed. Times are of the processor, so that other work does
not count.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from mecheval.cli.app import aside
from mecheval.config import run_config
from mecheval.paper.agreement import agreement, early
from mecheval.paper.standings import standings, standings_of
from mecheval.store import RESULTS, Store
from mecheval.studies.scales import BASE
from mecheval.sweep import HereEngine, Job, Point, sweep
from mecheval.sweep.board import Board
from mecheval.sweep.driver import pending

RATES = (1e-3, 3e-3)
WIDTH = 32
"""Width at the paper's size that is predicted."""
SPLIT = Path(__file__).with_name("between_split.csv")
CHOOSE, REPORT = "choose", "report"
OPTIONS = {"d_conv": {"none": 0}, "kernel": {"long": -1}}
"""Names of options in settings, and of their values that are words."""
FIELDS = {"d_conv": "d_conv", "kernel": "kernel_size"}
PAPER: dict[str, Any] = {"preset": "paper", "d_model": 32, "evaluate.every": 1000}
LAPTOP: dict[str, dict[str, Any]] = {
    task: {**BASE[task, "laptop"], "d_model": 32, "stop_at": None, "interchange_every": None} for task in ("ar", "atr")
}
CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "laptop at width 32, 4,000 steps": {
        "ar": {**LAPTOP["ar"], "steps": 4000, "evaluate.every": 200},
        "atr": {**LAPTOP["atr"], "steps": 4000, "evaluate.every": 200},
    },
    "paper, 8,000 steps": {"ar": {**PAPER, "steps": 8000}, "atr": {**PAPER, "steps": 8000}},
    "8 pairs of 1,024 keys; trees of at most 64": {
        "ar": {**PAPER, "pairs": 8, "keys": 1024, "values": 1024, "steps": 8000},
        "atr": {**PAPER, "max_length": 64, "steps": 8000},
    },
    "16 pairs of 64 keys, 4 queries; trees of at most 32": {
        "ar": {**PAPER, "keys": 64, "values": 64, "queries": 4, "documents": None, "steps": 5000},
        "atr": {**PAPER, "max_length": 32, "documents": None, "steps": 10_000},
    },
    "8 pairs of 16 keys, 8 queries, width 64": {
        "ar": {**LAPTOP["ar"], "d_model": 64, "pairs": 8, "keys": 16, "values": 64, "queries": 8, "steps": 3000},
        "atr": {**LAPTOP["atr"], "d_model": 64, "steps": 3000},
    },
}
"""Candidates: for each task the settings of its runs, by name."""


def halves() -> dict[str, str]:
    """The half of each setting."""
    with SPLIT.open(encoding="utf-8", newline="") as file:
        return {row["setting"]: row["half"] for row in csv.DictReader(file)}


def points(candidate: str, half: str | None = None) -> Iterator[Point]:
    """The runs of a candidate, of one half or of both; Based's kernels have no runs on trees at the paper's size."""
    for task, options in CANDIDATES[candidate].items():
        for setting, own in halves().items():
            mixer, _, variant = setting.partition(" · ")
            if half not in (None, own) or (task == "atr" and mixer == "based" and variant):
                continue
            axes: dict[str, Any] = {"task": task, "mixer": mixer}
            if variant:
                name, _, value = variant.partition(" ")
                axes[FIELDS[name]] = OPTIONS[name][value] if value in OPTIONS[name] else int(value)
            given = {name: value for name, value in options.items() if name != "documents"}
            if "documents" in options:
                given["data.documents"] = options["documents"]
            for rate in RATES:
                yield Point({**axes, "lr": rate}, run_config(**{**given, **axes, "lr": rate}))


def run(store: Store, only: str | None) -> None:
    """Train the missing runs, the half on which one chooses first."""
    os.nice(19 - os.nice(0))
    store.path.mkdir(parents=True, exist_ok=True)
    for half in (CHOOSE, REPORT):
        for candidate in CANDIDATES if only is None else [only]:
            for job in pending([Job(point.config) for point in points(candidate, half)], store):
                began = time.process_time()
                try:
                    sweep([job], store, HereEngine(), Board(aside, f"{candidate} ({half})"))
                finally:
                    with (store.path / "cpu.csv").open("a", encoding="utf-8") as file:
                        file.write(f"{job.run},{time.process_time() - began:.1f}\n")


def seconds(store: Store) -> dict[str, float]:
    """The processor's seconds of each run, over all processes that worked on it."""
    found: dict[str, float] = {}
    if (path := store.path / "cpu.csv").exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            run, _, spent = line.partition(",")
            found[run] = found.get(run, 0.0) + float(spent)
    return found


def table(store: Store, half: str, candidates: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each candidate and task: the runs that are done, their time, and how far they agree."""
    large, spent, rows = standings(Store(RESULTS), "paper"), seconds(store), []
    for candidate in candidates:
        for task in CANDIDATES[candidate]:
            own = [point for point in points(candidate, half) if point.axes["task"] == task]
            done = {job.run for job in map(Job, (p.config for p in own))} - {
                job.run for job in pending([Job(point.config) for point in own], store)
            }
            times = pd.Series([spent[each] for each in done if each in spent], dtype=float)
            row = {"candidate": candidate, "task": task, "done": f"{len(done)} of {len(own)}",
                   "seconds": times.median(), "most": times.max()}  # fmt: skip
            found = agreement(standings_of(own, store), large, (WIDTH,)) if done else pd.DataFrame()
            rows.append({**row, **(found.to_dict("records")[-1] if len(found) else {})})
    return pd.DataFrame(rows).drop(columns=["d_model", "group"], errors="ignore")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("run", "table", "early"))
    parser.add_argument("store", type=Path, nargs="?", default=Path("between"))
    parser.add_argument("--only", choices=list(CANDIDATES), help="run this candidate alone")
    parser.add_argument("--report", choices=list(CANDIDATES), help="show this candidate on the half that is held out")
    given = parser.parse_args()
    store = Store(given.store)
    if given.what == "run":
        run(store, given.only)
        return
    if given.what == "early":
        shown = early(Store(RESULTS), [name for name, half in halves().items() if half == CHOOSE])
        sys.stdout.write(shown.round(2).to_string(index=False) + "\n")
        return
    shown = table(store, REPORT, {given.report: None}) if given.report else table(store, CHOOSE, CANDIDATES)
    sys.stdout.write(shown.round(2).to_string(index=False) + "\n")


if __name__ == "__main__":
    main()
