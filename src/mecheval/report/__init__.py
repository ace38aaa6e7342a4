"""A report on every run of a store, as one HTML file that needs no other file and no network."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.errors import UnknownName, UserError
from mecheval.files import check_output, write_output
from mecheval.store import Store

if TYPE_CHECKING:  # slow to import
    from mecheval.figures.vegalite import Spec

__all__ = ["check_page", "write_report"]

TITLE = "Where recall happens"
SUFFIXES = (".html", ".htm")


def check_page(path: str | Path) -> Path:
    """The path, or an error if a page cannot be written there; call it before a long computation."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write a report as {str(path)!r}; choose {' or '.join(SUFFIXES)} at the end.")
    from mecheval.figures.vegalite import check_renderer

    check_renderer()
    return check_output(path)


def write_report(store: Store, path: str | Path, scale: str = "laptop", title: str | None = None) -> Path:
    """Write the report on all runs of a store; studies and the comparison with the paper are those of `scale`."""
    from mecheval.report.page import page
    from mecheval.studies import SCALES

    if scale not in SCALES:
        raise UnknownName("scale", scale, SCALES)
    path = check_page(path)
    data, specs = report_data(store, scale)
    write_output(path, page(title or TITLE, data, specs))
    return path


def report_data(store: Store, scale: str) -> tuple[dict[str, Any], list[Spec]]:
    """The content of the page: plain data, and charts, which the data names by their numbers."""
    from mecheval.report.documents import explored, explored_data
    from mecheval.report.runs import arranged, best_runs, overview, run_frame, runs_data, speaking
    from mecheval.report.sections import (
        comparison_data,
        findings_data,
        found_studies,
        mixers_charts,
        study_data,
        training_data,
    )
    from mecheval.store.store import Snapshot
    from mecheval.studies.peers import placings

    taken = store if isinstance(store, Snapshot) else Snapshot(store)
    frame = run_frame(taken)
    if frame.empty:
        raise UserError(f"the store at {store.path} has no runs; `mecheval train` makes one.")
    studies, best, history = found_studies(taken, scale), best_runs(frame), taken.history()
    findings = findings_data(taken, speaking(frame), placings(taken))
    frame, looked_at = arranged(frame), explored(best)
    first = list(dict.fromkeys([*looked_at, *best["run"], *frame["run"]]))  # the runs of most interest first
    place = {run: number for number, run in enumerate(frame["run"])}
    specs: list[Spec] = []

    def drawn(data: dict[str, Any], charts: list[Spec]) -> dict[str, Any]:
        specs.extend(charts)
        return {**data, "charts": list(range(len(specs) - len(charts), len(specs)))}

    data = {
        "about": {
            **overview(frame), "scale": scale, "store": taken.path.name, "version": metadata.version("mecheval"),
        },
        "runs": runs_data(frame, taken),
        "summary": {"best": [place[run] for run in best["run"]], **drawn(*findings)},
        "mixers": drawn({}, mixers_charts(taken, scale)),
        "studies": [drawn(*study_data(found, history, scale)) for found in studies],
        "training": drawn(*training_data(frame.set_index("run").loc[first].reset_index(), taken, history)),
        "comparison": drawn(*comparison_data(studies, taken, scale)),
        "documents": explored_data(taken, looked_at),
    }  # fmt: skip
    return data, specs
