"""Charts of study tables and effects, and how they are saved; none of it needs a model, a network or a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mecheval.errors import UnknownName, UserError
from mecheval.figures.convergence import convergence
from mecheval.figures.heatmap import heatmap
from mecheval.figures.landscape import landscapes
from mecheval.figures.lines import curves, faithfulness
from mecheval.figures.matrix import accuracy, depth, holdout, panels
from mecheval.figures.points import calibration, capacity, shares
from mecheval.figures.reads import inside
from mecheval.figures.states import states
from mecheval.figures.vegalite import SCALE, Chart, check_renderer, html
from mecheval.files import check_output, write_output
from mecheval.store import Store
from mecheval.store.store import snapshot_of
from mecheval.studies import StudyTable

__all__ = [
    "SCALE", "Chart", "accuracy", "calibration", "capacity", "check_renderer", "check_suffix", "convergence", "curves",
    "depth", "draw", "faithfulness", "heatmap", "holdout", "inside", "panels", "save", "shares", "states",
    "study_charts",
]  # fmt: skip

FIGURES = {
    "accuracy": accuracy, "capacity": capacity, "convergence": convergence, "depth": depth, "holdout": holdout,
    "inside": inside, "landscapes": landscapes, "panels": panels,
}  # fmt: skip
"""The figures that a study can name."""
SUFFIXES = (".html", ".json", ".pdf", ".png", ".svg")


def draw(table: StudyTable, title: str) -> Chart:
    """The figure of a study."""
    if table.frame.empty:
        raise UserError("there are no runs to show.")
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
    about = f"(scale {scale})" if study.figure == "–" else f"(figure {study.figure}, scale {scale})"
    drawn = {f"{study.name}-{scale}": draw(table.best(), f"{study.question} {about}")}
    if (table.frame["status"] != "missing").any():
        history = snapshot_of(store, "history", among=set(runs)).query("select * from history")
        if len(history):
            drawn[f"{study.name}-{scale}-curves"] = curves(table, history, f"{study.name}: learning curves {about}")
    return drawn


def check_suffix(path: str | Path) -> str:
    """The suffix of the file, or an error if no figure can be written there; call it before a long computation."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"cannot write a figure as {Path(path).name!r}; choose {', '.join(SUFFIXES)} at the end.")
    check_output(path)
    if suffix != ".json":
        check_renderer()
    return suffix


def save(chart: Chart, path: str | Path) -> None:
    """Write a chart as .png, .svg, .pdf, .html or .json (its Vega-Lite specification); the write is atomic."""
    made: dict[str, Callable[[], str | bytes]] = {
        ".html": lambda: html(chart), ".json": lambda: chart.to_json() + "\n", ".pdf": chart.pdf, ".png": chart.png,
        ".svg": chart.svg,
    }  # fmt: skip
    write_output(path, made[check_suffix(path)]())
