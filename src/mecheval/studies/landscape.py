"""The study `landscape`: the loss around runs of every mixer, and how near training is to the edge of stability.

The results of `mecheval.training.landscape` are kept in the store, in a file for each run, and never computed twice.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mecheval.errors import UserError
from mecheval.files import write_atomic
from mecheval.machine import cores
from mecheval.plain import parse_json
from mecheval.store import Store, StoreError, writing
from mecheval.store.guard import read_file
from mecheval.studies import convergence
from mecheval.studies.convergence import in_most_runs
from mecheval.studies.scales import FAST, PREFERRED
from mecheval.studies.study import Study
from mecheval.sweep import Point
from mecheval.sweep.local import program

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.studies.table import StudyTable

FOLDER = "landscapes"
"""The folder of these files in the store."""
ALONG, DOCUMENTS = 5, 32
"""Number of steps at which sharpness is measured, and number of dev documents over which losses are averaged."""
PARTS = {"plane": 3, "line": 2, "sharpness": 4}
"""The arrays of a file with their numbers of columns: a, b, loss; part, loss; step, loss, sharpness, its edge."""
COLUMNS = ("rise", "edge", "edge_step")
"""By run: the largest loss between start and end, relative to that at the start; the largest sharpness under AdamW,
relative to the edge of stability, and the step at which it was measured."""
MOST_BYTES = 1_000_000
"""Largest size of a file in bytes; most have about 12,000."""
Found = dict[str, NDArray[np.float64]]


def points(scale: str) -> list[Point]:
    """The runs of study `convergence` in which each mixer has its preferred learning rate."""
    every = convergence.points(scale)
    return [point for point in every if point.axes["lr"] == PREFERRED.get(point.axes["mixer"], FAST)]


def look(points: Sequence[Point], store: Store, workers: int | None = None) -> None:
    """Compute the landscapes of finished runs that have none yet, each in a process; by default, one per core."""
    missing = {}
    for point in points:
        folder = store.folder(point.config.id)
        if folder.exists() and (status := folder.status())["status"] == "done" and kept(store, folder.id) is None:
            missing[folder.id] = status["seconds"] or 0.0
    longest_first = sorted(missing, key=lambda run: -missing[run])
    with ThreadPoolExecutor(workers or cores()) as pool:
        try:
            list(pool.map(lambda run: _look_at(store, run), longest_first))
        finally:
            pool.shutdown(cancel_futures=True)


def _look_at(store: Store, run: str) -> None:
    command, environment = program("mecheval.training.landscape", str(store.path), run, str(ALONG), str(DOCUMENTS))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2] or "its process was killed."
        raise UserError(f"landscape of run {run}: {said}")
    found = json.loads(done.stdout)
    names = ("step", "loss", "preconditioned", "preconditioned_edge")
    measured = [row for row in found["sharpness"] if row["preconditioned"] is not None]
    made = {
        "plane": [[row["a"], row["b"], row["loss"]] for row in found["plane"]],
        "line": [[row["part"], row["loss"]] for row in found["line"]],
        "sharpness": [[row[name] for name in names] for row in measured],
    }
    path = _file(store, run)
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, json.dumps(made).encode())


def kept(store: Store, run: str) -> Found | None:
    """The stored landscape of a run; None if there is no file, or another program wrote it."""
    try:
        data = parse_json(read_file(_file(store, run), store.path, MOST_BYTES).decode())
        found = {name: np.asarray(data[name], dtype=float).reshape(-1, width) for name, width in PARTS.items()}
    except (OSError, UserError, StoreError, ValueError, TypeError, KeyError):
        return None
    whole = all(np.isfinite(each).all() and len(each) for each in found.values())
    side = round(len(found["plane"]) ** 0.5)
    return found if whole and side**2 == len(found["plane"]) else None


def _file(store: Store, run: str) -> Path:
    return store.path / FOLDER / f"{run}.json"


def columns(frame: pd.DataFrame, store: Store) -> pd.DataFrame:
    """The COLUMNS by run, NaN where its landscape is not known."""
    import pandas as pd

    index = pd.Index(frame["run"].unique(), name="run")
    known = {run: found for run in index if (found := kept(store, run)) is not None}
    rows = {run: _numbers(found) for run, found in known.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS), dtype=float).reindex(index)


def _numbers(found: Found) -> tuple[float, float, float]:
    part, loss = found["line"].T
    steps, _, sharpness, edges = found["sharpness"].T
    near = int(np.argmax(sharpness / edges))
    return float(loss[part <= 1].max() / loss[0]), float((sharpness / edges)[near]), float(steps[near])


def says(table: StudyTable) -> list[str]:
    """A sentence for each run, then the hypotheses with their outcomes by 95 % intervals."""
    known = table.frame[table.frame["edge"].notna()]
    said = [_said(row) for row in known.to_dict("records")]
    asked = {
        "On the line from start to end the loss never rises above its start, in most runs": known["rise"] <= 1,
        "Training reaches the edge of stability under AdamW, in most runs": known["edge"] >= 1,
    }
    return said + in_most_runs(asked)


def _said(row: dict[str, Any]) -> str:
    hill = "never rises above its start" if row["rise"] <= 1 else f"rises to {row['rise']:.2f} of its start"
    return (
        f"{row['mixer']}, lr {row['lr']:g}, seed {row['seed']}: on the line from start to end the loss {hill}; the "
        f"sharpness under AdamW is at most {row['edge']:.2f} of the edge of stability, at step {row['edge_step']:,.0f}."
    )


STUDIES = (
    Study(
        "landscape", "–", "What does the loss look like around each mixer's run, and is training at its edge?", points,
        "landscapes", prepare=look, columns=columns, kept=kept, says=says,
    ),
)  # fmt: skip
