"""Rows and runs for the tests of the store, and what other processes do to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mecheval.store import RunFolder, Store

ID = "0123456789ab"
HISTORY = [
    {"step": step, "lr": 1e-3, "loss": 1 / (step + 1), "dev_loss": 0.1, "dev_likelihood": 0.9, "dev_accuracy": None}
    for step in range(3)
]
EVALUATION = {"state": "last", "step": 2, "split": "dev", "likelihood": 0.5, "accuracy": 0.25, "loss": 0.7, "n": 100}
EFFECT = {
    "state": "last", "step": 2, "split": "dev", "site": "block.0.mixer.out", "role": "key", "original": 0.9,
    "corrupted": 0.1, "restored": 0.5, "attribution": 0.5, "share": 1.0, "share_low": 0.9, "share_high": 1.0, "n": 100,
}  # fmt: skip
ABLATION = {
    "state": "last", "step": 2, "split": "dev", "edit": "zero", "site": "block.0.mixer.out", "role": "key",
    "original": 0.9, "edited": 0.4, "drop": 0.5, "n": 100,
}  # fmt: skip
VERDICT = {
    "state": "last", "step": 2, "split": "dev", "label": "induction", "layer": 1, "stored_by": 0, "stored_at": "value",
    "agreement": 1.0, "summary": "induction: layer 0 stores", "evidence": "One sentence.\nAnother.",
}  # fmt: skip


def scores(**wide: Any) -> list[dict[str, Any]]:
    """A row of view `evaluations` as the rows of table `scores` behind it."""
    place = {name: wide.pop(name) for name in ("state", "step", "split", "n")}
    return [{**place, "metric": name, "value": value} for name, value in sorted(wide.items())]


def write_run(folder: RunFolder, status: str = "done", rows: int = 3, **columns: Any) -> RunFolder:
    """As a trainer does: the tables first, the status last."""
    with folder.exclusive():
        folder.set_status(status="running", task="ar", mixer="mamba", seed=1, config={"task": {"pairs": 8}})
        folder.write("history", [HISTORY[i % 3] | {"step": i} for i in range(rows)])
        folder.write("scores", [*scores(**EVALUATION), *scores(**EVALUATION | {"split": "test"})])
        folder.write("effects", [EFFECT])
        folder.write("verdicts", [VERDICT])
        folder.write("ablations", [ABLATION])
        folder.set_status(status=status, **columns)
    return folder


def write_many(path: Path, worker: int, runs: int, rows: int) -> None:
    """One of several processes that write; each run is written twice, as if trained again."""
    for i in range(runs):
        for _ in range(2):
            write_run(Store(path).folder(f"{worker:06x}{i:06x}"), rows=rows)


def hold(path: Path, held: Path) -> None:
    """Hold a run for longer than any test takes, in the middle of a write."""
    folder = RunFolder(path)
    with folder.exclusive():
        folder.set_status(status="running", step=7)
        (path / "weights").mkdir()
        (path / "weights" / ".last.safetensors.x.part").write_text("half")
        held.touch()
        time.sleep(600)
