"""Commands that list and run studies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mecheval.cli.app import app, aside, console, line, lists, loading, note, print_json, report_failures, stoppable
from mecheval.cli.clean import write
from mecheval.cli.options import (
    MOST_VALUES,
    AsJson,
    Csv,
    Latex,
    Markdown,
    Scale,
    Seeds,
    StorePath,
    Workers,
    from_to,
    rates_of,
    split_values,
)
from mecheval.cli.show import format_of, formatted
from mecheval.errors import UnknownName, UserError, shown
from mecheval.plain import parse_value
from mecheval.store import DEFAULT_STORE

if TYPE_CHECKING:  # slow to import
    from mecheval.store import Store
    from mecheval.studies import Study
    from mecheval.sweep import Point

    Grid = tuple[Study, list[Point]]

MOST_CORES = 10**6
"""Largest number of cores or GPUs for a run on a cluster."""
Only = Annotated[
    list[str] | None, typer.Option(metavar="AXIS=VALUES", help="Only runs with these values: mixer=mamba,attention.")
]
ALL = "all"
"""The name that stands for all studies of the paper."""


@lists.command("studies")
def list_studies(
    scale: Scale = "laptop", seeds: Seeds = 1, store: StorePath = Path(DEFAULT_STORE), as_json: AsJson = False
) -> None:
    """List the paper's studies: their runs, how many are done, and the time that the rest takes."""
    with loading():
        from mecheval.cli.show.studies import Listed, study_table
        from mecheval.machine import cores
        from mecheval.store import Published
        from mecheval.store.store import snapshot_of
        from mecheval.studies import STUDIES, study_points
        from mecheval.sweep import Estimate, Job, merged
        from mecheval.sweep.driver import done_in, rows_of

        grids = {
            study: merged(Job(point.config, study.splits) for point in study_points(study, scale, seeds))
            for study in STUDIES.values()
        }
        asked = {job.run for jobs in grids.values() for job in jobs}
        opened = snapshot_of(Published(store), "verdicts", among=asked)
        is_done, estimate, listed = done_in(opened), Estimate(rows_of(opened)), []
        for study, jobs in grids.items():
            todo = [job for job in jobs if not is_done(job)]
            seconds = sum(estimate.seconds(job.config) for job in todo) / cores()
            listed.append(Listed(study, len(jobs), len(jobs) - len(todo), seconds))
    if as_json:
        print_json([
            {**each._asdict(), "study": each.study.name, "figure": each.study.figure, "question": each.study.question,
             "scale": scale} for each in listed
        ])  # fmt: skip
    else:
        console.print(study_table(listed, scale))


