"""Checkpoints: tensors as safetensors, the rest as JSON, written atomically and verified when they are read.

A checkpoint is two files, `000000500.safetensors` and `000000500.json`. The second is written last and holds the
checksum of the first and of itself, so a checkpoint that is truncated or damaged on disk is never used. The last two
are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from mecheval.files import of_data, sha256, write_atomic
from mecheval.store import writing

KEPT = 2
"""Number of checkpoints that are kept."""


class Checkpoint(NamedTuple):
    """Everything that training needs to resume as if it had never stopped."""

    step: int
    tensors: dict[str, Tensor]  # weights, moments of the optimiser, best weights, random state
    state: dict[str, Any]  # plain data: history, best scores, sums since the last row


class Damaged(Exception):
    """A checkpoint is incomplete, or is not what was written."""


def write_checkpoint(folder: Path, run: str, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, then remove all but the last two. An error leaves the earlier ones intact."""
    name = f"{checkpoint.step:09d}"
    tensors = save(checkpoint.tensors)
    body = {"run": run, "step": checkpoint.step, "tensors_sha256": sha256(tensors), "state": checkpoint.state}
    with writing(folder):
        folder.mkdir(exist_ok=True)  # without its parents: a run that was moved must not begin anew here
        write_atomic(folder / f"{name}.safetensors", tensors)
        write_atomic(folder / f"{name}.json", json.dumps({"sha256": of_data(body), **body}, allow_nan=False))
        for old in sorted(folder.glob("*.json"))[:-KEPT]:
            _remove(old)


def read_checkpoint(folder: Path, run: str, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint; damaged ones are reported through `say` and removed."""
    damaged: list[str] = []
    found = None
    for path in sorted(folder.glob("*.json"), reverse=True):
        try:
            found = _read(path, run)
            break
        except Damaged as damage:
            damaged.append(f"checkpoint {int(path.stem)} of run {run} is damaged ({damage})")
            with writing(folder):
                _remove(path)
    for problem in damaged:
        say(f"{problem}; " + (f"resuming from step {found.step}." if found else "starting from the beginning."))
    return found


def _read(path: Path, run: str) -> Checkpoint:
    try:
        body = json.loads(path.read_bytes())
        tensors = path.with_suffix(".safetensors").read_bytes()
        expected = body.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise Damaged("part of it is missing") from None
    if expected != of_data(body):
        raise Damaged("its JSON does not match its checksum")
    if body["tensors_sha256"] != sha256(tensors):
        raise Damaged("its tensors do not match their checksum")
    if body["run"] != run:
        raise Damaged(f"it belongs to run {body['run']}")
    return Checkpoint(body["step"], load(tensors), body["state"])


def _remove(path: Path) -> None:
    """Remove a checkpoint, the JSON first, because the tensors alone do not count as a checkpoint."""
    path.unlink(missing_ok=True)
    path.with_suffix(".safetensors").unlink(missing_ok=True)
