"""Checksums, and the id that a config gives to its run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FORMAT = 1
"""Part of every run id; raised when configs come to mean something else, so that no old run is taken for a new one."""
ID_DIGITS = 12
"""Hexadecimal digits of a run id."""


def sha256(content: bytes | memoryview) -> str:
    """The SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def of_data(data: Any, separators: tuple[str, str] | None = None) -> str:
    """The SHA-256 of plain data, written as JSON with sorted names."""
    return sha256(json.dumps(data, sort_keys=True, separators=separators).encode())


def run_id(config: Mapping[str, Any]) -> str:
    """The id of the run that a fully resolved config describes, however the config was written."""
    return of_data({"format": FORMAT, **config}, (",", ":"))[:ID_DIGITS]
