"""Commands about one document of a run: before and after patching, or explored in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import app, console, loading, print_json
from mecheval.cli.interventions import OwnMixer, announce, scores_of
from mecheval.cli.options import AnyRun, AsJson, Document, Set, Split, State, StorePath, Top, given_options
from mecheval.errors import UserError
from mecheval.store import DEFAULT_STORE


@app.command(short_help="Show one document before and after patching.")
def explain(
    run: AnyRun,
    document: Document = 0,
    state: State = "last",
    split: Split = "test",
    site: Annotated[list[str] | None, typer.Option(help="A site of `mecheval list sites`; may be repeated.")] = None,
    roles: Annotated[
        str | None, typer.Option(help="Roles, comma-separated; default: those that can carry an association.")
    ] = None,
    top: Top = 3,
    mixer: OwnMixer = None,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Show one document, a run's answers, and its answers after patching in one clean activation."""
    with loading():
        from dataclasses import asdict

        from mecheval.analysis import runs as probe
        from mecheval.analysis.weights import find_run
        from mecheval.cli.show import documents
        from mecheval.cli.show import effects as show
        from mecheval.intervene.explain import explain
        from mecheval.store import Store
        from mecheval.types import carriers

    folder = find_run(Store(store), run)
    announce(mixer, folder)
    trained = probe.load_run(folder, state)
    clean, corrupted = probe.document(trained, document, split)
    sites = site or show.among(trained.lm.sites(), show.ENDS)
    asked = carriers(clean.roles) if roles is None else roles.split(",")
    explained = explain(trained.lm, trained.task, clean, corrupted, sites, asked, top)
    if as_json:
        print_json({
            "run": folder.id, "title": trained.config.title, "state": state, "split": split,
            "document": documents.document_data(trained.task, clean, 0), **asdict(explained),
        })  # fmt: skip
        return
    about = f"{state} state, {split}"
    console.print(show.run_text(folder.id, trained.config.title, about, scores_of(folder, state, split)))
    console.print()
    console.print(documents.legend(trained.task))
    console.print(documents.document(trained.task, clean, 0))
    console.print()
    console.print(show.substitution_text(explained))
    console.print("\nAfter patching in one clean activation (the right answer is always shown):")
    for table in show.patched_tables(explained, console.width):
        console.print()
        console.print(table)


@app.command(short_help="Edit a document and patch activations in a browser.")
def explore(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER", help="Run id or unique prefix, pretrained model, or Hugging Face checkpoint on disk."
        ),
    ],
    document: Document = 0,
    state: State = "last",
    split: Split = "test",
    task: Annotated[
        str | None, typer.Option(help="Task of a checkpoint's document; default: words, for its tokenizer.")
    ] = None,
    assignments: Set = None,
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
        from mecheval.analysis.weights import find_run
        from mecheval.explore.checkpoint import of_checkpoint
        from mecheval.explore.server import Server, doorway
        from mecheval.explore.session import Session
        from mecheval.store import Store

    if Path(run).is_dir():
        if state != "last":
            raise UserError("--state is for runs; a checkpoint on disk has one state.")
        session = of_checkpoint(run, task or "words", given_options(assignments, []), document, split)
    else:
        if task or assignments:
            raise UserError(
                f"{run} is no folder: --task and --set are for checkpoints on disk; a run has its own task."
            )
        trained = runs.load_run(find_run(Store(store), run), state)
        session = Session(trained.lm, trained.task, *runs.document(trained, document, split), trained.config.title)
    with Server(session, port) as server, doorway(server.address) as door:
        console.print(server.address, soft_wrap=True)
        if browser:
            webbrowser.open(door)
        server.serve_forever()
