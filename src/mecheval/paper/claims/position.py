"""Position embeddings on and off (figure 9)."""

from mecheval.paper.claims import claim
from mecheval.paper.rows import only
from mecheval.paper.selection import Answer, Runs


@claim(
    "Attention fails in AR without position embeddings.", "D.1 fig 9",
    "AR, attention without position embeddings, d=256", "accuracy: 5.62 (with position embeddings 100.00)",
)  # fmt: skip
def ar_attention_nope(runs: Runs) -> list[Answer]:
    """accuracy of attention at d_model 256 is 5.62 % without position embeddings and 100 % with, {number}"""
    attention = runs.where(task="ar", mixer="attention", d_model=256)
    return [attention.where(positions=positions).number("test_accuracy").near(paper)
            for positions, paper in (("none", 0.0562), ("learned", 1.0))]  # fmt: skip


@ar_attention_nope.smaller
def attention_guesses(runs: Runs) -> Answer:
    """where attention with position embeddings succeeds, without them its accuracy is {guessing}"""
    return runs.where(task="ar", mixer="attention").guess(only(positions="none"), only(positions="learned"))


@claim(
    "State space models are generally worse with position embeddings.", "D.1 fig 9",
    "AR/ATR, all SSMs with position embeddings", "accuracy: generally worse", any_scale=True,
)  # fmt: skip
def pe_hurts_ssm(runs: Runs) -> Answer:
    """most pairs of runs are better without position embeddings than with (all mixers but attention)"""
    others, by = runs.but(mixer="attention"), ("task", "mixer", "d_model")
    return others.above(only(positions="none"), only(positions="learned"), by=by, mostly=True)
