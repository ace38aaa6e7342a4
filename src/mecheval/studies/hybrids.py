"""Hybrids: two layers of different mixers, in either order."""

from itertools import permutations

from mecheval.studies.scales import AT_BLOCK_1, QUICK, one_width, runs
from mecheval.studies.study import Study

KINDS = ("attention", "mamba", "gated_delta_net")
"""The mixers of which every ordered pair is a model; on a laptop, with the quickstart's task."""
PAIRS = tuple("+".join(pair) for pair in permutations(KINDS, 2))

STUDY = Study(
    name="hybrids",
    figure="–",
    question="Which layer stores and which retrieves when two layers have different mixers?",
    points=lambda scale: runs("ar", scale, QUICK if scale == "laptop" else {}, mixer=PAIRS, **one_width("ar", scale)),
    readings=AT_BLOCK_1,
    draw="panels",
)
