"""Commands about runs and their store: train, runs, query, export, verify, clean."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mecheval.cli.app import app, aside, console, json_text, line, loading, note, print_json
from mecheval.cli.clean import clean_text, complain, write
from mecheval.cli.options import (
    ANY_OPTION,
    AnyRun,
    AsJson,
    Csv,
    Latex,
    Markdown,
    Set,
    State,
    StorePath,
    from_to,
    given_options,
)
from mecheval.cli.show import format_of, formatted
from mecheval.errors import UnknownName, UserError
from mecheval.machine import keep_memory, lacks_bfloat16
from mecheval.plain import parse_value
from mecheval.store import DEFAULT_STORE
from mecheval.store.tables import MOST_SECONDS, TOO_LONG

if TYPE_CHECKING:  # slow to import
    import pandas as pd

    from mecheval.config import RunConfig
    from mecheval.store import Store

IN_PAPERS = (
    "run", "status", "task", "mixer", "d_model", "n_layers", "lr", "seed", "step", "dev_accuracy", "test_accuracy",
    "test_likelihood", "seconds",
)  # fmt: skip
"""Columns of runs in LaTeX and Markdown; CSV and JSON have all."""
ROWS = 10_000
"""Number of rows of a result that are written at a time."""
STYLES = {"ok": "green", "unfinished": "yellow", "no checksums": "yellow", "damaged": "bold red"}
"""The style of each state that `mecheval verify` finds."""


MIXER_HELP = (
    "A mixer of `mecheval list mixers` (default: attention) or FILE.py:CLASS. Several make one hybrid model, layer by "
    "layer: mamba+attention, 3*mamba+attention. For a run of each mixer, repeat the command."
)


@app.command(context_settings=ANY_OPTION)
def train(
    context: typer.Context,
    task: Annotated[str | None, typer.Option(help="A task of `mecheval list tasks`; default: ar.")] = None,
    mixer: Annotated[str | None, typer.Option(help=MIXER_HELP)] = None,
    preset: Annotated[str | None, typer.Option(help="paper (default) or laptop.")] = None,
    d_model: Annotated[str | None, typer.Option(metavar="NUMBER", help="Width of the model.")] = None,
    n_layers: Annotated[str | None, typer.Option(metavar="NUMBER", help="Number of layers.")] = None,
    lr: Annotated[str | None, typer.Option(metavar="NUMBER", help="Learning rate.")] = None,
    steps: Annotated[str | None, typer.Option(metavar="NUMBER", help="Training steps.")] = None,
    batch_size: Annotated[str | None, typer.Option(metavar="NUMBER", help="Documents in a batch.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="NUMBER", help="Seed of weights and documents.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="full (default), or bf16: products in bfloat16, weights in float32.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file; options on the command line override it.")] = None,
    assignments: Set = None,
    store: StorePath = Path(DEFAULT_STORE),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show config, size and time without training.")] = False,
    track: Annotated[list[str] | None, typer.Option(help="tensorboard, wandb or wandb-offline.")] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(callback=from_to(0, 10**7), help="Seconds between checkpoints.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Train a model, or resume one. Set any other option by name, too: --pairs 8 --d-conv 0 --set task.pairs=8."""
    with loading():
        from mecheval import custom
        from mecheval.cli.show.runs import run_table
        from mecheval.config import merge
        from mecheval.plain import load_yaml
        from mecheval.store import Store
        from mecheval.training import Interrupted, tracker
        from mecheval.training import train as run
        from mecheval.training.progress import progress

    options = given_options(assignments, context.args)
    mixer = None if mixer is None else custom.announced(mixer)
    common = {
        "d_model": d_model, "n_layers": n_layers, "lr": lr, "steps": steps, "batch_size": batch_size, "seed": seed,
        "precision": precision,
    }  # fmt: skip
    options |= {name: parse_value(value) for name, value in common.items() if value is not None}
    options |= {name: value for name, value in (("task", task), ("mixer", mixer)) if value is not None}
    resolved = merge(preset, {} if config is None else load_yaml(config), options)
    if mixer is not None and "," in mixer:
        note(f"{mixer} is one hybrid model; for separate runs, give one mixer at a time.")
    if resolved.machine.precision == "bf16" and lacks_bfloat16():
        note("this processor has no instructions for bfloat16; it is faster with --precision full.")
    watchers = [tracker(name, store) for name in track or []]
    if dry_run:
        _show_plan(resolved, Store(store), as_json)
        return
    keep_memory()
    try:
        folder = run(resolved, store, [*watchers, progress(aside)], checkpoint_seconds)
    except Interrupted as stopped:
        again = f"mecheval train --config {shlex.quote(str(stopped.folder.path / 'config.yaml'))}"
        note(f"saved at step {stopped.step}; to resume, run the same command again, or:")
        note(f"  {again} --store {shlex.quote(str(store))}")
        sys.exit(128 + stopped.signal)
    if as_json:
        print_json(folder.status())
    else:
        listed = Store(store).runs()
        console.print(run_table(listed[listed["run"] == folder.id], console.width))


