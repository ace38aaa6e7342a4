"""The standard streams of a command: always there, able to take every character, and clear about what fails."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


class OutputFails(OSError):
    """Nothing can be written to standard output: it is closed, or its disk is full."""


class _Output(io.FileIO):
    """Standard output, whose errors are told from those of other files."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            why = "it is closed" if error.errno == errno.EBADF else error.strerror
            raise OutputFails(error.errno, f"cannot write to standard output: {why}.") from None


def prepare() -> None:
    """Make sure that there are three standard streams, and that every character can be written to them.

    The number of a closed stream would otherwise go to the next file or pipe that is opened.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number; writing to number 1 is then an error
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 (it lives as long as the process)
    if sys.stdout is sys.__stdout__:  # and not replaced by a test or a notebook
        in_terminal, encoding = os.isatty(1), getattr(sys.stdout, "encoding", None)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(1, "w", closefd=False)), encoding, line_buffering=in_terminal,
            errors="replace" if in_terminal else "backslashreplace",  # a program needs to know which character it was
        )  # fmt: skip


def discard_output() -> None:
    """Let Python end without another error about what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
