"""Which layer answers, in models of one, two and three layers (figure 12)."""

from mecheval.paper.claims import claim
from mecheval.paper.rows import only
from mecheval.paper.selection import Answer, Runs

TWO, THREE = only(n_layers=2), only(n_layers=3)


@claim(
    "Models of three layers are about as good in AR as models of two, but for Mamba of width 32.", "D.4 fig 12",
    "about the same", any_scale=True,
)  # fmt: skip
def layers_alike(runs: Runs) -> Answer:
    """Accuracies with 2 layers and with 3 are {number} of each other, for all mixers and widths but Mamba's 32."""
    return runs.but(mixer="mamba", d_model=32).level(TWO, THREE, by=("mixer", "d_model"))


@claim(
    "Mamba of width 32 drops in AR with three layers.", "D.4 fig 12",
    "a large drop, perhaps only a failure of optimisation",
)  # fmt: skip
def layers_mamba_32(runs: Runs) -> Answer:
    """Accuracy of Mamba at d_model 32 with 2 layers is more than 10 points above that with 3."""
    return runs.where(mixer="mamba", d_model=32).above(TWO, THREE, runs.about.limits.tolerance)


@claim(
    "At any depth, Hyena retrieves in layer 0, and Mamba in layer 0 or the last.", "D.4 fig 12",
    "they prefer layer 0; some Mamba the last layer, never layer 1 of 3", any_scale=True,
)  # fmt: skip
def layers_hyena_mamba(runs: Runs) -> list[Answer]:
    """In most models of 2 and 3 layers where {lost}, attribution at the query

    is highest in layer 0 (Hyena), in layer 0 or the last (Mamba).
    """
    return [runs.mostly_in("hyena", 0), runs.mostly_in("mamba", 0, -1)]


@claim(
    "At any depth, attention, Based and BaseConv retrieve in layer 1.", "D.4 fig 12",
    "they prefer layer 1; some attention and Based also layer 2 of 3", any_scale=True,
)  # fmt: skip
def layers_attention_based(runs: Runs) -> list[Answer]:
    """In most models of 2 and 3 layers where {lost}, attribution at the query

    is highest in layer 1, for attention, for Based, and for BaseConv if it learnt.
    """
    return [runs.mostly_in("attention", 1), runs.mostly_in("based", 1), runs.mostly_in("base_conv", 1, optional=True)]