def _show_plan(config: RunConfig, store: Store, as_json: bool) -> None:
    """Print the config and the size of a run, and how long it would take."""
    from mecheval.training.plan import plan

    with aside.status("timing a few steps"):
        planned = plan(config, store)
    if as_json:
        print_json({"config": config.to_dict(), **vars(planned)})
    else:
        sys.stdout.write(clean_text(f"{config.to_yaml()}\n{planned.describe()}\n"))


@app.command()
def runs(
    store: StorePath = Path(DEFAULT_STORE),
    status: Annotated[str | None, typer.Option(help="Only runs with this status.")] = None,
    latex: Latex = False,
    markdown: Markdown = False,
    csv: Csv = False,
    as_json: AsJson = False,
) -> None:
    """List runs with their status and scores."""
    kind = format_of(latex=latex, markdown=markdown, csv=csv, json=as_json)
    with loading():
        from mecheval.cli.show import records
        from mecheval.cli.show.runs import run_table
        from mecheval.store import Store
        from mecheval.store.schema import STATUSES

        frame = Store(store).runs()
    if status is not None:
        if status not in STATUSES:
            raise UnknownName("status", status, STATUSES)
        frame = frame[frame["status"] == status]
    if as_json:
        print_json(records(frame))
    elif kind is not None:
        write(formatted(frame if csv else frame[list(IN_PAPERS)], kind))
    else:
        console.print(run_table(frame, console.width))


