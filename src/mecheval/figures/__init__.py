"""Data frames to charts, and charts to files: nothing here needs a model, a network or a browser."""

from __future__ import annotations

from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from mecheval.errors import UnknownName, UserError
from mecheval.figures.bars import accuracy
from mecheval.figures.heatmap import heatmap
from mecheval.figures.layers import depth
from mecheval.figures.learning import curves
from mecheval.figures.matrix import panels
from mecheval.figures.scatter import holdout
from mecheval.files import write_atomic
from mecheval.store import Store
from mecheval.store.store import snapshot_of
from mecheval.studies import StudyTable

if TYPE_CHECKING:  # slow to import
    from altair.typing import ChartType

__all__ = [
    "accuracy",
    "check_suffix",
    "curves",
    "depth",
    "draw",
    "heatmap",
    "holdout",
    "panels",
    "save",
    "study_charts",
]

FIGURES = {"accuracy": accuracy, "depth": depth, "holdout": holdout, "panels": panels}
"""The figures that a study can name."""
SUFFIXES = (".json", ".png", ".svg")
SCALE = 2
"""Pixels of a PNG for each of the chart's, so that it is sharp on paper and on dense screens."""


def draw(table: StudyTable, title: str) -> ChartType:
    """The figure of a study."""
    wanted = table.study.draw
    if not isinstance(wanted, str):
        chart: ChartType = wanted(table, title)
        return chart
    if wanted not in FIGURES:
        raise UnknownName("figure", wanted, FIGURES)
    return FIGURES[wanted](table.frame, title)


def study_charts(table: StudyTable, store: Store, scale: str) -> dict[str, ChartType]:
    """The study's figure and its learning curves, by the name of their files; `table` has every run."""
    study, frame = table.study, table.frame
    about = f"(figure {study.figure}, scale {scale})"
    store = snapshot_of(store, "history", among=set(frame["run"]))
    history = store.query("select * from history") if (frame["status"] != "missing").any() else frame[:0]
    drawn = {f"{study.name}-{scale}": draw(table.best(), f"{study.question} {about}")}
    if len(history):
        drawn[f"{study.name}-{scale}-curves"] = curves(history, frame, f"{study.name}: learning curves {about}")
    return drawn


def check_suffix(path: str | Path) -> str:
    """The file's suffix, or an error that lists those that can be written; worth asking before a long computation."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"cannot write a figure as {Path(path).name!r}; choose {', '.join(SUFFIXES)} at the end.")
    return suffix


def save(chart: ChartType, path: str | Path) -> None:
    """Write a chart as .png, .svg or .json (its Vega-Lite specification), whole or not at all."""
    suffix = check_suffix(path)
    content: str | bytes
    if suffix == ".json":
        content = chart.to_json(indent=1) + "\n"
    elif suffix == ".svg":
        drawn = StringIO()
        chart.save(drawn, format="svg")
        said = chart.description if isinstance(chart.description, str) else ""
        labelled = f"<svg aria-label={quoteattr(said)} "  # which Vega leaves to the page around the picture
        content = drawn.getvalue().replace("<svg ", labelled, 1)
    else:
        pixels = BytesIO()
        chart.save(pixels, format="png", scale_factor=SCALE)
        content = pixels.getvalue()
    try:
        write_atomic(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from None
