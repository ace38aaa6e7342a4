"""Commands that keep a store in order: verify, clean."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import AsJson, app, aside, console, print_json
from mecheval.cli.runs import StorePath
from mecheval.store import DEFAULT_STORE

STYLES = {"ok": "green", "unfinished": "yellow", "no checksums": "yellow", "damaged": "bold red"}


@app.command()
def verify(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Run ids; default: all runs.")] = None,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Check every file of a store against its checksum; exit code 1 if anything is damaged."""
    from rich.table import Table

    from mecheval.store import Store
    from mecheval.store.upkeep import DAMAGED
    from mecheval.store.upkeep import verify as check

    opened = Store(store)
    with aside.status("verifying"):
        found = list(check(opened, [opened.find(run).id for run in runs or []]))
    if as_json:
        print_json([each._asdict() for each in found])
    else:
        counts = Counter(each.state for each in found)
        noted = [each for each in found if each.problems]
        if noted:
            table = Table("run", "what is wrong", box=None, header_style="bold", pad_edge=False)
            for each in noted:
                for problem in each.problems:
                    table.add_row(each.run, problem)
            console.print(table)
        summary = ", ".join(f"[{STYLES[state]}]{counts[state]:,} {state}[/]" for state in STYLES if counts[state])
        console.print(f"{len(found):,} runs: {summary or 'nothing to verify'}.")
    if any(each.state == DAMAGED for each in found):
        raise typer.Exit(1)


@app.command()
def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Remove what no run needs: rests of killed processes, checkpoints of finished runs, folders without a run."""
    from mecheval.store import Store
    from mecheval.store.upkeep import clean as tidy

    opened = Store(store)
    opened.ids()  # a store that is not there is an error
    removed = tidy(opened, dry_run)
    if as_json:
        print_json([{"path": str(each.path), "why": each.why, "bytes": each.bytes} for each in removed])
        return
    for each in removed:
        console.print(f"{each.path}  ({each.why}, {each.bytes:,} bytes)", markup=False, soft_wrap=True)
    did = "would be removed" if dry_run else "removed"
    console.print(f"{len(removed):,} things {did}, {sum(each.bytes for each in removed):,} bytes." if removed
                  else "There is nothing to remove.")  # fmt: skip
