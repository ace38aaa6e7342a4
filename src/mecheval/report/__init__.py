"""Everything that a store has to say, as one HTML file that needs nothing else."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.errors import UnknownName, UserError
from mecheval.files import write_atomic
from mecheval.store import Store

if TYPE_CHECKING:  # slow to import
    from mecheval.report.specs import Spec

__all__ = ["check_page", "write_report"]

TITLE = "Where recall happens"
SUFFIXES = (".html", ".htm")


def check_page(path: str | Path) -> Path:
    """The path, if a page can be written there; worth asking before a long computation."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write a report as {path.name!r}; choose {' or '.join(SUFFIXES)} at the end.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'there is no such folder'}.")
    return path


def write_report(store: Store, path: str | Path, scale: str = "laptop", title: str | None = None) -> Path:
    """Write the report on all runs of a store; studies and the comparison with the paper are those of `scale`."""
    from mecheval.report.page import page
    from mecheval.studies import SCALES

    if scale not in SCALES:
        raise UnknownName("scale", scale, SCALES)
    path = check_page(path)
    data, specs = report_data(store, scale)
    try:
        write_atomic(path, page(title or TITLE, data, specs))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from None
    return path


def report_data(store: Store, scale: str) -> tuple[dict[str, Any], list[Spec]]:
    """All that the page shows: plain data, and its charts, which the data names by their numbers."""
    from mecheval.report.comparison import comparison_data
    from mecheval.report.documents import explored, explored_data
    from mecheval.report.grids import found_studies
    from mecheval.report.runs import mean_effects, run_frame, runs_data
    from mecheval.report.sections import study_data, training_data
    from mecheval.report.summary import best_runs, mechanism_figures, overview, updated
    from mecheval.store.store import Snapshot

    taken = store if isinstance(store, Snapshot) else Snapshot(store)
    frame = run_frame(taken)
    if frame.empty:
        raise UserError(f"the store at {store.path} has no runs; `mecheval train` makes one.")
    studies, best, history = found_studies(taken, scale), best_runs(frame), taken.history()
    looked_at = explored(best)
    first = list(dict.fromkeys([*looked_at, *best["run"], *frame["run"]]))
    telling = frame.set_index("run").loc[first].reset_index()
    place = {run: number for number, run in enumerate(frame["run"])}
    specs: list[Spec] = []

    def drawn(data: dict[str, Any], charts: list[Spec]) -> dict[str, Any]:
        specs.extend(charts)
        return {**data, "charts": list(range(len(specs) - len(charts), len(specs)))}

    summary = {"best": [place[run] for run in best["run"]]}
    about = {
        **overview(frame), "scale": scale, "store": taken.path.name, "version": metadata.version("mecheval"),
        "updated": updated(frame),
    }  # fmt: skip
    data = {
        "about": about,
        "runs": runs_data(frame, mean_effects(taken)),
        "summary": drawn(summary, mechanism_figures(taken, frame, studies)),
        "studies": [drawn(*study_data(found, history, scale)) for found in studies],
        "training": drawn(*training_data(telling, taken, history)),
        "comparison": comparison_data(studies, scale),
        "documents": explored_data(taken, looked_at),
    }
    return data, specs
