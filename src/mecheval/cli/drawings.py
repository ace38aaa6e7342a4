"""Commands that write pictures: a grammar with a document, an intervention, mechanisms, a study, a whole report."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mecheval.cli.app import app, aside, console, line, loading, note
from mecheval.cli.options import (
    ANY_OPTION,
    AllSeeds,
    AnyRun,
    Document,
    DocumentSeed,
    Preset,
    Scale,
    Set,
    SomeStore,
    Split,
    State,
    StorePath,
    Top,
    given_options,
)
from mecheval.cli.tasks import DRAWING
from mecheval.errors import UserError
from mecheval.store import DEFAULT_STORE
from mecheval.types import MISSING

if TYPE_CHECKING:  # slow to import
    from mecheval.figures import Chart

draw = typer.Typer(help="Draw a figure from real data into a file.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(draw, name="draw")

Save = Annotated[Path, typer.Option(help="File to write: .svg, .pdf, .png, .html or .json.")]
PROBED = 300
"""Number of documents on which a linear probe of states is trained."""
QUICK_LOOK = 64
"""Number of documents over which the reads of a pretrained model, which is slow in double precision, are averaged."""
MOST_RULES = 500
"""Largest number of rules of a grammar that is drawn; more cannot be read, and would take minutes."""


@draw.command(context_settings=ANY_OPTION)
def grammar(
    context: typer.Context,
    document: Annotated[
        int | None, typer.Option(help="Number of the document, from 0; default: the first of 6 to 16 terminals.")
    ] = None,
    preset: Preset = None,
    split: Split = "train",
    seed: DocumentSeed = 0,
    save: Save = Path("grammar.svg"),
    assignments: Set = None,
) -> None:
    """Draw a document of an atr task: its rules, its tree and its tokens; give task options as --max-rhs 4."""
    with loading():
        from mecheval import figures
        from mecheval.figures.grammar import grammar_figure
        from mecheval.tasks import ATR, build_task

    figures.check_suffix(save)
    task = build_task("atr", preset, **given_options(assignments, context.args))
    if not isinstance(task, ATR):
        raise UserError("the task registered as atr has no grammar.")
    if sum(len(rules) for rules in task.grammar.rules.values()) > MOST_RULES:
        raise UserError(f"a drawing shows grammars of at most {MOST_RULES} rules; `mecheval grammar` shows this one.")
    with aside.status(DRAWING):
        chart = grammar_figure(task, document, split, seed)
    write_chart(chart, save)


@draw.command()
def example(
    run: AnyRun,
    document: Document = 0,
    state: State = "last",
    split: Split = "test",
    site: Annotated[
        str | None, typer.Option(help="A site of `mecheval list sites`; default: the input of layer 1.")
    ] = None,
    top: Top = 3,
    store: StorePath = Path(DEFAULT_STORE),
    save: Save = Path("example.svg"),
) -> None:
    """Draw one document under interventions: a run's answers after patching in one clean activation."""
    with loading():
        from mecheval import figures
        from mecheval.analysis import runs as probe
        from mecheval.analysis.weights import find_run
        from mecheval.cli.show.documents import document_data
        from mecheval.figures.example import example_figure
        from mecheval.intervene.explain import explain
        from mecheval.store import Store

    figures.check_suffix(save)
    trained = probe.load_run(find_run(Store(store), run), state)
    clean, corrupted = probe.document(trained, document, split)
    n_layers = trained.config.model.n_layers
    site = site or ("blocks.1.input" if n_layers > 1 else "blocks.0.mixer.output")
    meaning = trained.task.meaning
    roles = [role for role in (meaning.key, meaning.value, meaning.query) if role is not None]
    explained = explain(trained.lm, trained.task, clean, corrupted, [site], roles, top)
    title = f"{trained.config.title} · document {document} ({split})"
    write_chart(example_figure(document_data(trained.task, clean, 0), explained, site, n_layers, title), save)


