"""The first command: seven mixers, their mechanisms, a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import AsJson, app, aside, console, print_json, stoppable, tell_failures
from mecheval.cli.runs import StorePath
from mecheval.cli.studies import Workers
from mecheval.errors import UserError
from mecheval.store import DEFAULT_STORE

LEGEND = (
    "Accuracy and likelihood are of test documents; guessing among a document's values gives an accuracy of 0.52. "
    "Restored at: the position where one clean activation, put into the input of layer 1 while the key is corrupted, "
    "brings back most of the answer's likelihood. Sure: share of resamples of the documents with the same verdict."
)


@app.command()
def quickstart(
    store: StorePath = Path(DEFAULT_STORE),
    report: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train seven mixers on associative recall, intervene on them, name their mechanisms: a few minutes.

    Repeat it to go on, or to see the table again: what is done is not done twice.
    """
    with aside.status("loading"):
        from mecheval.report import check_page, write_report
        from mecheval.show_effects import rows_data
        from mecheval.show_studies import mechanism_table
        from mecheval.store import Store
        from mecheval.studies import get_study, restoring, study_table
        from mecheval.studies.scales import quick
        from mecheval.sweep import Job, LocalEngine, sweep
        from mecheval.sweep.board import board
        from mecheval.training.progress import duration

        check_page(report)
        study, opened, points, began = get_study("quickstart"), Store(store), quick(), time.monotonic()
    with stoppable():
        jobs = [Job(point.config, study.splits) for point in points]
        swept = sweep(jobs, opened, LocalEngine(workers), board(aside, "quickstart"))
    tell_failures(swept.failures)
    frame = study_table(study, points, opened).best().frame
    restored = restoring(opened, list(frame["run"]))
    if as_json:
        print_json(rows_data(frame.join(restored, on="run")))
    else:
        console.print(mechanism_table(frame, restored))
        console.print(LEGEND, style="dim", highlight=False)
    with aside.status("writing the report"):
        write_report(opened, report)
    where = f"{report.absolute().as_uri()} ({duration(time.monotonic() - began)})"
    aside.print(f"report: {where}", markup=False, highlight=False, soft_wrap=True)
    learnt = frame[frame["verdict"].notna()]
    if len(learnt) and not as_json:
        first = learnt["run"].iloc[0][:6]
        said = f"next: mecheval intervene {first} · mecheval evaluate FILE.py:CLASS · mecheval study ar"
        aside.print(said, markup=False, highlight=False, soft_wrap=True)
    if swept.failures:
        raise UserError(f"{len(swept.failures)} of {swept.jobs} runs failed (see above); the same command tries again.")
