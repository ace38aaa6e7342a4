"""Pairs with other convolutions of Based (figure 4b)."""

from mecheval.paper.claims import claim
from mecheval.paper.rows import only
from mecheval.paper.selection import Answer, Runs


@claim(
    "Based fails in AR with a kernel of 1 and with a long convolution.", "4.3 fig 4b", "accuracy near zero",
    any_scale=True,
)  # fmt: skip
def ar_based_conv(runs: Runs) -> Answer:
    """Where kernel 3 succeeds, accuracy with kernel 1 or a long convolution is {near_zero}."""
    return runs.guess(only(kernel_size=1), only(kernel_size=-1), only(kernel_size=3))
