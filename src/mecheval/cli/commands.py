"""All commands, and how to run one: every mistake becomes one line and an exit code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, TextIO

import typer

from mecheval.cli.app import app
from mecheval.cli.clean import clean_text, complain
from mecheval.cli.streams import OutputFails, discard_output
from mecheval.errors import UserError
from mecheval.store import StoreWarning

for _name in (  # in the order of the help
    "quickstart", "runs", "interventions", "documents", "studies", "compare", "drawings", "custom", "tasks",
    "calibrate", "cost", "results",
):  # fmt: skip
    import_module(f"mecheval.cli.{_name}")  # adds its commands to the app

MOST_WARNINGS = 10
"""Largest number of runs of a store that a command warns about one by one."""
OUT_OF_MEMORY = ("can't allocate memory", "can't start new thread", "std::bad_alloc", "Cannot allocate memory")
"""Parts of the messages of torch, Python and the system when memory has run out."""
MISTAKE = 2
"""The exit code for a user's mistake."""


@cache
def tree() -> Any:
    """All commands; built once, for processes that run many."""
    return typer.main.get_command(app)


def run(words: Sequence[str]) -> int:
    """Run the command that these words name; returns its exit code."""
    command = tree()
    try:
        with warnings.catch_warnings(), command.make_context("mecheval", list(words)) as context:
            warnings.simplefilter("once", StoreWarning)
            warnings.showwarning = _Warnings()
            command.invoke(context)
    except typer.Exit as done:
        sys.stdout.flush()
        return done.exit_code
    sys.stdout.flush()
    return 0


class _Warnings:
    """Prints warnings about runs that cannot be used, one line each, and stops after the first few."""

    def __init__(self) -> None:
        self._shown = 0

    def __call__(
        self, message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        line: str | None = None,
    ) -> None:  # fmt: skip
        if not issubclass(category, StoreWarning):
            (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
            return
        self._shown += 1
        if self._shown <= MOST_WARNINGS:
            complain(str(message))
        elif self._shown == MOST_WARNINGS + 1:
            complain("more runs have problems; `mecheval verify` lists all of them.")


def explain(error: Exception) -> int:
    """Print in one line what went wrong; returns the exit code. A defect of mecheval keeps its traceback."""
    if isinstance(error, UserError):
        complain(str(error))
        return MISTAKE
    if isinstance(error, MemoryError) or any(each in str(error) for each in OUT_OF_MEMORY):
        complain(f"there is not enough memory for this{f' ({error})' if str(error) else ''}.")
        return MISTAKE
    if isinstance(error, BrokenPipeError):  # e.g. `mecheval ... | head`
        discard_output()
        return 141
    if isinstance(error, OutputFails):
        discard_output()
        complain(str(error.strerror))
        return MISTAKE
    if not hasattr(error, "format_message"):
        raise error
    said: str = error.format_message()  # from the parser of commands
    if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help
        sys.stderr.write(clean_text(said) + "\n")
    else:
        context = getattr(error, "ctx", None)
        said = said if said.endswith("?") else f"{said.rstrip('.')}."
        complain(said + ("" if context is None else f" See `{context.command_path} --help`."))
    return int(getattr(error, "exit_code", MISTAKE))
