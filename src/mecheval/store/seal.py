"""The status file of a run: its row of table `runs`, with the checksums that vouch for it and for the run's files.

The file is JSON whose first line holds the SHA-256 of all bytes after it:

    {"sha256": "...",
     "run": "...", "status": "done", ..., "files": {"history.parquet": "<SHA-256>", ...}, "replacing": {}}

`files` is empty until the run is whole. While a file of a whole run is replaced, `replacing` holds the new checksum
beside the old one in `files`, so that a process killed at any moment leaves every file vouched for. Runs made before
there were checksums have neither; they are read as they are, and sealed when something is next written to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NoReturn

from mecheval.digests import run_id, sha256
from mecheval.store.schema import RUNS

SEAL, FILES, REPLACING = "sha256", "files", "replacing"
FIRST_LINE = '{{"sha256": "{}",\n'
FIRST_BYTES = len(FIRST_LINE.format("0" * 64))


@dataclass(frozen=True)
class Record:
    """What a status file says."""

    row: dict[str, Any]  # of table runs
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 by name, as weights/last.safetensors
    replacing: Mapping[str, str] = field(default_factory=dict)
    sealed: bool = False  # whether it has checksums at all

    def vouches(self, name: str, content: bytes) -> bool:
        """Whether these bytes are the run's file of this name."""
        return sha256(content) in (self.files.get(name), self.replacing.get(name))

    def accepting(self, digests: Mapping[str, str]) -> Record:
        """The same record, which vouches for new versions of these files beside the ones that are there."""
        return replace(self, replacing={**self.replacing, **digests}, sealed=True)


def write_record(record: Record) -> bytes:
    """A record as the content of a status file."""
    ready = {column.name: _json_value(column.clean(record.row[column.name])) for column in RUNS.columns}
    body = {**ready, FILES: dict(record.files), REPLACING: dict(record.replacing)}
    rest = json.dumps(body, indent=1, allow_nan=False).removeprefix("{\n").encode() + b"\n"
    return FIRST_LINE.format(sha256(rest)).encode() + rest


def read_record(content: bytes, run: str) -> Record:
    """The record in a status file of the run with this id; a ValueError says what is wrong with it."""
    try:
        saved = json.loads(content, parse_constant=_not_json)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(saved, dict) or "status" not in saved:
        raise ValueError("it has no status")
    sealed = SEAL in saved
    if sealed:
        rest = content[FIRST_BYTES:]
        if content[:FIRST_BYTES] != FIRST_LINE.format(sha256(rest)).encode():
            raise ValueError("it does not match its checksum")
        if saved.get("run") != run:
            raise ValueError(f"it belongs to run {str(saved.get('run'))[:80]}")
    known = {column.name for column in RUNS.columns} | ({SEAL, FILES, REPLACING} if sealed else set())
    if unknown := saved.keys() - known:
        raise ValueError(f"unknown name {min(unknown)[:80]!r}")
    row = {column.name: column.clean(saved.get(column.name)) for column in RUNS.columns} | {"run": run}
    if not sealed and row["config"] is not None and run_id(row["config"]) != run:
        raise ValueError("its config belongs to another run")
    return Record(row, _digests(saved.get(FILES, {})), _digests(saved.get(REPLACING, {})), sealed)


def unaccounted(record: Record, names: Iterable[str]) -> list[str]:
    """Files that a whole, sealed run should not have."""
    return sorted(set(names) - record.files.keys() - record.replacing.keys())


def _digests(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(digest, str) for digest in value.values()):
        raise ValueError("its checksums are not names and texts")
    return value


def _json_value(value: Any) -> Any:
    """JSON has no word for numbers that are not finite; they are missing."""
    if isinstance(value, datetime):
        return f"{value.isoformat()}Z"
    return None if value in (float("inf"), -float("inf")) else value


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
