"""Several hops: from a word to the word after it, and on from there."""

from typing import Any

from mecheval.studies.scales import FAST, MIXERS, RATES, SLOW, WIDTHS
from mecheval.studies.study import Study
from mecheval.sweep import Point, grid

LAPTOP = {"nodes": 8, "symbols": 16, "queries": 4, "batch_size": 64, "steps": 2000, "evaluate.every": 100}


def points(scale: str) -> list[Point]:
    """Every mixer asked for exactly so many hops, among 8 words on a laptop and 75 otherwise."""
    small = scale == "laptop"
    base: dict[str, Any] = {"task": "khop", "preset": scale, **(LAPTOP if small else {})}
    place = ("ar", scale)
    widths, rates = ((128,), (SLOW, FAST)) if small else (WIDTHS[place], RATES[place])
    axes = {"mixer": MIXERS, "d_model": widths, "lr": rates}
    return [
        point for hops in ((1, 2, 3) if small else (1, 2, 4, 8, 16))
        for point in grid({**base, "fewest": hops}, hops=(hops,), **axes)
    ]  # fmt: skip


STUDY = Study(
    name="hops",
    figure="–",
    question="How many hops does a mixer of two layers follow?",
    points=points,
    draw="accuracy",
)
