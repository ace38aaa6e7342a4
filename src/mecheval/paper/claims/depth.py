"""Which layer answers, in models of one, two and three layers (figure 12)."""

from mecheval.paper.claims import claim
from mecheval.paper.selection import Answer, Runs


@claim(
    "At any depth, Hyena retrieves in layer 0, and Mamba in layer 0 or the last.", "D.4 fig 12",
    "AR, 1-3 layers, hyena and mamba",
    "layer of attribution at query: layer 0 (some mamba: last layer, never layer 1 of 3)",
    any_scale=True,
)  # fmt: skip
def layers_hyena_mamba(runs: Runs) -> list[Answer]:
    """in most models of 2 and 3 layers that learnt, attribution at the query is highest in layer 0 (Hyena),

    in layer 0 or the last (Mamba)
    """
    return [runs.mostly_in("hyena", 0), runs.mostly_in("mamba", 0, -1)]


@claim(
    "At any depth, attention, Based and BaseConv retrieve in layer 1.", "D.4 fig 12",
    "AR, 1-3 layers, attention, based, base_conv", "layer of attribution at query: layer 1 (some also layer 2 of 3)",
    any_scale=True,
)  # fmt: skip
def layers_attention_based(runs: Runs) -> list[Answer]:
    """in most models of 2 and 3 layers that learnt, attribution at the query is highest in layer 1,

    for attention, for Based, and for BaseConv if it learnt
    """
    return [runs.mostly_in("attention", 1), runs.mostly_in("based", 1), runs.mostly_in("base_conv", 1, optional=True)]
