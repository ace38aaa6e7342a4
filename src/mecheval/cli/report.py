"""The command that writes a report."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import app, aside, console
from mecheval.cli.studies import Scale, StoreAddress
from mecheval.store import DEFAULT_STORE


@app.command()
def report(
    store: StoreAddress = DEFAULT_STORE,
    out: Annotated[Path, typer.Option(help="The file, .html.")] = Path("report.html"),
    scale: Scale = "laptop",
    title: Annotated[str | None, typer.Option(help="What stands on top of it.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write all that the store has to say into one HTML file: it opens by double click and needs no network."""
    with aside.status("loading"):
        from mecheval.report import check_page, write_report
        from mecheval.store.location import open_store
        from mecheval.store.store import Snapshot

    check_page(out)
    with aside.status("looking into runs and drawing"):
        opened = Snapshot(open_store(store))
        path = write_report(opened, out, scale, title)
    runs = len(opened.rows())
    size = f"{path.stat().st_size / 1e6:.1f} MB, {runs:,} run{'s' * (runs != 1)}"
    console.print(f"wrote {path} ({size})", highlight=False, markup=False, soft_wrap=True)
    if show:
        webbrowser.open(path.absolute().as_uri())
