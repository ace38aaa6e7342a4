"""Trees (figure 7): who recalls, and where a clean activation restores it."""

from mecheval.paper.claims import claim
from mecheval.paper.limits import RESTORED, WELL_ABOVE_ZERO
from mecheval.paper.rows import but, only
from mecheval.paper.selection import Answer, Runs


@claim(
    "Mamba has the highest likelihood in ATR, at every width.", "5.2 fig 7", "ATR, mamba",
    "likelihood: best of all at every d", any_scale=True,
)  # fmt: skip
def atr_mamba_best(runs: Runs) -> Answer:
    """Mamba's likelihood is above that of every other mixer, at every d_model where one learnt"""
    return runs.above(only(mixer="mamba"), but(mixer="mamba"), column="original", counts="learnt", control=None)


@claim(
    "In ATR, attention, Based and BaseConv store the key at the value, for induction.", "5.2 fig 7",
    "ATR, attention, based and base_conv, input of layer 1", "restored: primarily at the value (induction)",
    any_scale=True,
)  # fmt: skip
def atr_where_value(runs: Runs) -> list[Answer]:
    """wherever attention, Based and BaseConv learnt, a share of {RESTORED} or more is restored at the value"""
    return [runs.where(mixer=mixer).share("restored_value", at="the value").at_least(RESTORED)
            for mixer in ("attention", "based", "base_conv")]  # fmt: skip


@claim(
    "In ATR, Mamba, DeltaNet and Hyena retrieve directly, at the key or at the query.", "5.2 fig 7",
    "ATR, mamba, delta_net and hyena, input of layer 1", "restored: at the key or the query (direct retrieval)",
    any_scale=True,
)  # fmt: skip
def atr_where_direct(runs: Runs) -> list[Answer]:
    """wherever Mamba, DeltaNet and Hyena learnt,

    a share of {RESTORED} or more is restored at the key or at the query
    """
    return [runs.where(mixer=mixer).share("restored_key", "restored_query", at="key or query").at_least(RESTORED)
            for mixer in ("mamba", "delta_net", "hyena")]  # fmt: skip


@claim(
    "In ATR, the likelihood stays well above zero when the key is corrupted.", "5.2 fig 7", "ATR, any",
    "corrupted likelihood: well above 0 (memorisation of the grammar)", any_scale=True,
)  # fmt: skip
def atr_corrupted_floor(runs: Runs) -> Answer:
    """corrupted likelihood is {WELL_ABOVE_ZERO:.0%} or more in every setting"""
    return runs.number("corrupted", "corrupted likelihood").at_least(WELL_ABOVE_ZERO)


@claim("Based of width 256 reaches a likelihood of 92.2 % in ATR.", "5.3", "ATR, based, d=256", "likelihood: 92.2")
def atr_based_256(runs: Runs) -> Answer:
    """likelihood of Based at d_model 256 is 92.2 %, {number}"""
    return runs.where(mixer="based", d_model=256).number("original").near(0.922)


@claim(
    "BaseConv of width 256 reaches a likelihood of 89.7 % in ATR.", "5.3", "ATR, base_conv, d=256", "likelihood: 89.7"
)
def atr_baseconv_256(runs: Runs) -> Answer:
    """likelihood of BaseConv at d_model 256 is 89.7 %, {number}"""
    return runs.where(mixer="base_conv", d_model=256).number("original").near(0.897)
