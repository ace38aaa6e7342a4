"""What all commands share: the app, and ways to print."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time
from decimal import Decimal
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecheval.cli.clean import CleanConsole

if TYPE_CHECKING:  # slow to import
    from rich.status import Status

    from mecheval.sweep import Failure

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=True,
)  # fmt: skip
lists = typer.Typer(
    help="List tasks, mixers, studies, sites or pretrained models.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(lists, name="list")
console = CleanConsole(highlight=False)
aside = CleanConsole(stderr=True, highlight=False)
"""Standard error, for everything that is not the answer and must not end up in a pipe."""


def print_version(wanted: bool) -> None:
    """Print the version before any command runs."""
    if wanted:
        sys.stdout.write(f"mecheval {metadata.version('mecheval')}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")]


@app.callback()
def root(version: Version = False) -> None:
    """Find out how sequence models recall: train small models, intervene on them, and name their mechanisms."""


def loading() -> Status:
    """A context for slow imports, which shows a message in a terminal."""
    return aside.status("loading")


def line(text: str, *, to: CleanConsole = console) -> None:
    """Print text as it is, without markup, colours or line breaks."""
    to.print(text, markup=False, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a line that is not part of the answer."""
    line(text, to=aside)


@contextmanager
def stoppable() -> Iterator[None]:
    """A context for a sweep, in which a signal that stops it is reported and becomes the exit code."""
    from mecheval.sweep import Stopped

    try:
        yield
    except Stopped as stopped:
        note("stopped; finished work is saved. Run the same command again to resume.")
        sys.exit(128 + stopped.signal)


def report_failures(failures: Sequence[Failure]) -> None:
    """Print which runs failed, and why."""
    for failure in failures:
        note(f"failed: {failure.title} ({failure.run}): {failure.message}")


def print_json(data: Any) -> None:
    """Print JSON without colour or wrapping."""
    sys.stdout.write(json_text(data) + "\n")


def json_text(data: Any) -> str:
    """Anything as JSON, in ASCII, so that no text can control a terminal."""
    return json.dumps(json_value(data), indent=1, allow_nan=False).replace("\x7f", "\\u007f")


def json_value(value: Any) -> Any:
    """A value that JSON can represent: missing and infinite numbers become null, other types become text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [json_value(inner) for inner in value]
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, date | time):  # a missing time is one, too
        return value.isoformat() if value == value else None
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return json_value(value.tolist())
    return None if type(value).__name__ == "NAType" else str(value)
