"""Trees with held-out combinations of query and answer (figure 10)."""

from mecheval.paper.claims import claim
from mecheval.paper.rows import only
from mecheval.paper.selection import Answer, Runs, Side


@claim(
    "Attention of width 256 is at 95.6 % on dev and at 68.1 % on held-out pairs in ATR.", "D.2 fig 10",
    "ATR with 80/20 split of query-answer pairs, attention d=256", "accuracy dev/test: 95.62/68.12",
)  # fmt: skip
def split_attention_256(runs: Runs) -> list[Answer]:
    """accuracy of attention at d_model 256 is 95.62 % on dev and 68.12 % on test, {number}"""
    attention = runs.where(mixer="attention", d_model=256)
    return [attention.number("dev_accuracy").near(0.9562), attention.number("test_accuracy").near(0.6812)]


@split_attention_256.smaller
def worse_on_test(runs: Runs) -> Answer:
    """attention is worse on test than on dev at every d_model where it learnt"""
    dev, test = Side(only(), "dev_accuracy", "dev"), Side(only(), name="test")
    return runs.where(mixer="attention").above(dev, test, counts="learnt on dev")


@claim(
    "With held-out pairs, Mamba of width 128 has the second best dev accuracy (65 %).", "D.2 fig 10",
    "same, mamba d=128", "dev accuracy: 65.00 (second best dev accuracy overall)",
)  # fmt: skip
def split_mamba_128(runs: Runs) -> list[Answer]:
    """dev accuracy of Mamba at d_model 128 is 65 %, {number}; by the best dev accuracy over d_model,

    exactly one mixer is above Mamba
    """
    near = runs.where(mixer="mamba", d_model=128).number("dev_accuracy").near(0.65)
    return [near, runs.second("mamba", "dev_accuracy")]


@split_mamba_128.smaller
def second(runs: Runs) -> Answer:
    """by the best dev accuracy over d_model, exactly one mixer is above Mamba"""
    return runs.second("mamba", "dev_accuracy")


@claim(
    "On held-out pairs, H3 is above Mamba at most widths.", "D.2 fig 10", "same, h3 vs mamba",
    "test accuracy: h3 > mamba in 3 of 5 d", any_scale=True,
)  # fmt: skip
def split_h3(runs: Runs) -> Answer:
    """test accuracy of H3 is above Mamba's in most pairs of runs of the same width and seed"""
    return runs.above(only(mixer="h3"), only(mixer="mamba"), counts="learnt on dev", mostly=True)
