"""Figure 3: associative recall with seven mixers."""

from mecheval.studies.scales import AT_BLOCK_1, MIXERS, runs
from mecheval.studies.study import Study

STUDY = Study(
    name="ar",
    figure="3",
    question="Which mixers recall, and where does a clean activation bring the answer back?",
    points=lambda scale: runs("ar", scale, mixer=MIXERS),
    readings=AT_BLOCK_1,
    draw="panels",
)
