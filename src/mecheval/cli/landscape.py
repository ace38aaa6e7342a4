"""The command that draws the loss around a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import aside, console, line, loading
from mecheval.cli.drawings import Save, draw, write_chart
from mecheval.cli.runs import Run, StorePath
from mecheval.store import DEFAULT_STORE
from mecheval.types import MISSING


@draw.command()
def landscape(
    run: Run,
    along: Annotated[
        int,
        typer.Option(min=0, max=1000, help="Steps at which sharpness is measured; the run is trained again for them."),
    ] = 6,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of the directions.")] = 0,
    documents: Annotated[int, typer.Option(min=1, max=10**6, help="Dev documents whose mean loss is shown.")] = 64,
    store: StorePath = Path(DEFAULT_STORE),
    save: Save = Path("landscape.svg"),
) -> None:
    """Draw the loss around the end of a run, from its start to its end, and its sharpness along training."""
    with loading():
        from mecheval import figures
        from mecheval.cli.show import plain_table
        from mecheval.evaluation.landscape import landscape as explore
        from mecheval.figures.landscape import landscape as chart
        from mecheval.figures.landscape import said
        from mecheval.store import Store

    figures.check_suffix(save)
    folder = Store(store).find(run)
    with aside.status("looking around"):
        found = explore(folder, along, seed, documents)
    title = f"Loss landscape of {folder.status()['mixer']} ({folder.id[:6]})"
    write_chart(chart(found.plane, found.line, found.sharpness, title), save)
    if found.sharpness:
        table = plain_table(["step", "loss", "largest", "2 / lr", "under AdamW", "its edge"])
        for row in found.sharpness:
            numbers = (row["eigenvalues"][0], row["edge"], row["preconditioned"], row["preconditioned_edge"])
            cells = (MISSING if each is None else f"{each:.3g}" for each in numbers)
            table.add_row(f"{row['step']:,}", f"{row['loss']:.3g}", *cells)
        console.print(table)
    for sentence in said(found.line, found.sharpness):
        line(sentence)
