"""The quickstart: each mixer once, with a task that all of them learn in a minute."""

from mecheval.studies.scales import AT_BLOCK_1, quick
from mecheval.studies.study import Study

STUDY = Study(
    name="quickstart",
    figure="–",
    question="How does each mixer recall?",
    points=lambda scale: quick(),
    readings=AT_BLOCK_1,
)
