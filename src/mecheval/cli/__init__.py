"""The command line: parse, call, print."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TextIO

from mecheval.cli import (  # noqa: F401 (each adds its commands)
    compare,
    drawings,
    evaluate,
    interventions,
    models,
    quickstart,
    report,
    runs,
    studies,
    tasks,
    upkeep,
)
from mecheval.cli.app import app
from mecheval.errors import UserError
from mecheval.store import StoreWarning


def main() -> None:
    """Run the command; what the user got wrong is one line and exit code 2."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("once", StoreWarning)
            warnings.showwarning = _show_warning
            app()
    except UserError as error:
        sys.stderr.write(f"mecheval: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # e.g. `mecheval ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
    line: str | None = None,
) -> None:  # fmt: skip
    """What cannot be used of a store is one line that names the run; where in the code that was found is left out."""
    ours = issubclass(category, StoreWarning)
    text = f"mecheval: {message}\n" if ours else warnings.formatwarning(message, category, filename, lineno, line)
    (file or sys.stderr).write(text)
