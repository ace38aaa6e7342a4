"""Pairs (figure 3): who recalls, and where a clean activation restores it."""

from mecheval.paper.claims import claim
from mecheval.paper.limits import RESTORED
from mecheval.paper.rows import but, only
from mecheval.paper.selection import Answer, Runs


@claim(
    "Attention recalls every answer in AR from width 32 on.", "4.2", "AR, d>=32, attention",
    "accuracy: 100.0 (likelihood 100 too at d>=32; 99.9 at 64)",
)  # fmt: skip
def ar_attention_acc(runs: Runs) -> Answer:
    """accuracy of attention is 100 %, {number}, at d_model 32, 64, 128 and 256"""
    return runs.where(mixer="attention", d_model=(32, 64, 128, 256)).number("test_accuracy").near(1.0)


@ar_attention_acc.smaller
def unbeaten(runs: Runs) -> Answer:
    """no mixer is more accurate than attention (by {TIE:.0%}) at any d_model from 32 where one learnt"""
    return runs.but(d_model=16).unbeaten(only(mixer="attention"), but(mixer="attention"), counts="learnt", control=None)


@claim(
    "In AR, attention and Based store the key at the value, for induction.", "4.2 fig 3",
    "AR, attention and based, input of layer 1", "restored: at the value (induction)", any_scale=True,
)  # fmt: skip
def ar_where_value(runs: Runs) -> list[Answer]:
    """wherever attention and Based learnt (original - corrupted above {learnt}),

    a share of {RESTORED} or more is restored at the value
    """
    return [runs.where(mixer=mixer).share("restored_value", at="the value").at_least(RESTORED)
            for mixer in ("attention", "based")]  # fmt: skip


@claim(
    "In AR, Mamba and DeltaNet retrieve directly, by layer 0 at the query; only Mamba of width 32 at the key.",
    "4.2 fig 3", "AR, mamba and delta_net, input of layer 1",
    "restored: at the query (mamba at d=32: at the key; h3 and base_conv did not learn)",
)  # fmt: skip
def ar_where_query(runs: Runs) -> list[Answer]:
    """wherever Mamba and DeltaNet learnt (original - corrupted above {learnt}),

    a share of {RESTORED} or more is restored at the query, and at the key for Mamba of width 32
    """
    mamba = runs.where(mixer="mamba")
    return [
        mamba.where(d_model=(16, 64, 128, 256)).share("restored_query", at="the query").at_least(RESTORED),
        runs.where(mixer="delta_net").share("restored_query", at="the query").at_least(RESTORED),
        mamba.where(d_model=32).share("restored_key", at="the key").at_least(RESTORED),
    ]


@ar_where_query.smaller
def at_the_query(runs: Runs) -> list[Answer]:
    """wherever Mamba and DeltaNet learnt, a share of {RESTORED} or more is restored at the query"""
    return [runs.where(mixer=mixer).share("restored_query", at="the query").at_least(RESTORED)
            for mixer in ("mamba", "delta_net")]  # fmt: skip


@claim(
    "In AR, Hyena retrieves directly, by layer 0 at the query.", "4.2 fig 3", "AR, hyena, input of layer 1",
    "restored: at the query (near zero below d=128)", any_scale=True,
)  # fmt: skip
def ar_where_hyena(runs: Runs) -> Answer:
    """wherever Hyena learnt (original - corrupted above {learnt}),

    a share of {RESTORED} or more is restored at the query
    """
    return runs.where(mixer="hyena").share("restored_query", at="the query").at_least(RESTORED)


@claim(
    "The best Based reaches a likelihood of 98.9 % in AR.", "4.2", "AR, based, best d",
    "likelihood: 98.9 (accuracy 99.06)",
)  # fmt: skip
def ar_based_best(runs: Runs) -> Answer:
    """the best likelihood of Based over d_model is 98.9 %, {number}"""
    return runs.where(mixer="based").number("original").best_near(0.989)


@claim(
    "Mamba of width 256 reaches a likelihood of 90.3 % in AR.", "4.2", "AR, mamba, d=256",
    "likelihood: 90.3 (accuracy 91.25)",
)  # fmt: skip
def ar_mamba_256(runs: Runs) -> Answer:
    """likelihood of Mamba at d_model 256 is 90.3 %, {number}"""
    return runs.where(mixer="mamba", d_model=256).number("original").near(0.903)
