"""Trees (figure 7): who recalls, and where a clean activation restores it."""

from statistics import fmean

from mecheval.paper.claims import claim
from mecheval.paper.limits import RESTORED, TIE, WELL_ABOVE_ZERO
from mecheval.paper.rows import but, only
from mecheval.paper.selection import Answer, Runs
from mecheval.studies.axes import MIXERS

INDUCTION = ("attention", "based", "base_conv")
PLACES = {"the value": ("restored_value",), "key or query": ("restored_key", "restored_query")}
"""Induction, and direct retrieval."""


@claim(
    "Mamba's likelihood in ATR matches or exceeds that of all other architectures, at every width.", "5.2 fig 7",
    "best, or as good as the best, at every width", any_scale=True,
)  # fmt: skip
def atr_mamba_best(runs: Runs) -> Answer:
    """Mamba's likelihood is at most {TIE:.0%} below that of every other mixer, at every d_model where one learnt."""
    sides = only(mixer="mamba"), but(mixer="mamba")
    return runs.above(*sides, -TIE, column="original", counts="learnt", control=None)


@claim(
    "In ATR, attention, Based and BaseConv store the key at the value, for induction.", "5.2 fig 7",
    "largely restored at the value", any_scale=True,
)  # fmt: skip
def atr_where_value(runs: Runs) -> list[Answer]:
    """Wherever {lost} of attention, Based and BaseConv, a share of {RESTORED} or more is restored at the value."""
    return [runs.where(mixer=mixer).share("restored_value", at="the value").at_least(RESTORED)
            for mixer in INDUCTION]  # fmt: skip


@claim(
    "In ATR, the other mixers retrieve directly, at the key or at the query.", "5.2 fig 7",
    "restored at the key (by layer 1) or at the query (by layer 0)", any_scale=True,
)  # fmt: skip
def atr_where_direct(runs: Runs) -> list[Answer]:
    """Wherever {lost} of Mamba, DeltaNet, H3 and Hyena, a share of {RESTORED} or more is restored at key or query."""
    return [runs.where(mixer=mixer).share("restored_key", "restored_query", at="key or query").at_least(RESTORED)
            for mixer in ("mamba", "delta_net", "h3", "hyena")]  # fmt: skip


@claim(
    "All architectures learn the same mechanism on trees as on pairs.", "abstract, 5.2",
    "the same trends as on pairs, with more variance between architectures", any_scale=True, also=("ar",),
)  # fmt: skip
def atr_same_mechanism(runs: Runs) -> list[Answer]:
    """Each mixer is restored on trees where its runs on pairs are, wherever {lost}:

    by a share of {RESTORED} or more at the value, or at key or query.
    """
    answers = []
    for mixer in MIXERS:
        pairs = runs.of("ar").where(mixer=mixer)
        for at, columns in PLACES.items():
            restored = pairs.share(*columns, at=at)
            shares = [restored.of(row) for row in pairs.learnt()]
            if shares and fmean(shares) >= RESTORED:
                answers.append(runs.where(mixer=mixer).share(*columns, at=at).at_least(RESTORED))
    return answers


@claim(
    "In ATR, the likelihood stays well above zero when the key is corrupted.", "5.2 fig 7",
    "well above 0, by memorising the grammar", any_scale=True,
)  # fmt: skip
def atr_corrupted_floor(runs: Runs) -> Answer:
    """Corrupted likelihood is {WELL_ABOVE_ZERO:.0%} or more in every setting."""
    return runs.number("corrupted", "corrupted likelihood").at_least(WELL_ABOVE_ZERO)


@claim("Based of width 256 reaches a likelihood of 92.2 % in ATR.", "5.3", "likelihood 92.2")
def atr_based_256(runs: Runs) -> Answer:
    """The likelihood of Based at d_model 256 is 92.2 %, {number}."""
    return runs.where(mixer="based", d_model=256).number("original").near(0.922)


@claim("BaseConv of width 256 reaches a likelihood of 89.7 % in ATR.", "5.3", "likelihood 89.7")
def atr_baseconv_256(runs: Runs) -> Answer:
    """The likelihood of BaseConv at d_model 256 is 89.7 %, {number}."""
    return runs.where(mixer="base_conv", d_model=256).number("original").near(0.897)
