"""Commands about interventions: the map and verdict of a run, and one document explained."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecheval.cli.app import AsJson, app, aside, console, print_json
from mecheval.cli.runs import Run, StorePath
from mecheval.errors import UnknownName, UserError
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # slow to import
    from mecheval.store import RunFolder

State = Annotated[str, typer.Option(help="last or best (on dev).")]
Split = Annotated[str, typer.Option(help="train, dev or test.")]
SITES = ("all", "blocks")


@app.command()
def intervene(
    run: Run,
    state: State = "last",
    split: Split = "test",
    n: Annotated[int | None, typer.Option("-n", help="Documents; default: as many as the run was scored on.")] = None,
    sites: Annotated[
        str, typer.Option(help="What to show: blocks (their parts and short convolutions) or all.")
    ] = "blocks",
    save: Annotated[Path | None, typer.Option(help="Draw the map into this file: .png, .svg or .json.")] = None,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Put clean activations into corrupted runs, at every site and role, and say what mechanism that shows."""
    with aside.status("loading"):
        from mecheval import figures, show_effects
        from mecheval.analysis.runs import probe, run_config_of
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
        measured = probe(folder, state, split, n)
    effects, found = measured.effects, measured.verdict
    took = f"{len(effects)} interventions on {effects['n'].max()} documents took {time.monotonic() - began:.1f} s"
    if sites == "blocks":
        effects = effects[effects["site"].isin(show_effects.among(effects["site"], show_effects.PARTS))]
    config = run_config_of(folder)
    about, scores = f"{state} state, {split}", _scores(folder, state, split)
    if as_json:
        print_json({
            "run": folder.id, "title": config.title, "state": state, "split": split, "scores": scores,
            "effects": show_effects.rows_data(effects), "verdict": show_effects.verdict_data(found),
        })  # fmt: skip
    else:
        console.print(show_effects.run_text(folder.id, config.title, about, scores))
        console.print(show_effects.effects_text(effects))
        console.print()
        console.print(show_effects.effects_table(effects, console.width))
        console.print()
        console.print(show_effects.verdict_text(found))
    if save is not None:
        figures.save(figures.heatmap(effects, f"{config.title} ({folder.id}, {about})"), save)
        aside.print(f"wrote {save}", highlight=False, markup=False, soft_wrap=True)
    aside.print(took, highlight=False)


@app.command()
def explain(
    run: Run,
    document: Annotated[int, typer.Option(help="Number of the document, from 0.")] = 0,
    state: State = "last",
    split: Split = "test",
    site: Annotated[list[str] | None, typer.Option(help="A site, see `mecheval list sites`; may be repeated.")] = None,
    roles: Annotated[str, typer.Option(help="Roles, with commas between.")] = "key,value,next_key,query",
    top: Annotated[int, typer.Option(max=1000, help="How many answers to show.")] = 3,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Show one document, what a run answers, and what it answers with one clean activation put back."""
    with aside.status("loading"):
        from dataclasses import asdict

        from mecheval import show, show_effects
        from mecheval.analysis import runs as probe
        from mecheval.intervene.explain import explain
        from mecheval.store import Store

    folder = Store(store).find(run)
    trained = probe.load_run(folder, state)
    clean, corrupted = probe.document(trained, document, split)
    sites = site or show_effects.among(trained.lm.sites(), show_effects.ENDS)
    explained = explain(trained.lm, trained.task, clean, corrupted, sites, roles.split(","), top)
    if as_json:
        print_json({
            "run": folder.id, "title": trained.config.title, "state": state, "split": split,
            "document": show.document_data(trained.task, clean, 0), **asdict(explained),
        })  # fmt: skip
        return
    about = f"{state} state, {split}"
    console.print(show_effects.run_text(folder.id, trained.config.title, about, _scores(folder, state, split)))
    console.print()
    console.print(show.legend())
    console.print(show.document(trained.task, clean, 0))
    console.print()
    console.print(show_effects.substitution_text(explained))
    console.print("\nWith one clean activation put back (the right answer is always shown):")
    for table in show_effects.patched_tables(explained, console.width):
        console.print()
        console.print(table)


def _scores(folder: RunFolder, state: str, split: str) -> dict[str, Any] | None:
    """How well a state of a run answers; None where that was not measured."""
    return next((row for row in folder.read("evaluations") if (row["state"], row["split"]) == (state, split)), None)
