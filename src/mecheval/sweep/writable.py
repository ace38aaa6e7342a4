"""Whether results can be written at all: asked before anything is computed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mecheval.store import StoreError

PROBE = 1 << 20
"""Bytes that are written to see whether there is room; a run writes no more than this when it begins."""


def check_writable(folder: Path, what: str) -> None:
    """An error, in one line, unless files can be written into a folder, which is made if it is missing."""
    try:
        for place in (folder, *folder.parents):
            if place.is_symlink() and not place.exists():
                raise StoreError(f"cannot use the {what} {folder}: {place} is a link to {place.readlink()}, not there.")
            if place.exists() and not place.is_dir():
                raise StoreError(f"cannot use the {what} {folder}: {place} is a file, not a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name, so nothing is left whatever happens
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot write to the {what} {folder}: {error.strerror or error}.") from error
