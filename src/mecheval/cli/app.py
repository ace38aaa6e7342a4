"""What all commands share: the app, the consoles, and how options are read."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time
from decimal import Decimal
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import CallbackParam

from mecheval.cli.clean import CleanConsole, complain
from mecheval.errors import UserError, shown
from mecheval.plain import parse_value

if TYPE_CHECKING:  # slow to import
    from mecheval.sweep import Failure

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False,
)  # fmt: skip
lists = typer.Typer(help="List what there is.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(lists, name="list")
console = CleanConsole(highlight=False)
aside = CleanConsole(stderr=True)  # what is not the answer: never in a pipe

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option, by name.")]
ANY_OPTION = {"allow_extra_args": True, "ignore_unknown_options": True}


def from_to(low: float, high: float) -> Callable[[CallbackParam, float | None], float | None]:
    """A check of a number option: NaN is between no two numbers, which typer's own check overlooks."""

    def check(option: CallbackParam, value: float | None) -> float | None:
        if value is not None and not low <= value <= high:
            raise UserError(f"--{option.name.replace('_', '-')}: must be from {low:g} to {high:g} (got {value}).")
        return value

    return check


def print_version(wanted: bool) -> None:
    """Answer --version before any command is looked for."""
    if wanted:
        sys.stdout.write(f"mecheval {metadata.version('mecheval')}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")]


@app.callback()
def root(version: Version = False) -> None:
    """How does a sequence architecture recall? mecheval answers with interventions, not only accuracy."""


def given_options(assignments: list[str] | None, rest: list[str]) -> dict[str, Any]:
    """Options from `--set pairs=8` and from `--pairs 8`, which mean the same."""
    options = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UserError(f"--set takes NAME=VALUE (got {shown(assignment)}).")
        options[name.replace("-", "_")] = parse_value(value)
    words = iter(rest)
    for word in words:
        if not word.startswith("--"):
            raise UserError(f"unexpected argument {shown(word)}; options are given as --name value.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            following = next(words, None)
            if following is None:
                raise UserError(f"option --{name} needs a value.")
            value = following
        options[name.replace("-", "_")] = parse_value(value)
    return options


def tell(problems: list[UserError]) -> None:
    """Say what could not be listed, beside the answer."""
    for problem in problems:
        complain(str(problem))


@contextmanager
def stoppable() -> Iterator[None]:
    """Around a sweep: a signal that stopped it is told, and becomes the exit code."""
    from mecheval.sweep import Stopped

    try:
        yield
    except Stopped as stopped:
        aside.print("stopped; what is done is saved, and the same command goes on from there.", highlight=False)
        sys.exit(128 + stopped.signal)


def tell_failures(failures: Sequence[Failure]) -> None:
    """Say which runs failed, and why."""
    for failure in failures:
        aside.print(f"failed: {failure.title} ({failure.run}): {failure.message}", markup=False, highlight=False)


def print_json(data: Any) -> None:
    """Plain standard output: no colour, no wrapping, and ASCII, so that no text can command a terminal."""
    sys.stdout.write(json.dumps(json_value(data), indent=1, allow_nan=False).replace("\x7f", "\\u007f") + "\n")


def json_value(value: Any) -> Any:
    """Anything as JSON knows it: what is missing or not finite is null, and what has no type there is text."""
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
