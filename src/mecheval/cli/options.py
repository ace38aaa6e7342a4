"""Options that several commands have, each declared once, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import CallbackParam

from mecheval.errors import UserError, shown
from mecheval.plain import parse_value
from mecheval.store import DEFAULT_STORE, Store

MOST_SEEDS, MOST_WORKERS = 100, 1024
"""Largest numbers of seeds and of worker processes on this machine."""
MOST_VALUES = 100
"""Largest number of values of an axis, or of learning rates, in an option."""


def _folder(path: Path | None) -> Path | None:
    """Refuse a URL, and a path that DuckDB cannot open, before anything is computed."""
    return None if path is None else Store(path).path


def csv_file(path: Path | None) -> Path | None:
    """Refuse a file that could not be written or read as CSV, before the long computation that fills it."""
    if path is not None and (path.suffix.lower() != ".csv" or path.is_dir()):
        raise UserError(f"--csv: give a file that ends in .csv (got {shown(str(path))}).")
    if path is not None and not path.absolute().parent.is_dir():
        raise UserError(f"--csv: there is no folder {shown(str(path.parent))}.")
    return path


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set an option by name.")]
ANY_OPTION = {"allow_extra_args": True, "ignore_unknown_options": True}
SomeStore = Annotated[
    Path | None, typer.Option("--store", callback=_folder, help=f"Folder of runs; default: {DEFAULT_STORE}.")
]
StorePath = Annotated[Path, typer.Option("--store", callback=_folder, help="Folder of runs (or set MECHEVAL_STORE).")]
AnyRun = Annotated[
    str, typer.Argument(metavar="RUN", help="Run id or unique prefix, or a model of `mecheval list pretrained`.")
]
State = Annotated[str, typer.Option(help="Which weights: last, or best (on dev).")]
Workers = Annotated[int | None, typer.Option(min=1, max=MOST_WORKERS, help="Worker processes; default: one per core.")]
Scale = Annotated[str, typer.Option(help="laptop (minutes on two cores) or paper (the paper's exact settings).")]
Seeds = Annotated[int, typer.Option(max=MOST_SEEDS, help="Number of runs of every setting, with seeds 0, 1, ...")]
AllSeeds = Annotated[int | None, typer.Option("--seeds", max=MOST_SEEDS, help="As many seeds; default: all there are.")]
Split = Annotated[str, typer.Option(help="train, dev or test.")]
DocumentSeed = Annotated[int, typer.Option("--seed", help="Seed of the documents.")]
TaskName = Annotated[str, typer.Option("--task", help="A task of `mecheval list tasks`.")]
Document = Annotated[int, typer.Option(help="Number of the document, from 0.")]
Top = Annotated[int, typer.Option(max=1000, help="Number of answers to show.")]
Preset = Annotated[str | None, typer.Option(help="A named set of options; default: the paper's.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Latex = Annotated[bool, typer.Option("--latex", help="Print a LaTeX table (booktabs).")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")]


def from_to(low: float, high: float) -> Callable[[CallbackParam, float | None], float | None]:
    """A check of a number option that, unlike typer's own, refuses NaN."""

    def check(option: CallbackParam, value: float | None) -> float | None:
        if value is not None and not low <= value <= high:
            raise UserError(f"--{option.name.replace('_', '-')}: must be from {low:g} to {high:g} (got {value}).")
        return value

    return check


def given_options(assignments: list[str] | None, rest: list[str]) -> dict[str, Any]:
    """Options from `--set pairs=8` and from `--pairs 8`, which are equivalent."""
    options = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UserError(f"--set takes NAME=VALUE (got {shown(assignment)}).")
        options[name.replace("-", "_")] = parse_value(value)
    words = iter(rest)
    for word in words:
        if not word.startswith("--"):
            raise UserError(f"unexpected argument {shown(word)}; give options as --name value.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            following = next(words, None)
            if following is None:
                raise UserError(f"option --{name} needs a value.")
            value = following
        options[name.replace("-", "_")] = parse_value(value)
    return options


def whole_numbers(option: str, text: str) -> list[int]:
    """Numbers of an option such as `16,64,256`."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"{option} takes whole numbers, comma-separated (got {shown(text)}).") from None


def rates_of(given: str | None) -> list[float]:
    """Learning rates from text such as `1e-3,3e-3`."""
    rates = []
    for text in split_values("--lr", given) if given else []:
        rate = parse_value(text)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e18:
            raise UserError(f"--lr takes positive numbers, comma-separated (got {shown(given)}).")
        rates.append(float(rate))
    return rates


def split_values(option: str, text: str) -> list[str]:
    """The values of an option that are separated by commas."""
    values = text.split(",")
    if len(values) > MOST_VALUES:
        raise UserError(f"{option} takes at most {MOST_VALUES} values (got {len(values):,}).")
    return values
