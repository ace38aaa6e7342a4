"""Charts of study tables and effects, and charts to files; this needs no model, network or browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mecheval.errors import UnknownName, UserError
from mecheval.figures.calibration import calibration
from mecheval.figures.capacity import capacity
from mecheval.figures.convergence import convergence
from mecheval.figures.faithfulness import faithfulness
from mecheval.figures.heatmap import heatmap
from mecheval.figures.inside import inside
from mecheval.figures.lines import curves
from mecheval.figures.matrix import accuracy, depth, holdout, panels
from mecheval.figures.states import states
from mecheval.figures.vegalite import SCALE, Chart
from mecheval.files import write_atomic
from mecheval.store import Store
from mecheval.store.store import snapshot_of
from mecheval.studies import StudyTable

__all__ = [
    "SCALE", "Chart", "accuracy", "calibration", "capacity", "check_suffix", "convergence", "curves", "depth",
    "draw", "faithfulness", "heatmap", "holdout", "inside", "panels", "save", "states", "study_charts",
]  # fmt: skip

FIGURES = {
    "accuracy": accuracy, "capacity": capacity, "convergence": convergence, "depth": depth, "holdout": holdout,
    "inside": inside, "panels": panels,
}  # fmt: skip
"""The figures that a study can name."""
SUFFIXES = (".json", ".pdf", ".png", ".svg")


def draw(table: StudyTable, title: str) -> Chart:
    """The figure of a study."""
    wanted = table.study.draw
    if not isinstance(wanted, str):
        chart: Chart = wanted(table, title)
        return chart
    if wanted not in FIGURES:
        raise UnknownName("figure", wanted, FIGURES)
    return FIGURES[wanted](table, title)


def study_charts(table: StudyTable, store: Store, scale: str) -> dict[str, Chart]:
    """The figure and the learning curves of a study, by the names of their files; `table` has every run."""
    study, runs = table.study, table.frame["run"]
    about = f"(figure {study.figure}, scale {scale})"
    drawn = {f"{study.name}-{scale}": draw(table.best(), f"{study.question} {about}")}
    if (table.frame["status"] != "missing").any():
        history = snapshot_of(store, "history", among=set(runs)).query("select * from history")
        if len(history):
            drawn[f"{study.name}-{scale}-curves"] = curves(table, history, f"{study.name}: learning curves {about}")
    return drawn


def check_suffix(path: str | Path) -> str:
    """The suffix of the file, or an error that lists those that can be written; ask before a long computation."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"cannot write a figure as {Path(path).name!r}; choose {', '.join(SUFFIXES)} at the end.")
    return suffix


def save(chart: Chart, path: str | Path) -> None:
    """Write a chart as .png, .svg, .pdf or .json (its Vega-Lite specification); the write is atomic."""
    made: dict[str, Callable[[], str | bytes]] = {
        ".pdf": chart.pdf, ".png": chart.png, ".svg": chart.svg, ".json": lambda: chart.to_json() + "\n",
    }  # fmt: skip
    content = made[check_suffix(path)]()
    try:
        write_atomic(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from None
