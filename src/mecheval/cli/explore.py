"""The command that explores one document of a run in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import app, console, loading
from mecheval.cli.interventions import Document, Split
from mecheval.cli.runs import Run, State, StorePath
from mecheval.store import DEFAULT_STORE


@app.command()
def explore(
    run: Run,
    document: Document = 0,
    state: State = "last",
    split: Split = "test",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in a browser.")] = False,
    store: StorePath = Path(DEFAULT_STORE),
) -> None:
    """Edit the tokens of a document and patch activations in a browser, and see answers, map and verdict at once.

    The page is for this machine alone, at an address that only this terminal shows. Ctrl-C ends it.
    """
    with loading():
        import webbrowser

        from mecheval.analysis import runs
        from mecheval.explore.server import Server
        from mecheval.explore.session import Session
        from mecheval.store import Store

    trained = runs.load_run(Store(store).find(run), state)
    pair = runs.document(trained, document, split)
    with Server(Session(trained.lm, trained.task, *pair, trained.config.title), port) as server:
        console.print(server.address, soft_wrap=True)
        if browser:
            webbrowser.open(server.address)
        server.serve_forever()
