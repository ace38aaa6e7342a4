"""The query's rightmost sibling on trees (figure 13)."""

from mecheval.paper.claims import claim
from mecheval.paper.limits import ABOVE_80
from mecheval.paper.rows import but, only
from mecheval.paper.selection import Answer, Runs

LOCAL = {"mixer": ("based", "base_conv"), "n_layers": 1}
"""Models that have nothing but a local convolution."""


@claim(
    "All models but Based and BaseConv of one layer find the sibling in more than 80 % of the documents.", "D.5 fig 13",
    "accuracy above 80 at every width",
)  # fmt: skip
def sibling(runs: Runs) -> Answer:
    """Accuracy of all models but 1-layer Based and BaseConv is above 80 %, {number}."""
    return runs.but(**LOCAL).number("test_accuracy", among="ended").at_least(ABOVE_80)


@sibling.smaller
def local_ones_are_worse(runs: Runs) -> Answer:
    """At every d_model, all models are better than 1-layer Based and BaseConv, which have a local convolution only."""
    return runs.above(but(**LOCAL), only(**LOCAL))
