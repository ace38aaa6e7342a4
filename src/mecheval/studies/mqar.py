"""Figure 2 of zoology: multi-query associative recall by width, in four sizes."""

from mecheval.studies.scales import MIXERS
from mecheval.studies.study import Study
from mecheval.sweep import Point, grid

CELLS = {4: (64, 512), 8: (128, 512), 16: (256, 256), 64: (512, 128)}
"""Pairs -> length of a document, and the batch size with which zoology trains."""
WIDTHS, RATES = (64, 128, 256, 512), (1e-4, 4.642e-4, 2.154e-3, 1e-2)
ALL = {"vocab": 8192, "mlp": False, "data.documents": 100_000, "weight_decay": 0.1}
PAPER = {"epochs": 64, "stop_at": 0.99, "evaluate.documents": 3000}
LAPTOP = {"batch_size": 64, "steps": 4000, "evaluate.every": 250}


def points(scale: str) -> list[Point]:
    """All cells; on a laptop the two small ones, one width and one rate. As in zoology, blocks have no MLP."""
    small = scale == "laptop"
    made = []
    for pairs in list(CELLS)[: 2 if small else None]:
        length, size = CELLS[pairs]
        own = {
            "batch_size": size,
            "evaluate.every": 100_000 // size,
            **ALL,
            **(LAPTOP if small else PAPER),
            "length": length,
        }
        axes = {
            "pairs": (pairs,),
            "mixer": MIXERS,
            "d_model": (64,) if small else WIDTHS,
            "lr": (2e-3,) if small else RATES,
        }
        made += grid({"task": "mqar", "preset": scale, **own}, **axes)
    return made


STUDY = Study(
    name="mqar",
    figure="–",
    question="How wide must a mixer be to recall 4, 8, 16 or 64 pairs, each of them asked?",
    points=points,
    draw="accuracy",
)
