"""Capacity: how many pairs a mixer recalls, by the size of its state."""

from mecheval.mixers.options import BUILT_IN
from mecheval.studies.scales import FAST, PREFERRED, runs
from mecheval.studies.study import Study
from mecheval.sweep import Point

PAIRS = (2, 4, 8, 16, 32, 64)


def points(scale: str) -> list[Point]:
    """Every mixer and number of pairs; on a laptop with few symbols, one width and a learning rate for each mixer."""
    if scale != "laptop":
        return runs("ar", scale, mixer=tuple(BUILT_IN), pairs=PAIRS)
    return [
        point
        for mixer in BUILT_IN
        for pairs in PAIRS
        for point in runs(
            "ar", scale, {"keys": 128, "values": 128, "queries": pairs, "interchange_every": None},
            mixer=(mixer,), pairs=(pairs,), d_model=(64,), lr=(PREFERRED.get(mixer, FAST),),
        )
    ]  # fmt: skip


STUDY = Study(
    name="capacity",
    figure="–",
    question="How many pairs does a mixer recall at 90 %, and how large is the state that holds them?",
    points=points,
    draw="capacity",
)
