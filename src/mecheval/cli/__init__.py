"""The command line: parse, call, print."""

from __future__ import annotations

import os
import sys

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
)
from mecheval.cli.app import app
from mecheval.errors import UserError


def main() -> None:
    """Run the command; what the user got wrong is one line and exit code 2."""
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"mecheval: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # e.g. `mecheval ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
