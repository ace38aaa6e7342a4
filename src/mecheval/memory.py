"""How much memory there is, asked before something large is made: running out of it kills a process without a word."""

from __future__ import annotations

import os
from pathlib import Path

from mecheval.errors import UserError


def machine_memory() -> int | None:
    """Bytes of memory of this machine, or of its container; None where the system does not tell."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return found


def check_fits(needed: int, what: str) -> None:
    """An error when `what`, which takes at least `needed` bytes, cannot fit this machine."""
    there = machine_memory()
    if there is not None and needed > there:
        raise UserError(
            f"{what} would take at least {needed / 1e9:,.1f} GB of memory; this machine has {there / 1e9:.1f} GB."
        )
