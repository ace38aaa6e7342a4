"""A file in a store by which other machines know that they see the same folder as the sweep's own process.

Its process holds a lock on it (flock) for as long as it lives. So a file that nobody holds is one that a killed process
left, and whoever works on the store next removes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mecheval.store import writing

PREFIX = ".sweep-"


@contextmanager
def marked(place: Path) -> Iterator[str]:
    """Put such a file into a folder, which is made if it is missing; its name. Afterwards it is gone."""
    marker = place / f"{PREFIX}{secrets.token_hex(8)}"
    with writing(marker):
        place.mkdir(parents=True, exist_ok=True)
        descriptor = _make(marker)
    try:
        yield marker.name
    finally:
        marker.unlink(missing_ok=True)
        os.close(descriptor)


def remove_stale(place: Path) -> None:
    """Remove the files of processes that were killed. One that cannot be removed is in nobody's way."""
    with suppress(OSError):
        for marker in place.glob(f"{PREFIX}*"):
            with suppress(OSError):
                descriptor = os.open(marker, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    marker.unlink()
                finally:
                    os.close(descriptor)


def _make(marker: Path) -> int:
    """Make the file and lock it; again, if another process took it for a stale one in between."""
    while True:
        descriptor = os.open(marker, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if marker.exists():
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
