"""The command that says which runs at the paper's size are next, and what each claim waits for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from mecheval.cli.app import app, aside, console, loading, print_json
from mecheval.cli.options import AsJson, StorePath
from mecheval.store import DEFAULT_STORE
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    from mecheval.paper import Judged
    from mecheval.paper.plan import Standing


@app.command(short_help="List the planned runs by their value for the paper's claims.")
def plan(
    claims: Annotated[bool, typer.Option("--claims", help="List what each open claim waits for instead.")] = False,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """List what is planned at the paper's size: how far it is, and which runs decide most open claims for each hour."""
    with loading():
        from mecheval.paper import compare_studies
        from mecheval.paper.plan import standings
        from mecheval.store import Published
        from mecheval.studies import PAPER

    with aside.status("reading"):
        opened = Published(store)
        compared = compare_studies(PAPER, opened, "paper")
        judged = [one for each in compared for one in each.claims if one.outcome in ("inconclusive", "not tested")]
        steps = [] if claims else standings(compared, opened)
    if as_json:
        print_json([_data(each) for each in steps] or [{"claim": one.claim, "needs": one.needs} for one in judged])
    elif claims:
        console.print(_waiting(judged))
    else:
        console.print(_steps(steps))


def _steps(steps: list[Standing]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("claims\nan hour", "study", "what for", "runs\ndone", "hours\nleft", "open\nclaims"):
        table.add_column(head, justify="left" if head in ("study", "what for") else "right", overflow="fold")
    for each in steps:
        value = f"{each.value:.2f}" if each.left else MISSING
        cells = (value, each.step.study, each.step.why, f"{each.runs - len(each.left)} of {each.runs}",
                 f"{each.hours:.1f}", str(len(each.claims)))  # fmt: skip
        table.add_row(*map(Text, cells), style="" if each.left else "dim")
    return table


def _waiting(judged: list[Judged]) -> Table:
    table = Table.grid(padding=(0, 0, 1, 0))
    for one in judged:
        table.add_row(Text.assemble((one.says, "bold"), f" ({one.outcome})\n{one.needs or 'Nothing is left to run.'}"))
    return table


def _data(each: Standing) -> dict[str, Any]:
    """A step as plain data, with the runs that are left."""
    runs = [
        {"run": point.config.id, "title": point.config.title, "seed": point.config.seed,
         "seconds": each.left[point.config.id], "config": point.config.to_dict()}
        for point in each.points
    ]  # fmt: skip
    return {
        "study": each.step.study, "why": each.step.why, "added": each.step.added, "runs": each.runs, "left": runs,
        "hours": each.hours, "value": each.value, "claims": list(each.claims),
    }  # fmt: skip
