"""The first command: seven mixers, their mechanisms, a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mecheval.cli.app import app, aside, console, loading, note, print_json, report_failures, stoppable
from mecheval.cli.options import AsJson, StorePath, Workers
from mecheval.errors import UserError
from mecheval.store import DEFAULT_STORE

PLAN = (
    "Trains seven mixers on associative recall, intervenes on each, and names the mechanism by which it recalls; then "
    "writes {report}. Ctrl-C stops it, and the same command resumes."
)
LEGEND = (
    "Accuracy is measured on test documents; chance is what the best guess without recall achieves. Restored at: the "
    "position where patching one clean activation into the input of layer 1, while the key is "
    "corrupted, restores most of the answer's likelihood. Agreement: share of bootstrap resamples with this verdict."
)


@app.command(short_help="Train seven mixers and name their mechanisms, in minutes.")
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
        from mecheval.store.location import check_writable
        from mecheval.studies import get_study, restoring, study_table
        from mecheval.studies.finding import finding
        from mecheval.studies.scales import quick
        from mecheval.sweep import Job, LocalEngine, sweep
        from mecheval.sweep.board import Board
        from mecheval.training.progress import duration

        check_page(report)
        study, opened, points, began = get_study("quickstart"), Store(store), quick(), time.monotonic()
        if not opened.exists():
            check_writable(store / "runs", "store")
    note(PLAN.format(report=report))
    with stoppable():
        jobs = [Job(point.config, study.splits) for point in points]
        swept = sweep(jobs, opened, LocalEngine(workers), Board(aside, "quickstart", verdicts=True))
    report_failures(swept.failures)
    frame = study_table(study, points, opened).best().frame
    restored = restoring(opened, list(frame["run"]))
    if as_json:
        print_json(records(frame.join(restored, on="run")))
    else:
        judged = frame[frame["verdict"].notna()]
        said = finding(dict(zip(judged["mixer"], judged["verdict"], strict=True)), small=True)
        console.print(f"\n{said}\n", style="bold")
        console.print(mechanism_table(frame, restored))
        console.print(LEGEND, style="dim", highlight=False)
    with aside.status("writing the report"):
        write_report(opened, report)
    note(f"report: {report.absolute().as_uri()} ({duration(time.monotonic() - began)})")
    if not as_json and len(judged):
        note(f"next: mecheval explain {judged['run'].iloc[0][:6]}  (one document, before and after patching)")
    if not as_json:
        note("a mixer of yours, at the paper's size: mecheval evaluate FILE.py:CLASS --scale paper")
    if swept.failures:
        raise UserError(
            f"{len(swept.failures)} of {swept.jobs} runs failed (see above); run the same command again to retry them."
        )
