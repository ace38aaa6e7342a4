"""Trees with Mamba's short convolution shortened (figure 8)."""

from mecheval.paper.claims import claim
from mecheval.paper.limits import RESTORED
from mecheval.paper.selection import Answer, Runs


@claim(
    "Mamba of width 256 without a short convolution learns ATR (93.4 %) by induction.", "5.3 fig 8",
    "ATR, mamba without short conv, d=256", "likelihood: 93.4 (restored at the value: two-layer induction)",
)  # fmt: skip
def atr_mamba_noconv_256(runs: Runs) -> list[Answer]:
    """likelihood without convolution at d_model 256 is 93.4 %, {number},

    with a restored share of {RESTORED} or more at the value
    """
    bare = runs.where(d_conv=0, d_model=256)
    return [bare.number("original").near(0.934), bare.share("restored_value", at="the value").at_least(RESTORED)]


@atr_mamba_noconv_256.smaller
def without(runs: Runs) -> Answer:
    """Mamba without convolution has a restored share of {RESTORED} or more at the value wherever it learnt"""
    return runs.where(d_conv=0).share("restored_value", at="the value").at_least(RESTORED)