@draw.command()
def inside(
    run: AnyRun,
    document: Document = 0,
    state: State = "last",
    split: Split = "test",
    store: StorePath = Path(DEFAULT_STORE),
    save: Save = Path("inside.svg"),
) -> None:
    """Draw what every layer of a run reads from which token of a document: attention, or its equal in other mixers."""
    with loading():
        from mecheval import figures
        from mecheval.analysis import runs as probe
        from mecheval.analysis.weights import find_run
        from mecheval.cli.show import plain_table
        from mecheval.cli.show.documents import document_data
        from mecheval.figures.reads import reads as reads_figure
        from mecheval.intervene import reads
        from mecheval.intervene.stored import probed_pairs
        from mecheval.store import Store
        from mecheval.store.published import is_published

    figures.check_suffix(save)
    folder = find_run(Store(store), run)
    trained = probe.load_run(folder, state)
    clean, _ = probe.document(trained, document, split)
    one = document_data(trained.task, clean, 0)
    title = f"{trained.config.title} · document {document} ({split})"
    seen = reads(trained.lm, clean)
    shares, norms, changes = (x[:, 0].double().numpy() for x in (seen.shares, seen.norms, seen.changes))
    n = QUICK_LOOK if is_published(folder) else None
    every, _ = probe.documents(trained.task, trained.config, split, n)
    try:
        pairs = probed_pairs(trained.lm, trained.task.sample(PROBED, "train"), every)
    except UserError:  # of another task, or with more symbols than a probe can learn
        pairs = None
    write_chart(reads_figure(shares, one["symbols"], one["roles"], title, norms, changes, pairs), save)
    found = reads(trained.lm, every).table().pivot(index="layer", columns="role", values="share")
    line(f"Share of what each layer reads at the query that comes from each role, mean of {len(every)} documents:")
    table = plain_table(["layer", *found.columns])
    for layer, shares in found.iterrows():
        table.add_row(str(layer), *(f"{round(share, 2) + 0.0:.2f}" for share in shares))
    console.print(table)
    for layer, own in [] if pairs is None else pairs[pairs["position"] == pairs["position"].max()].groupby("layer"):
        line(f"After all pairs, a linear probe of layer {layer}'s state names {own['accuracy'].mean():.0%} of values.")


@draw.command()
def ladder(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run ids or unique prefixes.")],
    by: Annotated[str, typer.Option(help="A fact of the documents, such as depth, distance or pairs.")] = "distance",
    documents: Annotated[int | None, typer.Option(min=1, max=100_000, help="Default: as many as were scored.")] = None,
    state: State = "last",
    split: Split = "test",
    store: StorePath = Path(DEFAULT_STORE),
    save: Save = Path("ladder.svg"),
) -> None:
    """Draw how well runs do on documents of each kind: accuracy by depth, distance or another fact of the task."""
    with loading():
        from mecheval import figures
        from mecheval.analysis import ladder
        from mecheval.analysis.weights import run_config_of
        from mecheval.figures.lines import ladder_figure
        from mecheval.store import Store

    figures.check_suffix(save)
    folders = {folder.id: folder for folder in map(Store(store).find, runs)}.values()
    found = [(folder, run_config_of(folder)) for folder in folders]
    titles = [config.title for _, config in found]
    steps = {}
    for folder, config in found:
        name = config.title if titles.count(config.title) == 1 else f"{config.title} · {folder.id}"
        with aside.status(f"scoring {name}"):
            steps[name] = ladder(folder, by, state, split, documents)
    write_chart(ladder_figure(steps, by, f"Accuracy by {by.replace('_', ' ')} ({split})"), save)


@draw.command()
def mechanisms(
    task: Annotated[str | None, typer.Option(help="Runs of this task; default: ar, or the task of the study.")] = None,
    study: Annotated[str | None, typer.Option(help="Only runs of this study; default: all runs of the task.")] = None,
    scale: Scale = "laptop",
    seeds: AllSeeds = None,
    store: StorePath = Path(DEFAULT_STORE),
    save: Save = Path("mechanisms.svg"),
) -> None:
    """Draw where each mixer stores the key-value link, by the verdicts on its runs at their best learning rate."""
    with loading():
        from mecheval import figures
        from mecheval.figures.by_mechanism import mechanism_rows
        from mecheval.figures.mechanisms import TITLE, mechanisms_figure
        from mecheval.store import Published, Store
        from mecheval.studies import get_study, seeds_in, study_points
        from mecheval.studies.axes import say

    figures.check_suffix(save)
    with aside.status("reading"):
        if study is None:
            asked = task or "ar"
            rows = mechanism_rows(Store(store), asked)
        else:  # as all that is about a study, with the published runs
            found, wanted = Published(store), get_study(study)
            points = study_points(wanted, scale, seeds_in(wanted, scale, found) if seeds is None else seeds)
            asked = task or points[0].config.task.name
            rows = mechanism_rows(found, asked, {point.config.id for point in points})
    write_chart(mechanisms_figure(rows, f"{TITLE} ({say('task', asked)})"), save)


