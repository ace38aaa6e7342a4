"""Commands about runs: train, list, query, export."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mecheval.cli.app import ANY_OPTION, AsJson, Set, app, aside, console, from_to, given_options, print_json
from mecheval.cli.clean import clean_text, write
from mecheval.errors import UnknownName, UserError
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # they need torch, which is slow to import
    from mecheval.config import RunConfig
    from mecheval.store import Store


def _folder(path: Path) -> Path:
    """A URL would become a strange folder here."""
    if re.match(r"[\w+]+:/", str(path)):
        raise UserError(f"--store: this command needs a folder, not a URL (got {path}); see docs/how-to/cluster.md.")
    return path


StorePath = Annotated[Path, typer.Option("--store", callback=_folder, help="Folder of runs (or set MECHEVAL_STORE).")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or as much of it as is unique.")]


@app.command(context_settings=ANY_OPTION)
def train(
    context: typer.Context,
    task: Annotated[str | None, typer.Option(help="A task of `mecheval list tasks`; default: ar.")] = None,
    mixer: Annotated[str | None, typer.Option(help="A mixer of `mecheval list mixers`; default: attention.")] = None,
    preset: Annotated[str | None, typer.Option(help="paper (default) or laptop.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file; options below go over it.")] = None,
    assignments: Set = None,
    store: StorePath = Path(DEFAULT_STORE),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show config, size and time, and train nothing.")] = False,
    track: Annotated[list[str] | None, typer.Option(help="tensorboard, wandb or wandb-offline.")] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(callback=from_to(0, 10**7), help="Seconds between checkpoints.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Train a model; again, to continue one. Any option by name: --d-model 64 --lr 3e-3 --set task.pairs=8."""
    with aside.status("loading"):
        from mecheval.config import merge
        from mecheval.plain import load_yaml
        from mecheval.store import Store
        from mecheval.training import Interrupted, progress, tracker
        from mecheval.training import train as run

    options = given_options(assignments, context.args)
    options |= {name: value for name, value in (("task", task), ("mixer", mixer)) if value is not None}
    resolved = merge(preset, {} if config is None else load_yaml(config), options)
    if dry_run:
        _show_plan(resolved, Store(store), as_json)
        return
    watchers = [tracker(name, store) for name in track or []]
    try:
        folder = run(resolved, store, [*watchers, progress(aside)], checkpoint_seconds)
    except Interrupted as stopped:
        again = f"mecheval train --config {shlex.quote(str(stopped.folder.path / 'config.yaml'))}"
        aside.print(f"saved at step {stopped.step}; to continue, repeat the command, or:", highlight=False)
        aside.print(f"  {again} --store {shlex.quote(str(store))}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(128 + stopped.signal)
    row = folder.status()
    if as_json:
        print_json(row)
        return
    from mecheval.show_store import run_table

    console.print(run_table(Store(store).query(f"select * from runs where run = '{folder.id}'"), console.width))


def _show_plan(config: RunConfig, store: Store, as_json: bool) -> None:
    """What a run would be, and how long it would take."""
    from mecheval.training.plan import plan

    with aside.status("timing a few steps"):
        planned = plan(config, store)
    if as_json:
        print_json({"config": config.to_dict(), **vars(planned)})
        return
    sys.stdout.write(clean_text(f"{config.to_yaml()}\n{planned.describe()}\n"))


@app.command()
def runs(
    store: StorePath = Path(DEFAULT_STORE),
    status: Annotated[str | None, typer.Option(help="Only runs with this status.")] = None,
    as_json: AsJson = False,
) -> None:
    """List runs with their status and scores."""
    from mecheval.show_store import records, run_table
    from mecheval.store import Store
    from mecheval.store.schema import STATUSES

    frame = Store(store).runs()
    if status is not None:
        if status not in STATUSES:
            raise UnknownName("status", status, STATUSES)
        frame = frame[frame["status"] == status]
    if as_json:
        print_json(records(frame))
        return
    console.print(run_table(frame, console.width))


@app.command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="Over runs, history, evaluations, effects, verdicts.")],
    store: StorePath = Path(DEFAULT_STORE),
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    limit: Annotated[int, typer.Option(callback=from_to(1, 10_000), help="Rows to show in a table.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Ask the store in SQL: "select mixer, max(dev_accuracy) from runs group by mixer"."""
    from mecheval.show_store import frame_table, records
    from mecheval.store import Store

    try:
        frame = Store(store).query(sql)
    except UserError:
        raise
    except (ValueError, OverflowError, RuntimeError) as error:  # e.g. a date that pandas does not know
        raise UserError(f"this result cannot be read: {error}") from None
    if as_json:
        print_json(records(frame))
    elif csv:
        write(frame.to_csv(index=False))
    else:
        console.print(frame_table(frame, limit))


@app.command()
def export(
    run: Run,
    to: Annotated[Path | None, typer.Option(help="Folder to write; default: ./<task>-<mixer>-<run>.")] = None,
    state: Annotated[str, typer.Option(help="last or best (on dev).")] = "last",
    store: StorePath = Path(DEFAULT_STORE),
) -> None:
    """Write a trained model as weights, config and model card; `me.load_lm` reads it without any other file."""
    from mecheval.store import Store
    from mecheval.training.export import export as write

    console.print(f"wrote {write(Store(store).find(run), to, state)}", markup=False, soft_wrap=True)
