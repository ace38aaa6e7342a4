"""The command about a custom mixer or a checkpoint: intervene on it, compare it with the built-in mixers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mecheval.cli.app import AsJson, Set, app, aside, console, given_options, loading, note, print_json, stoppable
from mecheval.cli.runs import StorePath
from mecheval.cli.studies import Scale, Seeds, Workers, rates_of
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # slow to import
    from rich.table import Table

    from mecheval.evaluation import Evaluation
    from mecheval.evaluation.custom import Plan
    from mecheval.store import Store


@app.command()
def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:CLASS|FOLDER", help="The file and class of a torch module, or a Hugging Face checkpoint."
        ),
    ],
    task: Annotated[str, typer.Option(help="A task of `mecheval list tasks`.")] = "ar",
    scale: Scale = "laptop",
    assignments: Set = None,
    seeds: Seeds = 1,
    lr: Annotated[
        str | None, typer.Option(help="Learning rates, comma-separated; default: those of the scale.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare/--no-compare", help="Train the built-in mixers, too.")] = True,
    workers: Workers = None,
    store: StorePath = Path(DEFAULT_STORE),
    report: Annotated[Path, typer.Option(help="HTML file for the report on the store.")] = Path("report.html"),
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a custom mixer, intervene on it and name its mechanism, beside the built-in mixers.

    Run the command again to resume; edit the file and run it again to compare versions. --set gives an argument of the
    class (d_state=16), or a setting of all runs (steps=4000). The folder of a checkpoint on disk is intervened on as it
    is: --task words has text for its tokenizer, --set gives options of the task, and nothing is trained.
    """
    page = None if no_report else report
    if Path(source).is_dir():
        with loading():
            from mecheval.evaluation.checkpoint import checkpoint_task
            from mecheval.evaluation.trained import evaluate_model

            made = checkpoint_task(source, task, given_options(assignments, []))
        with aside.status("intervening"):
            _show(evaluate_model(source, made, compare=compare, store=store, report=page), as_json)
        return
    with loading():
        from mecheval import custom
        from mecheval.evaluation.custom import collect, prepare, train
        from mecheval.store import Store
        from mecheval.sweep import LocalEngine

        found = custom.Source.read(source)
        cls = found.load()
        custom.announce(found)
        options = given_options(assignments, [])
        plan, warnings = prepare(cls, found.name, task, scale, options, seeds, rates_of(lr), compare, page)
    for warning in warnings:
        note(f"warning: {warning}")
    with stoppable():
        train(plan, Store(store), [LocalEngine(workers)], aside)
    with aside.status("intervening"):
        result = collect(plan, Store(store), warnings, page)
    _show(result, as_json)
    if not as_json and (best := _best(plan, Store(store))):
        where = f"--mixer {shlex.quote(f'{found.path}:{found.cls}')} --store {shlex.quote(str(store))}"
        note("next:")
        note(f"  mecheval intervene {best} {where}")
        note(f"  mecheval explain {best} {where}")


def _best(plan: Plan, store: Store) -> str | None:
    """The id of the custom mixer's best run; None where none is done."""
    from mecheval.studies import study_table

    frame = study_table(plan.study, plan.own, store).best().frame
    return next((str(run)[:6] for run in frame.loc[frame["status"] == "done", "run"]), None)


def _show(result: Evaluation, as_json: bool) -> None:
    """Print what was found."""
    from mecheval.cli.show import effects as show
    from mecheval.cli.show import records

    if as_json:
        print_json({
            "name": result.name, "table": records(result.table), "warnings": list(result.warnings),
            "verdict": None if result.verdict is None else show.verdict_data(result.verdict),
            "effects": records(result.effects), "report": result.report,
        })  # fmt: skip
        return
    console.print(f"\n{result.title}", style="bold", markup=False)
    console.print(_table(result))
    if result.verdict is not None:
        console.print()
        console.print(show.verdict_text(result.verdict))
    if result.report is not None:
        note(f"report: {result.report}")


def _table(result: Evaluation) -> Table:
    """The table of mixers, with the evaluated one in bold."""
    from rich.text import Text

    from mecheval.cli.show import plain_table

    heads = ("mixer", "verdict", "d", "test\nacc", "test\nlik", "at\nkey", "at\nvalue", "at\nquery", "agree-\nment")
    table = plain_table(heads, ("mixer", "verdict"), ("mixer",), gap=1)
    for mixer, cells in zip(result.table["mixer"], result.cells(), strict=True):
        table.add_row(*map(Text, cells), style="bold" if mixer == result.name else "")
    return table
