"""Pairs with Mamba's short convolution shortened (figure 4a)."""

from mecheval.paper.claims import claim
from mecheval.paper.limits import BENEFITS
from mecheval.paper.rows import only
from mecheval.paper.selection import Answer, Runs


@claim(
    "Mamba's accuracy in AR changes in a step from d_conv 1 to d_conv 2, and is near zero below.", "4.3 fig 4a",
    "a step change in accuracy; near zero with d_conv 1 or no convolution", any_scale=True,
)  # fmt: skip
def ar_mamba_dconv_step(runs: Runs) -> Answer:
    """Where d_conv 4 succeeds, accuracy with d_conv 1 or none is {near_zero},

    and d_conv 2 gains over d_conv 1 at least half of what d_conv 4 gains over guessing.
    """
    return runs.steps(only(d_conv=0), only(d_conv=1), only(d_conv=2), only(d_conv=4))


@claim(
    "No Mamba is restored at the value in AR, whatever its convolution.", "4.3 fig 4a",
    "no checkpoint is restored at the value", any_scale=True,
)  # fmt: skip
def ar_mamba_no_value(runs: Runs) -> Answer:
    """Wherever {lost}, a share of less than {BENEFITS} is restored at the value."""
    return runs.share("restored_value", at="the value").below(BENEFITS)
