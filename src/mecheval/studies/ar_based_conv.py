"""Figure 4b: associative recall with other convolutions in Based."""

from mecheval.studies.scales import runs
from mecheval.studies.study import Study

STUDY = Study(
    name="ar_based_conv",
    figure="4b",
    question="Which convolution does Based need to recall: of which length, or a long one?",
    points=lambda scale: runs("ar", scale, {"mixer": "based"}, kernel_size=(1, 2, 3, 4, -1)),
    draw="accuracy",
)
