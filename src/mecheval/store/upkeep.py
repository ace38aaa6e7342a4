"""Upkeep of a store: `verify` checks every file against its checksum, and `clean` removes what no run needs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mecheval.files import run_id, safetensors_header
from mecheval.store.folder import RunFolder
from mecheval.store.guard import StoreError, check_tree, writing
from mecheval.store.lock import RunHeld
from mecheval.store.schema import STORED, WHOLE
from mecheval.store.store import ID, Store
from mecheval.store.tables import load_runs, scratch

OK, UNFINISHED, UNSEALED, DAMAGED = "ok", "unfinished", "no checksums", "damaged"


class Verified(NamedTuple):
    """The state of a run, as `verify` found it."""

    run: str
    state: str
    problems: tuple[str, ...] = ()  # one line each


class Removal(NamedTuple):
    """A file or folder that `clean` removes."""

    path: Path
    why: str
    bytes: int


def verify(store: Store, runs: Sequence[str] = ()) -> Iterator[Verified]:
    """Check these runs, or all runs: status, config, every file and table, and the origin of the weights."""
    for run in runs or store.ids():
        yield _verified(store.folder(run))


def _verified(folder: RunFolder) -> Verified:
    try:
        check_tree(folder.path, folder.path.parent)
        record = folder.known()
        config, status = record.row["config"], record.row["status"]
        problems = [] if config is None or run_id(config) == folder.id else ["its config belongs to another run."]
        if status not in WHOLE:
            return Verified(folder.id, DAMAGED if problems else UNFINISHED, tuple(problems))
        problems += folder.problems() or _contents(folder)
    except (StoreError, OSError) as error:
        return Verified(folder.id, DAMAGED, (str(error),))
    return Verified(folder.id, DAMAGED if problems else OK if record.sealed else UNSEALED, tuple(problems))


def _contents(folder: RunFolder) -> list[str]:
    """Problems with the contents of files whose checksums are right."""
    found = []
    with scratch() as connection:
        for table in STORED.values():
            path = folder.table(table.name)
            if path.exists():
                found += [
                    f"{path} cannot be used: {why}" for why in load_runs(connection, table, {folder.id: path}).values()
                ]
    for path in sorted(folder.weights.glob("*.safetensors")):
        origin = safetensors_header(path.read_bytes())
        if not _belongs(origin, folder.id, path.stem):
            found.append(f"{path} does not hold the {path.stem} weights of this run.")
    return found


def _belongs(origin: Any, run: str, state: str) -> bool:
    if not isinstance(origin, dict) or not isinstance(origin.get("config"), dict):
        return False
    return (origin.get("run"), origin.get("state"), run_id(origin["config"])) == (run, state, run)


def clean(store: Store, dry_run: bool = False) -> list[Removal]:
    """Remove what no run needs: leftovers of killed processes, checkpoints of finished runs, folders without a run.

    Results are never removed, and a run that a process holds is left alone.
    """
    removals = []
    for path in sorted((store.path / "runs").iterdir()):
        if not ID.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        folder = store.folder(path.name)
        try:
            found = [] if folder.is_held() else _removable(folder)
            if found and not dry_run:
                found = _remove(folder, found)
        except RunHeld:
            continue
        removals += found
    return removals


def _removable(folder: RunFolder) -> list[Removal]:
    check_tree(folder.path, folder.path.parent)
    if not folder.exists():
        if any(path.is_file() and path.name != "lock" and path.suffix != ".part" for path in folder.path.rglob("*")):
            return []  # it contains something that this program has not made
        return [Removal(folder.path, "a folder without a run", _size(folder.path))]
    found = [Removal(path, "leftover of a killed process", path.stat().st_size) for path in folder.leftovers()]
    if folder.checkpoints.exists() and folder.status()["status"] in WHOLE:
        found.append(Removal(folder.checkpoints, "checkpoints of a finished run", _size(folder.checkpoints)))
    return found


def _remove(folder: RunFolder, removals: Sequence[Removal]) -> list[Removal]:
    """Remove these, except for what another process has come to need before the run was locked."""
    with folder.exclusive(), writing(folder.path):  # which removes leftovers
        still = {removal.path for removal in _removable(folder)}
        for path in still:
            shutil.rmtree(path)
    return [removal for removal in removals if removal.path in still or not removal.path.exists()]


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
