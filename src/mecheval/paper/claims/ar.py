"""Pairs (figure 3): who recalls, and where a clean activation restores it."""

from mecheval.paper.claims import claim
from mecheval.paper.limits import FULLY, RESTORED, TIE
from mecheval.paper.rows import but, only
from mecheval.paper.selection import Answer, Runs

WIDE = (64, 128, 256)


@claim(
    "Only attention and Based fully succeed at AR; Mamba and DeltaNet are close behind, and H3 and Hyena fail.",
    "abstract, 4.2", "likelihood at widths 64 to 256: attention 99.9 to 100, Based 98.5 to 98.9, Mamba 79.4 to 90.3, "
    "DeltaNet 55.5 to 85.3, H3 1.0 to 1.8, Hyena 2.6 to 29.9", any_scale=True,
)  # fmt: skip
def ar_who_succeeds(runs: Runs) -> list[Answer]:
    """At d_model 64 and more, accuracy is {FULLY:.0%} or more for attention and Based;

    from half of the way between guessing and 100 % to {FULLY:.0%} for Mamba and DeltaNet; below that for H3 and Hyena.
    """
    wide = runs.where(d_model=WIDE)
    full, close, out = (
        wide.where(mixer=mixers).number("test_accuracy")
        for mixers in (("attention", "based"), ("mamba", "delta_net"), ("h3", "hyena"))
    )
    success = runs.about.success
    return [full.at_least(FULLY), close.at_least(success), close.below(FULLY), out.below(success, failing=True)]


@claim(
    "Mamba and DeltaNet are clearly better at AR than H3, Hyena and BaseConv.", "4.2",
    "likelihood at widths 32 to 256: 55.5 to 90.3 against 0.1 to 29.9", any_scale=True,
)  # fmt: skip
def ar_clearly_better(runs: Runs) -> Answer:
    """At every d_model from 32, the accuracies of Mamba and DeltaNet are above those of H3, Hyena and BaseConv."""
    better, others = only(mixer=("mamba", "delta_net")), only(mixer=("h3", "hyena", "base_conv"))
    return runs.but(d_model=16).above(better, others, counts="learnt", control=0)


@claim(
    "Attention reaches 100 % likelihood and accuracy in AR from width 32 on.", "4.2",
    "likelihood and accuracy 100 % from width 32 on (99.9 at 64)",
)  # fmt: skip
def ar_attention_acc(runs: Runs) -> list[Answer]:
    """Accuracy and likelihood of attention are 100 %, {number}, at d_model 32, 64, 128 and 256."""
    attention = runs.where(mixer="attention", d_model=(32, *WIDE))
    return [attention.number("test_accuracy").near(1.0), attention.number("original").near(1.0)]


@ar_attention_acc.smaller
def unbeaten(runs: Runs) -> Answer:
    """No mixer is more accurate than attention (by {TIE:.0%}) at any d_model from 32 where one learnt."""
    return runs.but(d_model=16).above(
        only(mixer="attention"), but(mixer="attention"), -TIE, counts="learnt", control=None
    )


@claim(
    "Based of width 128 reaches a likelihood of 98.9 % in AR, its best.", "4.2", "likelihood 98.9 (accuracy 99.06)",
)  # fmt: skip
def ar_based_best(runs: Runs) -> Answer:
    """The likelihood of Based at d_model 128 is 98.9 %, {number}."""
    return runs.where(mixer="based", d_model=128).number("original").near(0.989)


@claim(
    "Mamba of width 256 reaches a likelihood of 90.3 % in AR.", "4.2", "likelihood 90.3 (accuracy 91.25)",
)  # fmt: skip
def ar_mamba_256(runs: Runs) -> Answer:
    """The likelihood of Mamba at d_model 256 is 90.3 %, {number}."""
    return runs.where(mixer="mamba", d_model=256).number("original").near(0.903)


@claim(
    "In AR, attention and Based store the key at the value, for induction.", "4.2 fig 3",
    "restored at the value, wherever they learnt", any_scale=True,
)  # fmt: skip
def ar_where_value(runs: Runs) -> list[Answer]:
    """Wherever {lost} of attention and Based, a share of {RESTORED} or more is restored at the value."""
    return [runs.where(mixer=mixer).share("restored_value", at="the value").at_least(RESTORED)
            for mixer in ("attention", "based")]  # fmt: skip


@claim(
    "In AR, Mamba and DeltaNet retrieve directly, by layer 0 at the query; only Mamba of width 32 at the key.",
    "4.2 fig 3", "restored at the query; Mamba of width 32 at the key",
)  # fmt: skip
def ar_where_query(runs: Runs) -> list[Answer]:
    """Wherever {lost} of Mamba and DeltaNet, a share of {RESTORED} or more is restored

    at the query, and at the key for Mamba of width 32.
    """
    mamba = runs.where(mixer="mamba")
    return [
        mamba.where(d_model=(16, *WIDE)).share("restored_query", at="the query").at_least(RESTORED),
        runs.where(mixer="delta_net").share("restored_query", at="the query").at_least(RESTORED),
        mamba.where(d_model=32).share("restored_key", at="the key").at_least(RESTORED),
    ]


@ar_where_query.smaller
def at_the_query(runs: Runs) -> list[Answer]:
    """Wherever {lost} of Mamba and DeltaNet, a share of {RESTORED} or more is restored at the query."""
    return [runs.where(mixer=mixer).share("restored_query", at="the query").at_least(RESTORED)
            for mixer in ("mamba", "delta_net")]  # fmt: skip


@claim(
    "In AR, Hyena retrieves directly, by layer 0 at the query.", "4.2 fig 3",
    "restored at the query (near zero below width 128)", any_scale=True,
)  # fmt: skip
def ar_where_hyena(runs: Runs) -> Answer:
    """Wherever {lost} of Hyena, a share of {RESTORED} or more is restored at the query."""
    return runs.where(mixer="hyena").share("restored_query", at="the query").at_least(RESTORED)
