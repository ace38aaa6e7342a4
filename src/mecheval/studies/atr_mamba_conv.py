"""Figure 8: associative treecall with Mamba's short convolution made shorter, down to none."""

from mecheval.studies.scales import AT_BLOCK_1, runs
from mecheval.studies.study import Study

STUDY = Study(
    name="atr_mamba_conv",
    figure="8",
    question="How does Mamba recall over trees without its short convolution?",
    points=lambda scale: runs("atr", scale, {"mixer": "mamba"}, d_conv=(4, 3, 2, 1, 0)),
    readings=AT_BLOCK_1,
    draw="panels",
)
