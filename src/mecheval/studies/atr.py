"""Figure 7: associative treecall with seven mixers."""

from mecheval.studies.scales import AT_BLOCK_1, MIXERS, runs
from mecheval.studies.study import Study

STUDY = Study(
    name="atr",
    figure="7",
    question="Which mixers recall over trees, and where does a clean activation bring the answer back?",
    points=lambda scale: runs("atr", scale, mixer=MIXERS),
    readings=AT_BLOCK_1,
    draw="panels",
)
