"""Figure 5: where Mamba's short convolutions store the association, at every learning rate."""

from mecheval.studies.scales import runs
from mecheval.studies.study import Reading, Study

RATES = {"paper": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2), "laptop": (3e-4, 1e-3, 3e-3, 1e-2)}

STUDY = Study(
    name="ar_mamba_inside",
    figure="5",
    question="After which short convolution, and at which position, does Mamba hold key and value together?",
    points=lambda scale: runs("ar", scale, {"mixer": "mamba"}, lr=RATES[scale]),
    readings=(
        Reading("conv0_at_value", "conv 0 at value", "blocks.0.mixer.conv", "value"),
        Reading("conv0_at_next_key", "conv 0 at next key", "blocks.0.mixer.conv", "next_key"),
        Reading("conv1_at_value", "conv 1 at value", "blocks.1.mixer.conv", "value"),
    ),
    every_rate=True,
    draw="panels",
)
