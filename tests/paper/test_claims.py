from __future__ import annotations

import pandas as pd
import pytest

from mecheval.paper import judge_claims
from mecheval.paper.claims import all_claims, described
from mecheval.paper.judging import LEVEL, ask
from mecheval.paper.selection import About
from paper.cases import AT_LAPTOP, AT_PAPER, GONE, Case
from paper.tables import LAPTOP, PAPER, convs, inside, kernels, places, put, recall, settings, trees

CLAIMS = {claim.name: claim for claim in all_claims()}
SCALES = [("paper", case) for case in AT_PAPER] + [("laptop", case) for case in AT_LAPTOP]
BY_SCALE = pytest.mark.parametrize(("scale", "case"), SCALES, ids=[f"{scale}-{case.claim}" for scale, case in SCALES])


def judge(claim: str, frame: pd.DataFrame, scale: str, seeds: int = 1) -> tuple[str, str]:
    """The outcome and the evidence, of one claim alone, where so many seeds are alike."""
    form = CLAIMS[claim].at(scale)
    assert form is not None
    if seeds > 1:
        frame = pd.concat([frame.assign(seed=seed) for seed in range(seeds)], ignore_index=True)
    return ask(form, frame, About(settings(scale)["ar"].guessing, 320))[:2]


def test_every_claim_has_a_sentence_and_a_test() -> None:
    assert sorted(case.claim for case in AT_PAPER) == sorted(CLAIMS)
    for claim in CLAIMS.values():
        assert claim.says.endswith(".")
        assert "_" not in claim.says.replace("d_conv", "")
        assert not {"{", "}"} & {*described(claim.test)}


def test_every_form_at_a_smaller_scale_is_tried() -> None:
    other = {name for name, claim in CLAIMS.items() if claim.small not in (None, claim.test)}
    assert other <= {case.claim for case in AT_LAPTOP}


@BY_SCALE
def test_reproduced(scale: str, case: Case) -> None:
    outcome, evidence = judge(case.claim, case.good, scale, case.seeds)
    assert outcome == "reproduced", evidence


@BY_SCALE
def test_contradicted_by_three_seeds_and_not_by_two(scale: str, case: Case) -> None:
    for edit in case.bad:
        bad = put(case.good, edit.numbers, **edit.where)
        outcome, evidence = judge(case.claim, bad, scale, case.seeds)
        assert outcome == "contradicted", (edit, evidence)
        if "runs" not in evidence:  # a share of runs is not about seeds
            assert judge(case.claim, bad, scale, 2)[0] == "inconclusive"


@BY_SCALE
def test_untested(scale: str, case: Case) -> None:
    for edit in case.untested:
        outcome, evidence = judge(case.claim, put(case.good, edit.numbers, **edit.where), scale, case.seeds)
        assert outcome == "not tested", (edit, evidence)
        assert "nan" not in evidence


@BY_SCALE
def test_nothing_is_reproduced_by_runs_that_are_not_there(scale: str, case: Case) -> None:
    for frame in (case.good.head(0), case.good.assign(status="missing"), case.good.assign(status="running")):
        assert judge(case.claim, frame, scale)[0] == "not tested"


def test_seeds_that_differ_leave_a_claim_open() -> None:
    frames = [
        put(recall(PAPER), {"test_accuracy": 1.0 - 0.4 * seed}, mixer="attention").assign(seed=seed)
        for seed in range(3)
    ]
    assert judge("ar_attention_acc", pd.concat(frames, ignore_index=True), "paper")[0] == "inconclusive"


def test_a_missing_width_is_named_and_a_missing_side_leaves_its_width_out() -> None:
    outcome, evidence = judge(
        "ar_attention_acc", put(recall(PAPER), GONE, mixer="attention", d_model=(128, 256)), "paper"
    )
    assert outcome == "reproduced"
    assert evidence.endswith("Not run: attention, d_model 128; attention, d_model 256.")
    partial = put(
        put(kernels(PAPER), {"test_accuracy": 0.15}, kernel_size=1, d_model=64), GONE, kernel_size=-1, d_model=64
    )
    assert judge("ar_based_conv", partial, "paper", 3)[0] == "reproduced"


def test_levels_are_not_tested_at_a_smaller_scale() -> None:
    levels = ["ar_based_best", "ar_mamba_256", "atr_based_256", "atr_baseconv_256"]
    assert [name for name, claim in CLAIMS.items() if claim.small is None] == levels
    judged = judge_claims({"ar": recall(LAPTOP)}, "laptop", {"ar": settings("laptop")})
    assert [(one.claim, one.outcome, one.evidence) for one in judged[4:]] == [
        (claim, "not tested", LEVEL) for claim in levels[:2]
    ]
    assert judged[4].tested.startswith("at the paper's scale only: the best likelihood of Based")


def test_evidence_in_words() -> None:
    recalled = put(recall(PAPER), GONE, d_model=(64, 128, 256), mixer="attention")
    assert judge("ar_attention_acc", recalled, "paper")[1] == (
        "Holds: attention, d_model 32: test accuracy 100.0 % [98.7, 100.0], paper 100.0 % [98.7, 100.0], "
        "difference -1.8 to +1.8 points. Not run: attention, d_model 64; attention, d_model 128; "
        "attention, d_model 256."
    )
    value = put(convs({"d_model": (32,)}), {"restored_value": 0.55}, d_conv=3)
    assert judge("ar_mamba_no_value", value, "paper")[1].startswith(
        "Undecided: d_conv 3, d_model 32: restored share at the value 0.50 ["
    )
    best = judge("atr_mamba_best", put(trees({"d_model": (64,)}), {"original": 0.9}, mixer="h3"), "laptop")[1]
    assert best.startswith("Undecided: d_model 64: mamba 81.0 % [")
    assert "Holds: d_model 64: mamba 81.0 % [" in best
    assert judge("ar_mamba_next_key", inside(PAPER), "paper")[1] == (
        "Holds: the restored share at the next key after layer 0's convolution is 0.5 or more in 10 of 10 "
        "[69 %, 100 %] runs that learnt."
    )


def test_the_paper_says() -> None:
    judged = judge_claims({"ar_mamba_conv": convs(PAPER)}, "paper", {"ar_mamba_conv": settings("paper")})[0]
    assert (judged.claim, judged.where, judged.setting) == (
        "ar_mamba_dconv_step", "4.3 fig 4a", "AR, mamba, d_conv 1 -> 2",
    )  # fmt: skip
    assert judged.said == "accuracy: step change (d_conv < 2 or no conv: near zero)"
    assert judged.says.startswith("Mamba's accuracy in AR changes in a step")
    assert (judged.outcome, judged.seeds) == ("reproduced", 1)


def test_the_seeds_of_a_claim_are_those_of_its_own_settings() -> None:
    once = places(PAPER)
    again = pd.concat([once, *(once[once["mixer"] == "mamba"].assign(seed=seed) for seed in (1, 2))], ignore_index=True)
    judged = {one.claim: one.seeds for one in judge_claims({"ar": again}, "paper", {"ar": settings("paper")})}
    assert judged["ar_mamba_256"] == 3
    assert judged["ar_where_value"] == judged["ar_where_query"] == 1  # DeltaNet has one


def test_only_claims_about_the_given_studies_are_judged() -> None:
    judged = judge_claims({"atr": trees(PAPER)}, "paper", {"atr": settings("paper")})
    assert [one.claim for one in judged] == [
        "atr_mamba_best", "atr_where_value", "atr_where_direct", "atr_corrupted_floor", "atr_based_256",
        "atr_baseconv_256",
    ]  # fmt: skip
