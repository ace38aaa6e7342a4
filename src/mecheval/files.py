"""Files: atomic writes, and what a weights file says about itself."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

HEADER = "mecheval"
"""The one key of a weights file's metadata; with more keys, their order, and so the bytes, would vary."""
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, in so many bytes."""


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it: a new file takes the old one's place.

    Temporary names start with a dot and end in `.part`: what a killed process left can be told and removed.
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
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp's file would be the owner's alone
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def safetensors_header(content: bytes) -> Any:
    """What we wrote into the header of a safetensors file; None where there is nothing of ours."""
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    try:
        written = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length])["__metadata__"][HEADER]
        return json.loads(written)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def safetensors_body(content: bytes) -> memoryview:
    """The tensors of a safetensors file, without its header."""
    return memoryview(content)[LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little") :]
