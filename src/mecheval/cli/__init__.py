"""The command line: parse, call, print.

This file has only `main`, which handles Ctrl-C before it imports anything slow.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Stop:
    """Handles signals: the first unwinds the command so that it can clean up, the second ends it at once."""

    came: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.came is not None:
            os._exit(128 + number)
        self.came = number
        raise KeyboardInterrupt

    def unraisable(self, problem: sys.UnraisableHookArgs) -> None:
        """Python had to drop an exception, as in a destructor; if a signal caused it, the command ends here."""
        if self.came is None:
            sys.__unraisablehook__(problem)
        else:
            os._exit(self.report())

    def report(self, said: str = "") -> int:
        """Print that the command was stopped; returns its exit code."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        try:
            sys.stderr.write(f"{said or 'stopped.'}\n")
            sys.stderr.flush()
        except OSError:  # the terminal is gone, too
            pass
        return 128 + (self.came or signal.SIGINT)


def main() -> None:
    """Run the command. A user's mistake is one line and exit code 2, a signal one line and 128 + its number."""
    stop = _Stop()
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    hook, sys.unraisablehook = sys.unraisablehook, stop.unraisable
    try:
        from mecheval.cli import streams

        streams.prepare()
        _check_folder()
        from mecheval.cli.commands import explain, run

        try:
            code = run(sys.argv[1:])
        except Exception as error:
            code = explain(error) if stop.came is None else 0
        if stop.came is not None:  # a library replaced or swallowed the exception
            code = stop.report()
    except KeyboardInterrupt as interrupt:
        code = stop.report(str(interrupt))
    except Exception:
        if stop.came is None:
            raise
        code = stop.report()
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
        atexit.register(signal.signal, signal.SIGINT, _end_now)  # no traceback while Python ends
    sys.exit(code)


def _check_folder() -> None:
    """End with one line if the working folder was deleted: torch, for one, does not start without it."""
    try:
        Path.cwd()
    except OSError:
        sys.stderr.write("mecheval: the working folder is gone; change to one that exists.\n")
        sys.exit(2)


def _end_now(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
