"""Position embeddings on and off (figure 9)."""

from mecheval.paper.claims import claim
from mecheval.paper.rows import only
from mecheval.paper.selection import Answer, Runs

WITHOUT, WITH = only(positions="none"), only(positions="learned")


@claim(
    "Attention fails in AR without position embeddings.", "D.1 fig 9",
    "accuracy 5.62 without and 100 with, at width 256",
)  # fmt: skip
def ar_attention_nope(runs: Runs) -> list[Answer]:
    """Accuracy of attention at d_model 256 is 5.62 % without position embeddings and 100 % with, {number}."""
    attention = runs.where(task="ar", mixer="attention", d_model=256)
    return [attention.where(positions=positions).number("test_accuracy").near(paper)
            for positions, paper in (("none", 0.0562), ("learned", 1.0))]  # fmt: skip


@ar_attention_nope.smaller
def attention_guesses(runs: Runs) -> Answer:
    """Where attention with position embeddings succeeds, without them its accuracy is {near_zero}."""
    return runs.where(task="ar", mixer="attention").guess(WITHOUT, WITH)


@claim(
    "On ATR, attention of small widths is better without position embeddings.", "D.1 fig 9",
    "better without at smaller widths",
)  # fmt: skip
def atr_attention_nope(runs: Runs) -> Answer:
    """On trees, the accuracy of attention at d_model 16 and 32 is higher without position embeddings."""
    return runs.where(task="atr", mixer="attention", d_model=(16, 32)).above(WITHOUT, WITH)


@claim(
    "State space models are generally worse with position embeddings.", "D.1 fig 9", "generally worse", any_scale=True,
)  # fmt: skip
def pe_hurts_ssm(runs: Runs) -> Answer:
    """Most pairs of runs are better without position embeddings than with (all mixers but attention)."""
    return runs.but(mixer="attention").mostly_above(WITHOUT, WITH, ("task", "mixer", "d_model"))
