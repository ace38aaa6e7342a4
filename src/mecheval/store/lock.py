"""The lock of a run: one process at a time writes to it.

The lock is the kernel's (flock), so it never goes stale. The holder writes its process and host into the lock file, for
error messages.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from mecheval.errors import UserError
from mecheval.files import is_at
from mecheval.store.guard import StoreError, StoreWarning, check_tree, open_file, writing

PATIENCE, PAUSE = 0.2, 0.01
"""Seconds for which a writer tries to take a lock, and seconds between two attempts: even a check for a held run takes
the lock briefly."""
WAITING_PAUSE = 0.1
"""Seconds between two attempts to take a lock for which a writer waits."""
TRIES = 100
"""Number of times that a run's folder may be removed while its lock is taken."""


class RunHeld(UserError):
    """Another process is writing to this run."""


def acquire(path: Path, *, create: bool, wait: bool) -> int:
    """Take the lock file `path` of a run, and return its descriptor, which releases the lock when it is closed.

    With `create`, the run's folder is made if it is missing; otherwise, a missing folder is an error. With `wait`, a
    writer that has computed something waits for as long as another process holds the run, and says so once.
    """
    for _ in range(TRIES):
        with writing(path):
            try:
                if create:
                    path.parent.mkdir(parents=True, exist_ok=True)
                check_tree(path.parent, path.parent.parent)
                descriptor = open_file(path, os.O_RDWR | os.O_CREAT * create, path.parent.parent)
            except FileNotFoundError:
                if create:  # `clean` has just removed the folder
                    continue
                raise gone(path.parent) from None
        try:
            with writing(path):
                _lock(descriptor, path.parent.name, wait)
                if is_at(descriptor, path):  # `clean` may have removed the folder between opening and locking
                    _sign(descriptor)
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise StoreError(f"cannot lock {path.parent}: it is removed again and again.")


def is_locked(path: Path) -> bool:
    """Whether a process, this one or another, holds the lock file `path` of a run."""
    try:
        descriptor = open_file(path, os.O_RDONLY, path.parent.parent)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def gone(folder: Path) -> StoreError:
    """The error for a run that is no longer where it was."""
    return StoreError(f"run {folder.name} was moved or removed meanwhile: it is no longer at {folder}.")


def _lock(descriptor: int, run: str, wait: bool) -> None:
    until, told = time.monotonic() + PATIENCE, False
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() >= until and not wait:
            raise RunHeld(f"run {run} is in use by {_holder(descriptor)}.")
        if time.monotonic() >= until and not told:
            told = True
            waits = f"run {run} is in use by {_holder(descriptor)}; the result is saved as soon as it is released."
            warnings.warn(StoreWarning(waits), stacklevel=2)
        time.sleep(WAITING_PAUSE if told else PAUSE)


def _sign(descriptor: int) -> None:
    since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    holder = {"process": os.getpid(), "host": socket.gethostname(), "since": since}
    os.truncate(descriptor, 0)  # in place, because the lock belongs to this very file
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {holder['process']} on host {holder['host']} (since {holder['since']} UTC)"
    except (ValueError, TypeError, KeyError, RecursionError):  # the holder has not written its name yet
        return "another process"
