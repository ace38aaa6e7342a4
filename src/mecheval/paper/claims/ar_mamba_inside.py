"""Inside Mamba on pairs, after its short convolutions (figure 5)."""

from mecheval.paper.claims import claim
from mecheval.paper.limits import RESTORED
from mecheval.paper.selection import Answer, Runs


@claim(
    "Mamba's first short convolution joins key and value at the next key, in 9 of 10 models that recall.", "4.4 fig 5",
    "restored at the next key in 9 of 10 performing checkpoints", any_scale=True,
)  # fmt: skip
def ar_mamba_next_key(runs: Runs) -> Answer:
    """Where the corruption loses more than {PERFORMS:.0%}, a share of {RESTORED} or more is restored at the next key

    after layer 0's convolution in a part of the runs that is at most 10 points below the paper's, 9 of 10; in the
    lenient reading, in most runs.
    """
    at_next_key = runs.share("conv0_at_next_key", at="the next key after layer 0's convolution")
    return at_next_key.mostly_at_least(RESTORED, (9, 10))


@claim(
    "Mamba of width 32, trained with rate 1e-2, joins key and value at the value, in layer 1.", "4.4 fig 5",
    "restored at the value after layer 1's convolution: 71.5 of 75.4 %",
)  # fmt: skip
def ar_mamba_conv1(runs: Runs) -> Answer:
    """A share of {RESTORED} or more is restored at the value after layer 1's convolution."""
    return runs.where(d_model=32, lr=1e-2).share("conv1_at_value", at="the value, conv 1").at_least(RESTORED)
