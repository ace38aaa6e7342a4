"""The command about one's own mixer: train it, intervene on it, set it beside the built-in ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mecheval.cli.app import AsJson, Set, app, aside, console, given_options, print_json, stoppable
from mecheval.cli.runs import StorePath
from mecheval.cli.studies import Scale, Seeds, Workers, rates_of
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # slow to import
    from rich.table import Table

    from mecheval.evaluation import Evaluation


@app.command()
def evaluate(
    source: Annotated[str, typer.Argument(metavar="FILE.py:CLASS", help="A torch module class, and where it is.")],
    task: Annotated[str, typer.Option(help="ar or atr.")] = "ar",
    scale: Scale = "laptop",
    assignments: Set = None,
    seeds: Seeds = 1,
    lr: Annotated[str | None, typer.Option(help="Learning rates, with commas between; default: the scale's.")] = None,
    compare: Annotated[bool, typer.Option("--compare/--no-compare", help="With the built-in mixers.")] = True,
    workers: Workers = None,
    store: StorePath = Path(DEFAULT_STORE),
    report: Annotated[Path, typer.Option(help="Write a report on the store into this HTML file.")] = Path(
        "report.html"
    ),
    no_report: Annotated[bool, typer.Option("--no-report", help="Write none.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train your own mixer, intervene on it and name its mechanism, beside the built-in ones.

    Repeat the command to go on; edit the file and repeat it to compare versions. --set gives an argument of the class
    (d_state=16), or a setting of all runs (steps=4000).
    """
    page = None if no_report else report
    with aside.status("loading"):
        from mecheval import custom as own
        from mecheval.evaluation.custom import collect, prepare, train
        from mecheval.store import Store
        from mecheval.sweep import LocalEngine

        found = own.Source.read(source)
        cls = found.load()
        own.announce(found)
        options = given_options(assignments, [])
        plan, warnings = prepare(cls, found.name, task, scale, options, seeds, rates_of(lr), compare, page)
    for warning in warnings:
        aside.print(f"warning: {warning}", markup=False, highlight=False)
    with stoppable():
        train(plan, Store(store), [LocalEngine(workers)], aside)
    with aside.status("intervening"):
        result = collect(plan, Store(store), warnings, page)
    if as_json:
        _print_data(result)
        return
    from mecheval.show_effects import verdict_text

    console.print(f"\n{result.title}", style="bold", markup=False)
    console.print(_table(result))
    if result.verdict is not None:
        console.print()
        console.print(verdict_text(result.verdict))
    if result.report is not None:
        aside.print(f"report: {result.report}", markup=False, highlight=False, soft_wrap=True)


def _table(result: Evaluation) -> Table:
    """The table with what was evaluated marked."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    at = ("at\nkey", "at\nvalue", "at\nquery")
    for name in ("mixer", "d", "test\nacc", "test\nlik", *at, "verdict", "agree-\nment"):
        words = name in ("mixer", "verdict")
        table.add_column(name, justify="left" if words else "right", vertical="bottom", no_wrap=name != "verdict")
    for row, cells in zip(result.table["mixer"], result.cells(), strict=True):
        table.add_row(*map(Text, cells), style="bold" if row == result.name else "")
    return table


def _print_data(result: Evaluation) -> None:
    from mecheval.show_effects import rows_data, verdict_data

    print_json({
        "name": result.name, "table": rows_data(result.table), "warnings": list(result.warnings),
        "verdict": None if result.verdict is None else verdict_data(result.verdict),
        "effects": rows_data(result.effects), "report": None if result.report is None else str(result.report),
    })  # fmt: skip
