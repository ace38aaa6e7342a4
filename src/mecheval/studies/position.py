"""Figure 9: position embeddings on and off."""

from mecheval.figures import accuracy
from mecheval.studies.scales import MIXERS, one_width, runs
from mecheval.studies.study import Study
from mecheval.sweep import Point


def points(scale: str) -> list[Point]:
    """Both tasks, with learned position embeddings and without."""
    axes = {"mixer": MIXERS, "positions": ("none", "learned")}
    return [
        point for task, width in (("ar", 128), ("atr", 64))
        for point in runs(task, scale, task=(task,), **axes, **one_width(scale, width))
    ]  # fmt: skip


STUDY = Study(
    name="position",
    figure="9",
    question="Which mixers need position embeddings, and which are worse with them?",
    points=points,
    draw=accuracy,
)
