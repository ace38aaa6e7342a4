"""Commands about the results and trained models that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mecheval.cli.app import app, aside, console, line, lists, loading, note, print_json
from mecheval.cli.options import AsJson, StorePath
from mecheval.errors import UserError
from mecheval.store import DEFAULT_STORE, RESULTS, Store

if TYPE_CHECKING:  # slow to import
    from mecheval.store import RunFolder

results = typer.Typer(help="Publish runs with the package.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(results, name="results")

OFFERED = ("ar", "atr"), (32, 64)
"""The studies and widths for which the best run of each mixer becomes a pretrained model."""


@results.command("add")
def add(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Run ids or unique prefixes; default: all that ended."),
    ] = None,
    store: StorePath = Path(DEFAULT_STORE),
    to: Annotated[Path, typer.Option(help="Folder of published results; default: that of the package.")] = RESULTS,
    weights: Annotated[
        bool,
        typer.Option("--weights", help="Add the weights of these runs, too; default: of the best run of each mixer."),
    ] = False,
    mixer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:CLASS", help="The custom mixer of these runs: adds its file and their weights, for others."
        ),
    ] = None,
) -> None:
    """Copy the tables of runs that ended, without weights, into the published results.

    With --mixer and --to, the folder can be shared: anyone can check it with `mecheval results check`.
    """
    if mixer is not None:
        _contribute(runs or [], Store(store), to, mixer)
        return
    with loading():
        from mecheval.analysis.weights import add_pretrained
        from mecheval.files import locked
        from mecheval.report.documents import keep_documents
        from mecheval.store import writing
        from mecheval.store.published import check_size, publish
        from mecheval.store.schema import WHOLE

    opened = Store(store)
    ended = [row["run"] for row in opened.rows() if row["status"] in WHOLE] if not runs else []
    chosen = [opened.find(run) for run in runs] if runs else [opened.folder(run) for run in ended]
    with writing(to):
        to.mkdir(parents=True, exist_ok=True)
    with aside.status("copying"), writing(to), locked(to / "runs"):
        for part in to.rglob(".*.part"):  # of a killed command
            part.unlink()
        changed = sum(publish(folder, to) for folder in chosen)
        size = check_size(to)
        offered = [] if not weights else chosen if runs else _best(opened, to)
        names = [add_pretrained(folder, to) for folder in offered]
        for name in names:
            keep_documents(name, to)
    line(f"{changed} of {len(chosen)} runs are new or changed; {to} has {size / 1e6:.1f} MB of results.")
    if names:
        line(f"weights: {', '.join(names)}")


def _contribute(runs: list[str], store: Store, to: Path, mixer: str) -> None:
    """Make a folder with runs of a custom mixer, their weights and the mixer's file."""
    if not runs or to == RESULTS:
        raise UserError("--mixer is for sharing: name the runs, and a folder of their own with --to.")
    with loading():
        from mecheval.custom import Source, announce
        from mecheval.evaluation.recheck import contribute

        source = Source.read(mixer)
        announce(source)
    with aside.status("copying"):
        names = contribute([store.find(run) for run in runs], source, to)
    line(f"{to} has the runs and weights of {', '.join(names)}, and {source.path.name}")
    note(f"next: mecheval results check {to} --mixer {to / 'mixers' / source.path.name}:{source.cls}")


@results.command("check")
def check_results(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that `mecheval results add` made.")],
    mixer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py:CLASS", help="A custom mixer of these runs. Its code is executed: read it first."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute scores and verdicts of contributed results anew from their weights, and compare.

    Exit code 1 if anything differs. No file of the folder is executed unless --mixer names it.
    """
    with loading():
        from mecheval.custom import Source, announce
        from mecheval.evaluation.recheck import recheck

        for each in mixer or ():
            announce(Source.read(each))
    found = []
    with aside.status("computing anew"):
        for one in recheck(folder):
            found.append(one)
            if not as_json:
                right = f"accuracy {one.accuracy:.3f}, {one.verdict}, {one.shares} shares: as published"
                line(f"{one.run} {one.title}: {right if not one.problems else 'differs'}")
            for problem in one.problems if not as_json else ():
                line(f"  {problem}")
    wrong = sum(bool(one.problems) for one in found)
    if as_json:
        print_json([one._asdict() for one in found])
    else:
        line(f"{len(found) - wrong} of {len(found)} runs are what their weights give.")
    if wrong:
        raise typer.Exit(1)


@results.command("refresh")
def refresh(
    to: Annotated[Path, typer.Option(help="Folder of published results; default: that of the package.")] = RESULTS,
) -> None:
    """Recompute verdicts, effects and shown documents of the published models, after a change of the rule or report."""
    with loading():
        from mecheval.analysis.runs import judge_again
        from mecheval.report.documents import keep_documents
        from mecheval.store.published import pretrained_files, pretrained_origin

    names = pretrained_files(to)
    if not names:
        raise UserError(f"there are no trained models in {to / 'weights'}; `mecheval results add --weights` adds some.")
    with aside.status("intervening, and looking at documents"):
        for name, path in names.items():
            judge_again(Store(to).folder(pretrained_origin(path)["run"]), to)
            keep_documents(name, to)
    line(f"wrote verdicts and what reports show of {len(names)} models")


def _best(store: Store, results: Path) -> list[RunFolder]:
    """For each mixer and width the run with the highest dev accuracy, over learning rates and seeds.

    Published runs count, too, so that neither a worse run of this store nor an unfinished copy replaces one.
    """
    from mecheval.store.published import Published
    from mecheval.store.schema import WHOLE
    from mecheval.studies import STUDIES, best_rows, seeds_in, study_points, study_table

    found = []
    known = Published(store.path, results)
    own = {row["run"] for row in store.rows() if row["status"] in WHOLE}
    studies, widths = OFFERED
    for study in (STUDIES[name] for name in studies):
        points = study_points(study, "paper", seeds_in(study, "paper", known), {"d_model": widths})
        frame = study_table(study, points, known).frame
        best = best_rows(frame[frame["status"] == "done"], ["mixer", "d_model"])
        found += [store.folder(run) for run in best["run"] if run in own]
    return found


@lists.command("pretrained")
def list_pretrained(as_json: AsJson = False) -> None:
    """List trained models that come with the package, for `mecheval.load_pretrained`."""
    with loading():
        from mecheval.cli.show import plain_table
        from mecheval.store.published import pretrained_files, pretrained_origin

        rows = {row["run"]: row for row in Store(RESULTS).rows()}
        found = []
        for name, path in pretrained_files().items():
            run = pretrained_origin(path)["run"]
            row = rows.get(run, {})
            scores = {column: row.get(column) for column in ("lr", "seed", "test_accuracy", "test_likelihood")}
            found.append({"name": name, "run": run, **scores, "bytes": path.stat().st_size})
    if as_json:
        print_json(found)
        return
    table = plain_table(("name", "run", "lr", "seed", "test acc", "test lik", "MB"), ("name", "run"))
    for each in found:
        accuracy, likelihood = (
            "–" if each[name] is None else f"{each[name]:.3f}" for name in ("test_accuracy", "test_likelihood")
        )
        rate, seed = ("–" if each[name] is None else f"{each[name]:g}" for name in ("lr", "seed"))
        table.add_row(each["name"], each["run"], rate, seed, accuracy, likelihood, f"{each['bytes'] / 1e6:.1f}")
    console.print(table)
