"""Convergence: which learning rates work, how soon, and whether the mechanism appears before the accuracy."""

from mecheval.studies.paces import paces, says
from mecheval.studies.scales import AT_BLOCK_1, MIXERS, QUICK, RATES, runs
from mecheval.studies.study import Study
from mecheval.sweep import Point

LAPTOP = {
    **QUICK, "steps": 1500, "evaluate.every": 25, "evaluate.documents": 128, "interchange_every": 50,
}  # fmt: skip
"""The quickstart's task, with three quarters of its steps."""


def points(scale: str) -> list[Point]:
    """Every mixer and learning rate; on a laptop at one width."""
    if scale != "laptop":
        return runs("ar", scale, {"interchange_every": 500}, mixer=MIXERS)
    rates = [rate for rate in RATES["ar", "paper"] if rate >= 3e-4]
    return runs("ar", scale, LAPTOP, mixer=MIXERS, d_model=(64,), lr=rates)


STUDY = Study(
    name="convergence",
    figure="–",
    question="Which learning rates work, how soon, and does the mechanism appear before the accuracy?",
    points=points,
    readings=AT_BLOCK_1,
    draw="convergence",
    every_rate=True,
    columns=paces,
    says=says,
)
