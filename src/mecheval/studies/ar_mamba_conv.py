"""Figure 4a: associative recall with Mamba's short convolution made shorter, down to none."""

from mecheval.studies.scales import AT_BLOCK_1, one_width, runs
from mecheval.studies.study import Study

STUDY = Study(
    name="ar_mamba_conv",
    figure="4a",
    question="Does Mamba recall without its short convolution, and does it change where the association is stored?",
    points=lambda scale: runs("ar", scale, {"mixer": "mamba"}, d_conv=(4, 3, 2, 1, 0), **one_width("ar", scale)),
    readings=AT_BLOCK_1,
    draw="panels",
)
