"""Inside Mamba on pairs, after its short convolutions (figure 5)."""

from mecheval.paper.claims import claim
from mecheval.paper.limits import RESTORED
from mecheval.paper.selection import Answer, Runs


@claim(
    "Mamba's first short convolution joins key and value at the next key, in 9 of 10 models that recall.", "4.4 fig 5",
    "AR, mamba, layer-0 conv output at next key",
    "restored: 9 of 10 performing checkpoints (the other one (d=32, lr 1e-2) restores at layer-1 value)",
    any_scale=True,
)  # fmt: skip
def ar_mamba_next_key(runs: Runs) -> Answer:
    """most runs that learnt (original - corrupted above {learnt}) have a restored share of {RESTORED} or more at

    the next key after layer 0's convolution
    """
    return runs.share("conv0_at_next_key", at="the next key after layer 0's convolution").mostly_at_least(RESTORED)
