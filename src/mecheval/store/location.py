"""The folder of a store, perhaps shared by several machines: whether it can be used, and marked during a sweep.

During a sweep on a cluster, the folder contains a marker, by which other machines recognise it. The sweep's process
holds a lock (flock) on it as long as it lives. A marker that no process holds was left by a killed process, and the
next process that works on the store removes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mecheval.store.guard import StoreError, writing

MARKER = ".sweep-"
"""Prefix of the name of a marker."""
PROBE = 1 << 20
"""Number of bytes written to test whether there is room; a run writes fewer when it begins."""
SHARED_SECONDS = 10.0
"""Longest time in seconds until a shared file system shows a new file to another machine."""


def check_writable(folder: Path, what: str) -> None:
    """Raise a one-line error unless files can be written to a folder, which is created if it is missing."""
    try:
        for place in (folder, *folder.parents):
            if place.is_symlink() and not place.exists():
                raise StoreError(
                    f"cannot use the {what} {folder}: {place} is a link to {place.readlink()}, which does not exist."
                )
            if place.exists() and not place.is_dir():
                raise StoreError(f"cannot use the {what} {folder}: {place} is a file, not a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:  # it has no name, so it never stays behind
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot write to the {what} {folder}: {error.strerror or error}.") from error


def unmoved(folder: Path) -> Callable[[], bool]:
    """A function that says whether a folder is still the same one; it may be moved or removed meanwhile."""

    def mark() -> tuple[int, int] | None:
        try:
            found = folder.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    before = mark()
    return lambda: mark() == before


@contextmanager
def marked(place: Path) -> Iterator[str]:
    """Put a marker into a folder while the context lasts, and yield its name; stale markers are removed."""
    remove_stale(place)
    marker = place / f"{MARKER}{secrets.token_hex(8)}"
    with writing(marker):
        place.mkdir(parents=True, exist_ok=True)
        descriptor, locked = tempfile.mkstemp(dir=place, prefix=".lock-", suffix=".part")
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # before the file is renamed, so that it never looks stale
        Path(locked).rename(marker)
    try:
        yield marker.name
    finally:
        marker.unlink(missing_ok=True)
        os.close(descriptor)


def remove_stale(place: Path) -> None:
    """Remove the markers of killed processes; a marker that cannot be removed is harmless."""
    with suppress(OSError):
        for marker in place.glob(f"{MARKER}*"):
            with suppress(OSError):
                descriptor = os.open(marker, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    marker.unlink()
                finally:
                    os.close(descriptor)


def check_shared(store: str, marker: str) -> None:
    """Raise an error unless this machine sees the marker that the sweep's process has put into the store."""
    until = time.monotonic() + SHARED_SECONDS
    while not (Path(store) / marker).exists():
        if time.monotonic() >= until:
            raise StoreError(
                f"the store {store} is not shared with node {socket.gethostname()}; "
                "use a folder that all nodes see under this path."
            )
        time.sleep(0.5)
