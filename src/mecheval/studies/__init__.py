"""The paper's studies and others: each has a grid of runs for each scale, readings and a figure."""

from importlib import import_module

from mecheval.errors import UnknownName
from mecheval.studies.study import SCALES, Reading, Study
from mecheval.studies.table import (
    StudyTable,
    best_rows,
    on_device,
    restoring,
    seeds_in,
    study_points,
    study_table,
    with_seed,
)

__all__ = [
    "PAPER", "SCALES", "STUDIES", "Reading", "Study", "StudyTable", "best_rows", "get_study", "on_device",
    "restoring",    "seeds_in", "study_name", "study_points", "study_table", "with_seed",
]  # fmt: skip

_FILES = ("paper", "beyond", "convergence", "inside", "landscape")
"""The files of studies, each with a tuple STUDIES; a new file needs its name here."""
STUDIES: dict[str, Study] = {
    study.name: study for file in _FILES for study in import_module(f"{__name__}.{file}").STUDIES
}
"""All studies by name, in the order of the paper's figures, then those that are not in the paper."""
PAPER = [name for name, study in STUDIES.items() if study.figure != "–"]
"""The studies of the paper."""
FIGURES = {f"fig{study.figure}": name for name, study in STUDIES.items() if name in PAPER}
"""The studies of the paper by their figures: fig3, fig4a."""


def study_name(word: str) -> str:
    """The name of the study for a word, which may be a figure of the paper; other words are returned unchanged."""
    return FIGURES.get(word.lower().replace("figure", "fig"), word)


def get_study(name: str) -> Study:
    """A study by name, or by its figure in the paper."""
    name = study_name(name)
    if name not in STUDIES:
        raise UnknownName("study", name, STUDIES)
    return STUDIES[name]
