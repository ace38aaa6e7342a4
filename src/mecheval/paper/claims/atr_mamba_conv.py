"""Trees with Mamba's short convolution shortened (figure 8)."""

from mecheval.paper.claims import claim
from mecheval.paper.limits import RESTORED
from mecheval.paper.rows import only
from mecheval.paper.selection import Answer, Runs, Side
from mecheval.studies.finding import NAMES


@claim(
    "Mamba learns ATR without a short convolution, but not as well as with one.", "5.3 fig 8",
    "93.4 % at width 256, below the Mamba of figure 7", any_scale=True,
)  # fmt: skip
def atr_mamba_needs_less(runs: Runs) -> Answer:
    """Mamba's likelihood with d_conv 4 is above that without a convolution, wherever the latter learnt."""
    return runs.above(only(d_conv=4), only(d_conv=0), column="original", counts="learnt")


@claim(
    "Without a convolution, or with d_conv 1, Mamba learns ATR by induction.", "5.3 fig 8",
    "restored primarily at the value", any_scale=True,
)  # fmt: skip
def atr_mamba_short_value(runs: Runs) -> list[Answer]:
    """Wherever {lost} of Mamba with d_conv 1 or none, a share of {RESTORED} or more is restored at the value."""
    return [runs.where(d_conv=d_conv).share("restored_value", at="the value").at_least(RESTORED) for d_conv in (1, 0)]


@claim(
    "Mamba of width 256 without a short convolution reaches 93.4 % in ATR, and still outperforms Based and BaseConv.",
    "5.3 fig 8", "likelihood 93.4, Based 92.2, BaseConv 89.7", also=("atr",),
)  # fmt: skip
def atr_mamba_noconv_256(runs: Runs) -> list[Answer]:
    """At d_model 256, likelihood without convolution is 93.4 %, {number};

    it is above Based's, and that is above BaseConv's.
    """
    bare, others = runs.where(d_conv=0, d_model=256), runs.of("atr").where(d_model=256)
    three = bare + others.where(mixer=("based", "base_conv"))
    mamba, based, base_conv = (
        Side(only(mixer=mixer), "original", NAMES[mixer]) for mixer in ("mamba", "based", "base_conv")
    )
    return [bare.number("original").near(0.934), three.above(mamba, based), three.above(based, base_conv)]