@draw.command()
def landscape(
    run: AnyRun,
    along: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1000,
            help="Steps at which sharpness is measured; the run is trained again for them. Default: 6, and 0 for a "
            "pretrained model, whose training takes long.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of the directions.")] = 0,
    documents: Annotated[int, typer.Option(min=1, max=10**6, help="Dev documents whose mean loss is shown.")] = 64,
    store: StorePath = Path(DEFAULT_STORE),
    save: Save = Path("landscape.svg"),
) -> None:
    """Draw the loss around the end of a run, from its start to its end, and its sharpness along training."""
    with loading():
        from mecheval import figures
        from mecheval.analysis.weights import find_run
        from mecheval.cli.show import plain_table
        from mecheval.figures.landscape import landscape as chart
        from mecheval.figures.landscape import said
        from mecheval.store import Store
        from mecheval.store.published import is_published
        from mecheval.training.landscape import landscape as explore

    figures.check_suffix(save)
    folder = find_run(Store(store), run)
    steps = along if along is not None else 0 if is_published(folder) else 6
    with aside.status("looking around"):
        found = explore(folder, steps, seed, documents)
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


@draw.command("study")
def draw_study(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="A study of `mecheval list studies`.")],
    scale: Scale = "laptop",
    seeds: AllSeeds = None,
    curves: Annotated[bool, typer.Option("--curves", help="Draw the learning curves instead.")] = False,
    store: StorePath = Path(DEFAULT_STORE),
    save: Annotated[Path | None, typer.Option(help="File to write; default: <study>-<scale>.svg.")] = None,
) -> None:
    """Draw a study's figure from the runs in the store."""
    with loading():
        from mecheval import figures
        from mecheval.store import Published
        from mecheval.store.store import snapshot_of
        from mecheval.studies import get_study, seeds_in, study_points, study_table

    study = get_study(name)
    wanted = f"{name}-{scale}-curves" if curves else f"{name}-{scale}"
    path = save or Path(f"{wanted}.svg")
    figures.check_suffix(path)
    with aside.status("reading"):
        found = Published(store)
        points = study_points(study, scale, seeds_in(study, scale, found) if seeds is None else seeds)
        asked = {point.config.id for point in points}
        opened = snapshot_of(found, "history", "effects", "verdicts", among=asked)
        drawn = figures.study_charts(study_table(study, points, opened), opened, scale)
    if wanted not in drawn:
        raise UserError(f"the store has no learning curves of {name}; `mecheval study {name}` makes them.")
    write_chart(drawn[wanted], path)


@app.command(short_help="Write an HTML report of every run.")
def report(
    store: SomeStore = None,
    out: Annotated[Path, typer.Option(help="File to write, .html.")] = Path("report.html"),
    scale: Annotated[str | None, typer.Option(help="laptop or paper; default: laptop, with --results paper.")] = None,
    results: Annotated[bool, typer.Option("--results", help="Report on the published results instead.")] = False,
    title: Annotated[str | None, typer.Option(help="Report title.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Write an HTML report of every run: one file that opens by double click and needs no network."""
    with loading():
        from mecheval.report import check_page, write_report
        from mecheval.store import RESULTS, Snapshot, Store

    check_page(out)
    if results and store is not None:
        raise UserError("--results reports on the results that come with the package; leave out --store.")
    with aside.status("looking into runs and drawing"):
        opened = Snapshot(Store(RESULTS) if results else Store(store or DEFAULT_STORE))
        path = write_report(opened, out, scale or ("paper" if results else "laptop"), title)
    runs = len(opened.rows())
    line(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB, {runs:,} run{'s' * (runs != 1)})")
    if show:
        webbrowser.open(path.absolute().as_uri())


@app.command(short_help="Show a finished report at once, without training.")
def demo(
    out: Annotated[Path, typer.Option(help="File to write, .html.")] = Path("mecheval-demo.html"),
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Show a report at once, without training: the results and trained models that come with the package."""
    report(out=out, results=True, scale="paper", title=None, show=show)
    note("next: mecheval quickstart trains seven mixers of your own in minutes")


def write_chart(chart: Chart, path: Path) -> None:
    """Write a chart into a file, and say so."""
    from mecheval import figures

    figures.save(chart, path)
    line(f"wrote {path}")
