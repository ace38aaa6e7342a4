"""Figure 11: one layer against two."""

from mecheval.studies.scales import both_tasks
from mecheval.studies.study import Study

STUDY = Study(
    name="one_layer",
    figure="11",
    question="Which mixers recall with a single layer, where induction is impossible?",
    points=lambda scale: both_tasks(scale, n_layers=(1, 2)),
    draw="accuracy",
)