@app.command(short_help="Query the store in SQL.")
def query(
    sql: Annotated[
        str,
        typer.Argument(metavar="SQL", help="Over runs, history, evaluations, scores, effects, verdicts, ablations."),
    ],
    store: StorePath = Path(DEFAULT_STORE),
    csv: Csv = False,
    limit: Annotated[int, typer.Option(callback=from_to(1, 10_000), help="Most rows to show in a table.")] = 100,
    seconds: Annotated[
        float, typer.Option(callback=from_to(0, 10**6), help="Most CPU seconds to take.")
    ] = MOST_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Query the store in SQL: "select mixer, max(dev_accuracy) from runs group by mixer"."""
    format_of(csv=csv, json=as_json)
    with loading():
        from mecheval.cli.show.runs import frame_table
        from mecheval.store import Store

    _check_reads(sql)
    try:
        frame = Store(store).query(sql, seconds, _end_late)
    except UserError:
        raise
    except (ValueError, OverflowError, RuntimeError) as error:  # e.g. a date that pandas does not know
        raise UserError(f"cannot read this result: {error}") from None
    if as_json:
        _write_rows(frame)
    elif csv:
        for start in range(0, max(1, len(frame)), ROWS):
            write(frame.iloc[start : start + ROWS].to_csv(index=False, header=start == 0))
    else:
        console.print(frame_table(frame, limit))


def _end_late() -> None:
    """End this process if DuckDB ignores that a query was interrupted."""
    complain(TOO_LONG)
    sys.stderr.flush()
    os._exit(2)


def _write_rows(frame: pd.DataFrame) -> None:
    """Write a frame as a JSON list of its rows, some at a time: all of them as objects would take gigabytes."""
    from mecheval.cli.show import records

    between = "[\n"
    for start in range(0, len(frame), ROWS):
        sys.stdout.write(between + json_text(records(frame.iloc[start : start + ROWS]))[2:-2])
        between = ",\n"
    sys.stdout.write("\n]\n" if len(frame) else "[]\n")


def _check_reads(sql: str) -> None:
    """Refuse SQL that would change something: it could only change a copy, and would seem to succeed."""
    import duckdb

    try:
        kinds = [statement.type for statement in duckdb.extract_statements(sql)]
    except (duckdb.Error, TypeError):
        return  # the query itself says what is wrong
    reading = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI}
    if len(kinds) > 1:
        raise UserError(f"query: give one statement (got {len(kinds)}); only the last would be shown.")
    for kind in kinds:
        if kind not in reading:
            raise UserError(f"query only reads, and {kind.name} is no reading; begin with select, from or describe.")


@app.command(short_help="Write a model card of a run in Markdown.")
def card(
    run: AnyRun,
    state: State = "last",
    out: Annotated[Path | None, typer.Option(help="File to write; default: print it.")] = None,
    store: StorePath = Path(DEFAULT_STORE),
) -> None:
    """Write a model card of a run in Markdown: what it is, its scores, its verdict, its config."""
    with loading():
        from mecheval.analysis.weights import card as card_of
        from mecheval.analysis.weights import find_run, run_config_of
        from mecheval.files import write_atomic
        from mecheval.store import Store, writing

    folder = find_run(Store(store), run)
    text = card_of(folder, run_config_of(folder), state)
    if out is None:
        write(text)
        return
    with writing(out):
        write_atomic(out, text)
    line(f"wrote {out}")


@app.command(short_help="Write a trained model as weights, config and model card.")
def export(
    run: AnyRun,
    to: Annotated[Path | None, typer.Option(help="Folder to write; default: ./<task>-<mixer>-<run>.")] = None,
    state: State = "last",
    store: StorePath = Path(DEFAULT_STORE),
) -> None:
    """Write a trained model as weights, config and model card, which `me.load_lm` reads without any other file."""
    with loading():
        from mecheval.analysis.weights import export as write_model
        from mecheval.analysis.weights import find_run
        from mecheval.store import Store

    line(f"wrote {write_model(find_run(Store(store), run), to, state)}")


@app.command(short_help="Check every file of a store against its checksum.")
def verify(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Run ids; default: all runs.")] = None,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Check every file of a store against its checksum; the exit code is 1 if anything is damaged."""
    with loading():
        from mecheval.cli.show.runs import problem_table
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
        if any(each.problems for each in found):
            console.print(problem_table(found))
        summary = ", ".join(f"[{STYLES[state]}]{counts[state]:,} {state}[/]" for state in STYLES if counts[state])
        console.print(f"{len(found):,} runs: {summary or 'nothing to verify'}.")
    if any(each.state == DAMAGED for each in found):
        raise typer.Exit(1)


@app.command(short_help="Remove what no run needs, such as leftovers of killed runs.")
def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, but remove nothing.")] = False,
    store: StorePath = Path(DEFAULT_STORE),
    as_json: AsJson = False,
) -> None:
    """Remove what no run needs: leftovers of killed processes, checkpoints of finished runs, folders without a run."""
    with loading():
        from mecheval.store import Store
        from mecheval.store.upkeep import clean as tidy

    opened = Store(store)
    opened.ids()  # raises an error if there is no store
    removed = tidy(opened, dry_run)
    if as_json:
        print_json([{"path": each.path, "why": each.why, "bytes": each.bytes} for each in removed])
        return
    for each in removed:
        line(f"{each.path}  ({each.why}, {each.bytes:,} bytes)")
    did = "would be removed" if dry_run else "removed"
    console.print(f"{len(removed):,} things {did}, {sum(each.bytes for each in removed):,} bytes." if removed
                  else "There is nothing to remove.")  # fmt: skip
