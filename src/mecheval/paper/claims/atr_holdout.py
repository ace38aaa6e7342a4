"""Trees with held-out combinations of query and answer (figure 10)."""

from mecheval.paper.claims import claim
from mecheval.paper.rows import Row, but, is_nan, only
from mecheval.paper.selection import Answer, Runs, Side
from mecheval.studies.finding import NAMES

ROLES = ("key", "value", "query")
KEPT = 0.5
"""Share of an attribution on dev that is left on test where the mechanism is not brittle."""


@claim(
    "All models are less accurate on held-out pairs.", "D.2 fig 10", "all have much lower test accuracy",
    any_scale=True,
)  # fmt: skip
def split_all_worse(runs: Runs) -> Answer:
    """Accuracy on dev is above that on held-out pairs, at every d_model and for every mixer that learnt."""
    dev, test = Side(only(), "dev_accuracy", "dev"), Side(only(), name="test")
    return runs.above(dev, test, counts="learnt on dev", by=("mixer", "d_model"))


@claim(
    "With held-out pairs, attention has the best dev accuracy from width 32 on.", "D.2 fig 10",
    "the greatest dev accuracies from width 32 on", any_scale=True,
)  # fmt: skip
def split_attention_best(runs: Runs) -> Answer:
    """At every d_model from 32, the dev accuracy of attention is above that of every other mixer."""
    sides = only(mixer="attention"), but(mixer="attention")
    return runs.but(d_model=16).above(*sides, column="dev_accuracy", counts="learnt on dev", control=0)


@claim(
    "Attention of width 256 is at 95.6 % on dev and at 68.1 % on held-out pairs in ATR.", "D.2 fig 10",
    "accuracy 95.62 on dev, 68.12 on test",
)  # fmt: skip
def split_attention_256(runs: Runs) -> list[Answer]:
    """Accuracy of attention at d_model 256 is 95.62 % on dev and 68.12 % on test, {number}."""
    attention = runs.where(mixer="attention", d_model=256)
    return [attention.number("dev_accuracy").near(0.9562), attention.number("test_accuracy").near(0.6812)]


@claim(
    "With held-out pairs, Mamba of width 128 has the second best dev accuracy (65 %).", "D.2 fig 10",
    "dev accuracy 65.00, the second best of all",
)  # fmt: skip
def split_mamba_128(runs: Runs) -> list[Answer]:
    """Dev accuracy of Mamba at d_model 128 is 65 %, {number};

    by the best dev accuracy over d_model, exactly one mixer is above Mamba.
    """
    near = runs.where(mixer="mamba", d_model=128).number("dev_accuracy").near(0.65)
    return [near, runs.second("mamba", "dev_accuracy")]


@split_mamba_128.smaller
def second(runs: Runs) -> Answer:
    """By the best dev accuracy over d_model, exactly one mixer is above Mamba."""
    return runs.second("mamba", "dev_accuracy")


@claim(
    "On held-out pairs, H3 is above Mamba at most widths.", "D.2 fig 10", "test accuracy higher at 3 of 5 widths",
    any_scale=True,
)  # fmt: skip
def split_h3(runs: Runs) -> Answer:
    """Test accuracy of H3 is above Mamba's in most pairs of runs of the same width and seed."""
    return runs.mostly_above(only(mixer="h3"), only(mixer="mamba"), ("d_model",), on_dev=True)


@claim(
    "The mechanisms on held-out pairs are those on dev.", "D.2 fig 10", "largely consistent on both", any_scale=True,
)  # fmt: skip
def split_same_mechanism(runs: Runs) -> Answer:
    """In most runs that learnt on dev, the place of the highest attribution is the same on dev and on test."""

    def top(row: Row, prefix: str) -> str:
        return max(ROLES, key=lambda role: row[f"{prefix}_{role}"])

    able = [row for row in runs.learnt(on_dev=True) if not is_nan(row["attribution_value"])]
    hits = [(row, top(row, "dev_attribution") == top(row, "attribution")) for row in able]
    return runs.mostly(hits, "the place is the same", "runs that learnt on dev")


@claim(
    "BaseConv's induction is more brittle on held-out pairs than attention's and Based's.", "D.2 fig 10",
    "BaseConv does induction on dev but not nearly as much on test", any_scale=True,
)  # fmt: skip
def split_base_conv_brittle(runs: Runs) -> list[Answer]:
    """On held-out pairs, the attribution at the value is less than half of dev's in most runs of BaseConv,

    and half or more in most runs of attention and of Based.
    """
    answers = []
    for mixer in ("base_conv", "attention", "based"):
        able = [row for row in runs.where(mixer=mixer).learnt(on_dev=True) if not is_nan(row["attribution_value"])]
        kept = [(row, row["attribution_value"] >= KEPT * row["dev_attribution_value"]) for row in able]
        hits = [(row, keeps != (mixer == "base_conv")) for row, keeps in kept]
        said = f"{NAMES.get(mixer, mixer)}: {'less than half' if mixer == 'base_conv' else 'half or more'} is left"
        answers.append(runs.where(mixer=mixer).mostly(hits, said, f"{NAMES.get(mixer, mixer)} that learnt"))
    return answers
