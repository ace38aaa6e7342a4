"""Figure 11: one layer against two."""

from mecheval.figures import accuracy
from mecheval.studies.scales import MIXERS, one_width, runs
from mecheval.studies.study import Study
from mecheval.sweep import Point


def points(scale: str) -> list[Point]:
    """Both tasks, with one layer and two."""
    axes = {"mixer": MIXERS, "n_layers": (1, 2)}
    return [
        point for task, width in (("ar", 128), ("atr", 64))
        for point in runs(task, scale, task=(task,), **axes, **one_width(scale, width))
    ]  # fmt: skip


STUDY = Study(
    name="one_layer",
    figure="11",
    question="Which mixers recall with a single layer, where induction is impossible?",
    points=points,
    draw=accuracy,
)
