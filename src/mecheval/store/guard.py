"""Protects against damaged and malicious stores: only regular files are opened, and a status file has checksums.

A store may come from a stranger. A symbolic link in it could make a reader or a writer touch files elsewhere, and a
FIFO or a device could make a reader wait forever. So only regular files are opened, and no link is followed.

The status file of a run is its row of table `runs`, as JSON whose first line holds the SHA-256 of all bytes after it:

    {"sha256": "...",
     "run": "...", "status": "done", ..., "files": {"history.parquet": "<SHA-256>", ...}, "replacing": {}}

`files` is empty until the run is whole. While a file of a whole run is being replaced, `replacing` holds the new
checksum and `files` the old one, so that every file has a valid checksum even if the process is killed. Runs made
before there were checksums have neither; they are read without checks, and sealed when they are next written to.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from mecheval.errors import UserError
from mecheval.files import run_id, sha256
from mecheval.store.schema import RUNS

MOST_FILES = 10_000
"""Largest number of files and folders in a run's folder; runs of this program have about ten."""
SEAL, FILES, REPLACING = "sha256", "files", "replacing"
NAMES = frozenset(column.name for column in RUNS.columns)
FIRST_LINE = '{{"sha256": "{}",\n'
FIRST_BYTES = len(FIRST_LINE.format("0" * 64))


class StoreError(UserError):
    """A file of the store cannot be written or read."""


class StoreWarning(UserWarning):
    """A run, or part of it, cannot be used and is left out, or is in use."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report a full disk or a missing permission while writing `path` as one line.

    Writes are atomic, so such an error does not harm what was saved before.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; what was saved before is intact.") from error


def open_file(path: Path, flags: int, below: Path) -> int:
    """Open a regular file below the folder `below` and return its descriptor; links in its path are refused."""
    refuse_links(path.parent, below)
    try:
        # O_NONBLOCK: opening a FIFO for reading would otherwise wait for a writer.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a FIFO or socket opened for writing
            raise _refusal(path) from None
        raise
    found = os.fstat(descriptor)
    shared = found.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR)  # writing would also change its other names
    if shared or not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise _refusal(path)
    return descriptor


def read_file(path: Path, below: Path, limit: int | None = None) -> bytes:
    """The content of a regular file below the folder `below`; a file of more than `limit` bytes is refused."""
    with os.fdopen(open_file(path, os.O_RDONLY, below), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise StoreError(f"cannot read {path}: it has {size:,} bytes; the limit is {limit:,}.")
        return file.read()


def refuse_links(folder: Path, below: Path) -> None:
    """Raise an error if `folder`, or any folder between it and `below` (inclusive), is a symbolic link."""
    part, last = os.fspath(folder), os.fspath(below)  # strings are fast, and this is called for every file of every run
    while True:
        if os.path.islink(part):  # noqa: PTH114
            raise _refusal(Path(part))
        above = os.path.dirname(part)  # noqa: PTH120
        if part in (last, above):
            return
        part = above


def check_tree(folder: Path, below: Path) -> None:
    """Raise an error unless everything in `folder` is a regular file or a folder; call it before writing there."""
    refuse_links(folder, below)
    seen = 0
    for place, folders, files in os.walk(folder, onerror=_raise):
        seen += len(folders) + len(files)
        if seen > MOST_FILES:
            raise StoreError(f"{folder} has more than {MOST_FILES:,} files; a run has about ten.")
        for path in (Path(place) / name for name in (*folders, *files)):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # the process that holds the run has replaced a checkpoint meanwhile
                continue
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise _refusal(path)


def _refusal(path: Path) -> StoreError:
    try:
        mode = path.lstat().st_mode
    except OSError:
        mode = 0
    what = {
        stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder", stat.S_IFREG: "a second name (hard link) of another file",
    }.get(stat.S_IFMT(mode), "not a regular file")  # fmt: skip
    return StoreError(f"{path} is {what}; a store holds only regular files and folders, and no links are followed.")


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # the folder may have been removed meanwhile
        raise error


@dataclass(frozen=True)
class Record:
    """The content of a status file."""

    row: dict[str, Any]  # the run's row of table runs
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 by name, such as weights/last.safetensors
    replacing: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of versions that are being written
    sealed: bool = False  # whether the status file has checksums

    def vouches(self, name: str, content: bytes) -> bool:
        """Whether these bytes match the checksum of the file `name`."""
        return sha256(content) in (self.files.get(name), self.replacing.get(name))

    def accepting(self, digests: Mapping[str, str]) -> Record:
        """The same record, which also accepts new versions of files with these checksums."""
        return replace(self, replacing={**self.replacing, **digests}, sealed=True)


def blank(run: str, **known: Any) -> Record:
    """The record of a run about which only `known` is known."""
    return Record({column.name: None for column in RUNS.columns} | {"run": run, **known})


def write_record(record: Record) -> bytes:
    """A record as the content of a status file; infinite numbers, which JSON does not have, become null."""
    row = {column.name: column.clean(record.row[column.name]) for column in RUNS.columns}
    for name, value in row.items():
        if isinstance(value, datetime):
            row[name] = f"{value.isoformat()}Z"
        elif value in (float("inf"), -float("inf")):
            row[name] = None
    body = {**row, FILES: dict(record.files), REPLACING: dict(record.replacing)}
    rest = json.dumps(body, indent=1, allow_nan=False).removeprefix("{\n").encode() + b"\n"
    return FIRST_LINE.format(sha256(rest)).encode() + rest


def read_record(content: bytes, run: str) -> Record:
    """The record in a status file of the run with this id, or a ValueError that says what is wrong with the file."""
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
    if unknown := saved.keys() - NAMES - ({SEAL, FILES, REPLACING} if sealed else set()):
        problem = f"unknown name {min(unknown)[:80]!r}"
        if sealed:  # its checksum is right, so the file is not damaged
            raise StoreError(f"the status of run {run} has {problem}: a newer mecheval wrote it; update to read it.")
        raise ValueError(problem)
    row = {column.name: column.clean(saved.get(column.name), parsed=True) for column in RUNS.columns} | {"run": run}
    if not sealed and row["config"] is not None and run_id(row["config"]) != run:
        raise ValueError("its config belongs to another run")
    digests = saved.get(FILES, {}), saved.get(REPLACING, {})
    for each in digests:
        if not isinstance(each, dict) or not all(isinstance(digest, str) for digest in each.values()):
            raise ValueError("its checksums are not a mapping from names to text")
        for name in each:
            if not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"it has a checksum for {name[:80]!r}, which cannot be a file of a run")
    return Record(row, *digests, sealed)


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
