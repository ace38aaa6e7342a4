"""One layer beside two, on pairs and on trees (figure 11)."""

from mecheval.paper.claims import claim
from mecheval.paper.rows import but, only
from mecheval.paper.selection import Answer, Runs, Side

ONE, TWO = only(n_layers=1), only(n_layers=2)
INDUCTION = ("attention", "based", "base_conv")


def at_256(runs: Runs, task: str, mixer: str, one: float, two: float) -> list[Answer]:
    """The accuracy with one layer and with two is near the paper's."""
    runs = runs.where(task=task, mixer=mixer, d_model=256)
    return [runs.where(n_layers=n).number("test_accuracy").near(paper) for n, paper in ((1, one), (2, two))]


@claim(
    "Models that retrieve directly are as good in AR with one layer as with two.", "D.3 fig 11a",
    "comparable with one layer and with two", any_scale=True,
)  # fmt: skip
def ar_1layer_direct(runs: Runs) -> Answer:
    """The accuracies of Mamba, DeltaNet and Hyena with one layer and with two are {number} of each other."""
    direct = runs.where(task="ar", mixer=("mamba", "delta_net", "hyena"))
    return direct.level(ONE, TWO, by=("mixer", "d_model"))


@claim(
    "Mamba of width 256 recalls in AR with one layer (96.3 %) as with two (91.3 %).", "D.3 fig 11a",
    "accuracy 96.25 with one layer, 91.25 with two",
)  # fmt: skip
def ar_1layer_mamba_256(runs: Runs) -> list[Answer]:
    """Accuracy of Mamba at d_model 256 is 96.25 % with 1 layer and 91.25 % with 2, {number}."""
    return at_256(runs, "ar", "mamba", 0.9625, 0.9125)


@ar_1layer_mamba_256.smaller
def mamba_succeeds(runs: Runs) -> Answer:
    """Mamba with 1 layer succeeds wherever it does with 2."""
    return runs.where(task="ar", mixer="mamba").succeeds(ONE, TWO)


@claim(
    "Hyena of width 256 is as good in AR with one layer (31.6 %) as with two (29.7 %).", "D.3 fig 11a",
    "accuracy 31.56 with one layer, 29.69 with two",
)  # fmt: skip
def ar_1layer_hyena_256(runs: Runs) -> list[Answer]:
    """Accuracy of Hyena at d_model 256 is 31.56 % with 1 layer and 29.69 % with 2, {number}."""
    return at_256(runs, "ar", "hyena", 0.3156, 0.2969)


@ar_1layer_hyena_256.smaller
def hyena_succeeds(runs: Runs) -> Answer:
    """Hyena with 1 layer succeeds wherever it does with 2."""
    return runs.where(task="ar", mixer="hyena").succeeds(ONE, TWO)


@claim(
    "Attention, Based and BaseConv fail in AR with one layer.", "D.3 fig 11a",
    "near zero (Based and BaseConv of one layer are the same architecture)", any_scale=True,
)  # fmt: skip
def ar_1layer_induction_fail(runs: Runs) -> Answer:
    """Where attention with 2 layers succeeds, accuracy of attention, Based and BaseConv with 1 is {near_zero}."""
    attention, based, base_conv = (only(mixer=mixer, n_layers=1) for mixer in INDUCTION)
    control = only(mixer="attention", n_layers=2)
    return runs.where(task="ar").guess(attention, based, Side(base_conv, optional=True), control)


@claim(
    "In ATR, attention, Based and BaseConv are the worst architectures with one layer.", "D.3 fig 11b",
    "they become the worst", any_scale=True,
)  # fmt: skip
def atr_1layer_worst(runs: Runs) -> Answer:
    """On trees with one layer, every other mixer is more accurate than these three, at every d_model."""
    return runs.where(task="atr", n_layers=1).above(but(mixer=INDUCTION), only(mixer=INDUCTION))


@claim(
    "Attention of width 256 is at 74.7 % in ATR with one layer and at 96.3 % with two.", "D.3 fig 11b",
    "accuracy 74.69 with one layer, 96.25 with two",
)  # fmt: skip
def atr_1layer_attention_256(runs: Runs) -> list[Answer]:
    """Accuracy of attention at d_model 256 is 74.69 % with 1 layer and 96.25 % with 2, {number}."""
    return at_256(runs, "atr", "attention", 0.7469, 0.9625)


@atr_1layer_attention_256.smaller
def attention_is_worse(runs: Runs) -> Answer:
    """Attention is worse with 1 layer than with 2 at every d_model where it learnt with 2."""
    return runs.where(task="atr", mixer="attention").above(TWO, ONE, counts="learnt", control=0)