@app.command(short_help="Train and draw a whole study, such as a figure of the paper.")
def study(
    words: Annotated[
        list[str], typer.Argument(metavar="STUDY...", help="Names of `mecheval list studies`, fig3, or all.")
    ],
    scale: Scale = "laptop",
    only: Only = None,
    seeds: Seeds = 1,
    lr: Annotated[str | None, typer.Option(help="Other learning rates, comma-separated.")] = None,
    search: Annotated[
        int | None,
        typer.Option(min=2, max=MOST_VALUES, help="Learning rates to try per setting, by Optuna; in --lr LOW,HIGH."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu (default), cuda, cuda:1 or mps.")] = None,
    track: Annotated[list[str] | None, typer.Option(help="tensorboard, wandb or wandb-offline.")] = None,
    engine: Annotated[str, typer.Option(help="local (worker processes), ray or slurm.")] = "local",
    workers: Workers = None,
    nice: Annotated[int | None, typer.Option(min=0, max=19, help="How much to lower the priority of workers.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster: auto or HOST:PORT; default: start a local one.")
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(callback=from_to(0, MOST_CORES), help="Ray, Slurm: cores per run; default: 1.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(callback=from_to(0, MOST_CORES), help="Ray, Slurm: GPUs per run; default: 0.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm: partition; default: the cluster's own.")] = None,
    minutes: Annotated[
        int | None, typer.Option(min=1, help="Slurm: time limit of a job, which then is queued again; default: 240.")
    ] = None,
    store: StorePath = Path(DEFAULT_STORE),
    figures: Annotated[Path | None, typer.Option(help="Folder for figures; default: figures in the store.")] = None,
    log: Annotated[Path | None, typer.Option(help="Append a line with its time for each run to this file.")] = None,
    skip_published: Annotated[
        bool, typer.Option("--skip-published", help="Do not train runs whose results come with the package.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Only report progress of this command; train nothing.")
    ] = False,
    latex: Latex = False,
    markdown: Markdown = False,
    csv: Csv = False,
    as_json: AsJson = False,
) -> None:
    """Train, intervene, choose learning rates and draw a whole figure of the paper. Run it again to resume."""
    kind = format_of(latex=latex, markdown=markdown, csv=csv, json=as_json)
    with loading():
        from mecheval.figures import check_renderer
        from mecheval.store import Published, Store
        from mecheval.store.guard import refuse_links
        from mecheval.store.location import check_writable
        from mecheval.studies import PAPER, STUDIES, get_study, on_device, study_points
        from mecheval.sweep import Job, make_engine, pending, sweep
        from mecheval.sweep.board import Board
        from mecheval.training.watch import tracker

        names = [word for word in words if "=" not in word]
        wanted = _wanted([*(only or []), *(word for word in words if "=" in word)])
        studies = [get_study(name) for name in names if name != ALL]
        studies = [STUDIES[name] for name in PAPER] if ALL in names else studies
        if not studies:
            raise UserError(f"name a study. Choices: {', '.join([*STUDIES, ALL])}.")
        rates = rates_of(lr)
        given_rates = () if search else rates
        plans = [(study, study_points(study, scale, seeds, wanted, given_rates)) for study in studies]
        if device is not None:
            plans = [(study, [on_device(point, device) for point in points]) for study, points in plans]
        given = {"workers": workers, "nice": nice, "address": address, "cpus": cpus, "gpus": gpus,
                 "partition": partition, "minutes": minutes}  # fmt: skip
        given = {name: value for name, value in given.items() if value is not None}
        _check_engine(engine, given)
        opened = Store(store)
        tracked = tuple(dict.fromkeys(track or ()))
        if status and search:
            raise UserError("--status cannot know which learning rates will be tried; leave out --search.")
        if status and kind not in (None, "json"):
            raise UserError(f"--status is a line of text, or --json; leave out --{kind}.")
        if skip_published and search:
            raise UserError("--skip-published is for a study's own learning rates; leave out --search.")
        if device is not None and engine == "local" and not status:
            from mecheval.training.state import check_device

            check_device(device)  # before a worker fails with it; on a cluster, nodes may have what this machine lacks
        for name in tracked if not status else ():
            tracker(name, opened.path)
    if status:
        _print_status(plans, Published(store), workers, as_json)
        return
    with loading():
        check_renderer()
        pages = figures or opened.path / "figures"
        if figures is None:
            refuse_links(pages, pages)
        check_writable(pages, "store" if figures is None else "folder of figures")
        workforce = make_engine(engine, given)
    failures, shown = 0, {}
    for batch, title in zip(_batches(plans, engine), _titles(plans, scale, engine), strict=True):
        began, worked_on = time.monotonic(), 0

        def train(plans: Sequence[Grid], title: str = title) -> int:
            """Finish the runs of these plans, and return how many failed."""
            nonlocal worked_on
            with stoppable():
                jobs = [Job(point.config, study.splits, tracked) for study, points in plans for point in points]
                jobs = pending(jobs, Published(store)) if skip_published else jobs
                swept = sweep(jobs, opened, workforce, Board(aside, title, log=log))
            report_failures(swept.failures)
            worked_on += swept.worked_on
            return len(swept.failures)

        if search:
            batch = [(study, _searched(study, points, search, rates, train, opened)) for study, points in batch]
        else:
            failures += train(batch)
        took = time.monotonic() - began if worked_on else 0.0
        table_store = Published(store) if skip_published else opened
        for study, points in batch:
            shown[study.name] = _show(study, points, table_store, pages, scale, took, kind, workers)
    if as_json:
        print_json(shown)
    _check_failures(failures)


def _check_failures(failures: int) -> None:
    if failures:
        raise UserError(
            f"{failures} run{'s' * (failures > 1)} failed (see above); run the same command again to retry."
        )


def _searched(
    study: Study, points: Sequence[Point], tries: int, rates: Sequence[float], train: Callable[[Sequence[Grid]], int],
    store: Store,
) -> list[Point]:  # fmt: skip
    """The runs of a study with learning rates that were searched for."""
    from mecheval.studies.search import WINDOW, search

    def each(some: list[Point]) -> None:
        _check_failures(train([(study, some)]))  # what comes next depends on them

    return search(points, tries, rates or WINDOW, each, store)


def _batches(plans: Sequence[Grid], engine: str) -> list[Sequence[Grid]]:
    """One study after the other, so that first results come soon; on a cluster all at once, to keep it busy."""
    return [[plan] for plan in plans] if engine == "local" else [plans]


def _titles(plans: Sequence[Grid], scale: str, engine: str) -> list[str]:
    batches = _batches(plans, engine)
    names = [f"{', '.join(study.name for study, _ in batch)} ({scale})" for batch in batches]
    return [f"{name} {i}/{len(names)}" if len(names) > 1 else name for i, name in enumerate(names, start=1)]


def _print_status(plans: Sequence[Grid], store: Store, workers: int | None, as_json: bool) -> None:
    """Print the progress of each study: what is done, running, failed and left, and how long the rest takes."""
    from mecheval.machine import cores
    from mecheval.sweep import Job, standing
    from mecheval.training.progress import duration

    found = {}
    for study, points in plans:
        found[study.name] = standing([Job(point.config, study.splits) for point in points], store, workers or cores())
    if as_json:
        print_json({name: asdict(each) for name, each in found.items()})
        return
    for name, each in found.items():
        counts = [f"{each.done} of {each.runs} runs done", f"{len(each.running)} running", f"{each.left} left"]
        counts += [f"{each.failed} failed"] * bool(each.failed)
        counts += [f"about {duration(each.seconds)} left"] * (each.done < each.runs)
        line(f"{name}: {' · '.join(counts)}")
        for run in each.running:
            line(f"  {run.title}  step {run.step} of {run.steps}")


def _show(
    study: Study, points: Sequence[Point], store: Store, folder: Path, scale: str, took: float, kind: str | None,
    workers: int | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Draw a study's figures, and print its table as text of this kind, or return it as plain data for JSON."""
    from mecheval.cli.show import records
    from mecheval.cli.show.studies import BELOW, result_table
    from mecheval.figures import save, study_charts
    from mecheval.store import writing
    from mecheval.studies import restoring, study_table
    from mecheval.training.progress import duration

    if study.prepare is not None:
        with aside.status("looking into runs"):
            study.prepare(points, store, workers)
    table = study_table(study, points, store)
    best = table.best()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, chart in study_charts(table, store, scale).items():
        for suffix in ("svg", "pdf", "png", "json"):
            save(chart, folder / f"{name}.{suffix}")
    if kind == "json":
        return records(best.frame)
    if kind is not None:
        titles = {"test_accuracy": "accuracy", **best.titles}
        columns = best.frame[[*best.varying(), *titles, "verdict", "agreement"]]
        write(formatted(best.frame if kind == "csv" else columns.rename(columns=titles), kind))
        return []
    console.print(f"\n{study.name}: {study.question}", markup=False, style="bold")
    restored = restoring(store, list(best.frame["run"]))
    console.print(result_table(best, restored))
    if len(restored):
        note(BELOW)
    for sentence in [] if study.says is None else study.says(table):
        line(sentence)
    spent = f" · {duration(took)}" if took else ""
    note(f"figure{'' if study.figure == '–' else f' {study.figure}'}: {folder / f'{study.name}-{scale}'}.svg{spent}")
    return []


def _wanted(given: Sequence[str]) -> dict[str, list[Any]]:
    wanted = {}
    for word in given:
        axis, equals, values = word.partition("=")
        if not equals or not values:
            raise UserError(f"--only takes AXIS=VALUE,VALUE (got {shown(word)}).")
        wanted[axis.replace("-", "_")] = [parse_value(value) for value in split_values("--only", values)]
    return wanted


def _check_engine(name: str, given: dict[str, Any]) -> None:
    """Refuse options of another engine, which would have no effect."""
    from mecheval.sweep import ENGINES

    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    for option in given:
        if option not in ENGINES[name].options:
            there = ", ".join(f"--{each}" for each in ENGINES[name].options)
            others = " or ".join(engine for engine, kind in ENGINES.items() if option in kind.options)
            raise UserError(f"--{option} is for --engine {others}. Choices with --engine {name}: {there}.")
