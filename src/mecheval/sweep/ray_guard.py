"""A program that outlives a sweep on a private Ray, and ends Ray's processes as soon as the sweep is gone.

Most of them end by themselves, but Ray's agents would stay for a minute after a sweep that was killed. This program
waits for the end of its input, which the sweep's process holds open, and imports nothing but the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

SECONDS = 2.0
"""Seconds that Ray's processes have to end by themselves."""


def processes(session: str) -> list[int]:
    """The processes of this user whose command line names a session of Ray, such as session_2026-01-31_12-00-00_1."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "cmdline").read_bytes()
            if session.encode() in words and place.stat().st_uid == os.getuid() and int(place.name) != os.getpid():
                found.append(int(place.name))
    return found


def main(session: str) -> None:
    """Wait for the end of the input, and then for that of Ray's processes; kill those that take too long."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    until = time.monotonic() + SECONDS
    while processes(session) and time.monotonic() < until:
        time.sleep(0.1)
    for process in processes(session):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
