"""Commands about interventions: the map and verdict of a run, and one document explained."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecheval.cli.app import AsJson, app, aside, console, loading, note, print_json
from mecheval.cli.runs import Run, State, StorePath
from mecheval.errors import UnknownName, UserError
from mecheval.sites import sites_in
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # slow to import
    from mecheval.store import RunFolder

Split = Annotated[str, typer.Option(help="train, dev or test.")]
Document = Annotated[int, typer.Option(help="Number of the document, from 0.")]
Top = Annotated[int, typer.Option(max=1000, help="Number of answers to show.")]
SITES = ("all", "blocks")


@app.command()
def intervene(
    run: Run,
    state: State = "last",
    split: Split = "test",
    n: Annotated[int | None, typer.Option("-n", help="Documents; default: as many as the run was scored on.")] = None,
    sites: Annotated[
        str, typer.Option(help="Sites to show: blocks (their parts and short convolutions) or all.")
    ] = "blocks",
    edit: Annotated[
        str, typer.Option(help="Instead of patching, edit activations: zero, mean or noise=<std>; no verdict.")
    ] = "",
    save: Annotated[Path | None, typer.Option(help="Draw the map into this file: .png, .svg or .json.")] = None,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Patch clean activations into corrupted documents, at every site and role, and name the mechanism."""
    with loading():
        from mecheval import figures
        from mecheval.analysis.runs import ablation, probe, run_config_of
        from mecheval.cli.show import effects as show
        from mecheval.cli.show import records
        from mecheval.store import Store

    if sites not in SITES:
        raise UnknownName("choice of sites", sites, SITES)
    if n is not None and n < 1:
        raise UserError(f"-n: the number of documents must be positive (got {n}).")
    if save is not None:
        figures.check_suffix(save)
    folder = Store(store).find(run)
    began = time.monotonic()
    with aside.status("intervening"):
        measured = None if edit else probe(folder, state, split, n)
        effects = measured.effects if measured else ablation(folder, edit, state, split, n)
    took = f"{len(effects)} interventions on {effects['n'].max()} documents took {time.monotonic() - began:.1f} s"
    if sites == "blocks":
        effects = effects[effects["site"].isin(show.among(sites_in(effects), show.PARTS))]
    config = run_config_of(folder)
    about, scores = f"{state} state, {split}{', edit ' * bool(edit)}{edit}", _scores(folder, state, split)
    if as_json:
        found = {"verdict": show.verdict_data(measured.verdict)} if measured else {"edit": edit}
        print_json({
            "run": folder.id, "title": config.title, "state": state, "split": split, "scores": scores,
            "effects": records(effects), **found,
        })  # fmt: skip
    else:
        console.print(show.run_text(folder.id, config.title, about, scores))
        console.print(show.effects_text(effects))
        console.print()
        console.print(show.effects_table(effects, console.width))
        if measured:
            console.print()
            console.print(show.verdict_text(measured.verdict))
    if save is not None:
        figures.save(figures.heatmap(effects, f"{config.title} ({folder.id}, {about})"), save)
        note(f"wrote {save}")
    note(took)


@app.command()
def explain(
    run: Run,
    document: Document = 0,
    state: State = "last",
    split: Split = "test",
    site: Annotated[list[str] | None, typer.Option(help="A site of `mecheval list sites`; may be repeated.")] = None,
    roles: Annotated[str, typer.Option(help="Roles, comma-separated.")] = "key,value,next_key,query",
    top: Top = 3,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Show one document, a run's answers, and its answers after patching in one clean activation."""
    with loading():
        from dataclasses import asdict

        from mecheval.analysis import runs as probe
        from mecheval.cli.show import documents
        from mecheval.cli.show import effects as show
        from mecheval.intervene.explain import explain
        from mecheval.store import Store

    folder = Store(store).find(run)
    trained = probe.load_run(folder, state)
    clean, corrupted = probe.document(trained, document, split)
    sites = site or show.among(trained.lm.sites(), show.ENDS)
    explained = explain(trained.lm, trained.task, clean, corrupted, sites, roles.split(","), top)
    if as_json:
        print_json({
            "run": folder.id, "title": trained.config.title, "state": state, "split": split,
            "document": documents.document_data(trained.task, clean, 0), **asdict(explained),
        })  # fmt: skip
        return
    about = f"{state} state, {split}"
    console.print(show.run_text(folder.id, trained.config.title, about, _scores(folder, state, split)))
    console.print()
    console.print(documents.legend())
    console.print(documents.document(trained.task, clean, 0))
    console.print()
    console.print(show.substitution_text(explained))
    console.print("\nAfter patching in one clean activation (the right answer is always shown):")
    for table in show.patched_tables(explained, console.width):
        console.print()
        console.print(table)


def _scores(folder: RunFolder, state: str, split: str) -> dict[str, Any] | None:
    """The scores of a state of a run; None if they were not measured."""
    return next((row for row in folder.read("evaluations") if (row["state"], row["split"]) == (state, split)), None)
