"""The first command: seven mixers, their mechanisms, a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import AsJson, app, aside, console, loading, note, print_json, report_failures, stoppable
from mecheval.cli.runs import StorePath
from mecheval.cli.studies import Workers
from mecheval.errors import UserError
from mecheval.store import DEFAULT_STORE

LEGEND = (
    "Accuracy and likelihood are measured on test documents; guessing among a document's values gives an accuracy of "
    "0.52. Restored at: the position where patching one clean activation into the input of layer 1, while the key is "
    "corrupted, restores most of the answer's likelihood. Agreement: share of bootstrap resamples with this verdict."
)


@app.command()
def quickstart(
    store: StorePath = Path(DEFAULT_STORE),
    report: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train seven mixers on associative recall, intervene on them and name their mechanisms, in a few minutes.

    Run it again to resume, or to see the table again: finished runs are not repeated.
    """
    with loading():
        from mecheval.cli.show import records
        from mecheval.cli.show.studies import mechanism_table
        from mecheval.report import check_page, write_report
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
    report_failures(swept.failures)
    frame = study_table(study, points, opened).best().frame
    restored = restoring(opened, list(frame["run"]))
    if as_json:
        print_json(records(frame.join(restored, on="run")))
    else:
        console.print(mechanism_table(frame, restored))
        console.print(LEGEND, style="dim", highlight=False)
    with aside.status("writing the report"):
        write_report(opened, report)
    note(f"report: {report.absolute().as_uri()} ({duration(time.monotonic() - began)})")
    learnt = frame[frame["verdict"].notna()]
    if len(learnt) and not as_json:
        first = learnt["run"].iloc[0][:6]
        note(f"next: mecheval intervene {first} · mecheval evaluate FILE.py:CLASS · mecheval study ar")
    if swept.failures:
        raise UserError(
            f"{len(swept.failures)} of {swept.jobs} runs failed (see above); run the same command again to retry them."
        )
