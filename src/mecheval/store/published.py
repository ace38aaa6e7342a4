"""Results that come with the package: runs without their weights, small enough for a repository.

They form a store with a folder for each run, so that all commands can read them. Branches that add different runs do
not conflict, and publishing a run again writes the same bytes. They are part of the package, so they are available
wherever it is installed.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from mecheval.errors import UserError
from mecheval.files import safetensors_header
from mecheval.store.bounds import ON_THE_WAY
from mecheval.store.folder import ENVIRONMENT, RunFolder
from mecheval.store.guard import StoreError, writing
from mecheval.store.schema import WHOLE
from mecheval.store.store import Store

RESULTS = Path(str(files("mecheval"))) / "results"
"""Folder of the published results."""
MOST_BYTES = 20_000_000
"""Largest total size of the published runs in bytes."""
EVIDENCE = "evidence-*.npz"
"""The files of a run that keep the evidence for verdicts."""
MOST_STEPS = 50
"""Largest number of rows in the history of a published run."""


class Published(Store):
    """A store for reading, together with published results, which supply the runs that are not whole in the store."""

    def __init__(self, path: str | Path, results: Path = RESULTS) -> None:
        super().__init__(path)
        own, published = Store(path), Store(results)
        there = published.ids() if published.exists() else []
        self.published = {run: published.folder(run) for run in there if not _is_whole(own.folder(run))}

    def exists(self) -> bool:
        return bool(self.published) or super().exists()

    def ids(self) -> list[str]:
        return sorted({*(super().ids() if super().exists() or not self.published else ()), *self.published})

    def folder(self, run: str) -> RunFolder:
        return self.published.get(run) or super().folder(run)


def publish(folder: RunFolder, to: Path = RESULTS) -> bool:
    """Add a whole run to the published results, and return whether that changed anything."""
    row, target = folder.status(), RunFolder(to / "runs" / folder.id)
    if row["status"] not in WHOLE:
        raise UserError(f"run {folder.id} is {row['status']}; only runs that ended can be published.")
    status = target.path / "status.json"
    before = status.read_bytes() if status.exists() else b""
    with writing(target.path):
        target.path.mkdir(parents=True, exist_ok=True)
    target.write("history", _thinned(folder.read("history")))
    target.write("scores", folder.read("scores"))
    for name in ("effects", "verdicts"):
        rows = [each for each in folder.read(name) if each["state"] != ON_THE_WAY]
        if rows:
            target.write(name, rows)
    parts = {
        part: {name: value for name, value in kept.items() if name != "host"}
        for part, kept in folder.environments().items()
    }
    evidence = {path.name: folder.read_file(path.name) for path in sorted(folder.path.glob(EVIDENCE))}
    target.write_files({**evidence, ENVIRONMENT: json.dumps(parts, indent=1).encode() + b"\n"})
    target.seal(row)
    return status.read_bytes() != before


def pretrained_files(results: Path = RESULTS) -> dict[str, Path]:
    """The file of each pretrained model, by its name."""
    return {path.stem: path for path in sorted((results / "weights").glob("*.safetensors"))}


def pretrained_origin(path: Path) -> dict[str, Any]:
    """The origin of a pretrained model: run, state, step and config."""
    origin = safetensors_header(path.read_bytes())
    if not isinstance(origin, dict):
        raise UserError(f"{path} does not say which model it is.")
    return origin


def pretrained_file(folder: RunFolder) -> Path | None:
    """The weights of a published run, or None if they are not published."""
    files = pretrained_files(folder.path.parents[1]).values()
    return next((path for path in files if pretrained_origin(path)["run"] == folder.id), None)


def is_published(folder: RunFolder) -> bool:
    """Whether a run belongs to published results, which only `mecheval results` changes."""
    return bool(pretrained_files(folder.path.parents[1]))


def check_size(to: Path = RESULTS) -> int:
    """The total size of the published runs in bytes, or an error if it exceeds `MOST_BYTES`."""
    size = sum(path.stat().st_size for path in (to / "runs").rglob("*") if path.is_file())
    if size > MOST_BYTES:
        raise UserError(f"{to / 'runs'} has {size:,} bytes; at most {MOST_BYTES:,} may be published.")
    return size


def _is_whole(folder: RunFolder) -> bool:
    try:
        return folder.status()["status"] in WHOLE
    except StoreError:
        return False


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """About `MOST_STEPS` of the rows at most, evenly spaced, and always the last one."""
    every = -(-len(rows) // MOST_STEPS)
    return [row for i, row in enumerate(rows, start=1) if i % every == 0 or i == len(rows)]
