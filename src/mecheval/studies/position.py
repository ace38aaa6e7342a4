"""Figure 9: position embeddings on and off."""

from mecheval.studies.scales import both_tasks
from mecheval.studies.study import Study

STUDY = Study(
    name="position",
    figure="9",
    question="Which mixers need position embeddings, and which are worse with them?",
    points=lambda scale: both_tasks(scale, positions=("none", "learned")),
    draw="accuracy",
)
