"""Atomic writes, checksums and run ids, and the header and body of a weights file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mecheval.errors import UserError

HEADER = "mecheval"
"""The only key of a weights file's metadata; with several keys, their order, and so the bytes, would vary."""
LENGTH_BYTES = 8
"""Number of bytes, at the beginning of a safetensors file, that encode the length of its header."""


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically: even after a crash, a reader sees either the old or the new content.

    Temporary names start with a dot and end in `.part`, so that leftovers of killed processes can be recognised.
    """
    path = Path(path)
    content = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp creates a file that only its owner can read
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def is_at(descriptor: int, path: str | Path) -> bool:
    """Whether an open file is the one that `path` names now: it may have been moved or removed since it was opened."""
    try:
        there = Path(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(os.fstat(descriptor), there)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock beside the file `path`, for processes that read and rewrite it; the last holder leaves nothing."""
    lock = path.with_name(f".{path.name}.lock")
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_at(descriptor, lock):  # the holder before may have removed it between opening and locking
            break
        os.close(descriptor)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def check_output(path: str | Path) -> Path:
    """The path, or a one-line error if no file can be written there; call it before a long computation."""
    path = Path(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'there is no such folder'}.")
    return path


def write_output(path: str | Path, content: str | bytes) -> None:
    """Write a file that a user asked for, atomically; if that fails, the error says so in one line."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from None


def safetensors_header(content: bytes) -> Any:
    """What this program wrote into the header of a safetensors file, or None."""
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    try:
        written = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length])["__metadata__"][HEADER]
        return json.loads(written)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def safetensors_body(content: bytes) -> memoryview:
    """The tensors of a safetensors file, without its header."""
    return memoryview(content)[LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little") :]


FORMAT = 1
"""Part of every run id; it is raised when the meaning of configs changes, so that ids of old runs never match."""
ID_DIGITS = 12
"""Number of hexadecimal digits in a run id."""


def sha256(content: bytes | memoryview) -> str:
    """The SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def of_data(data: Any, separators: tuple[str, str] | None = None) -> str:
    """The SHA-256 of plain data, written as JSON with sorted names."""
    return sha256(json.dumps(data, sort_keys=True, separators=separators).encode())


def run_id(config: Mapping[str, Any]) -> str:
    """The id of the run that a fully resolved config describes, however the config was written."""
    return of_data({"format": FORMAT, **config}, (",", ":"))[:ID_DIGITS]
