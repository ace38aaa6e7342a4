from __future__ import annotations

import pandas as pd
import pytest

from mecheval.paper import judge_claims
from mecheval.paper.answers import ask
from mecheval.paper.claims import LEVEL, claim_tests
from mecheval.paper.numbers import claims
from paper.cases import AT_LAPTOP, AT_PAPER, GONE, Case
from paper.tables import LAPTOP, PAPER, convs, put, recall, settings, trees

SCALES = [("paper", case) for case in AT_PAPER] + [("laptop", case) for case in AT_LAPTOP]
BY_SCALE = pytest.mark.parametrize(("scale", "case"), SCALES, ids=[f"{scale}-{case.claim}" for scale, case in SCALES])


def judge(claim: str, frame: pd.DataFrame, scale: str) -> tuple[str, str]:
    """The outcome and the evidence, of one claim alone."""
    test = claim_tests()[claim]
    form = test.paper if scale == "paper" else test.smaller
    assert form is not None
    return ask(form.questions, frame, settings(scale)["ar"].guessing)


def test_every_claim_has_a_test() -> None:
    ids = [claim.id for claim in claims()]
    assert len(ids) == 24
    assert list(claim_tests()) == ids
    assert [case.claim for case in AT_PAPER] == ids


def test_every_form_at_a_smaller_scale_is_tried() -> None:
    other = {claim for claim, test in claim_tests().items() if test.smaller not in (None, test.paper)}
    assert other <= {case.claim for case in AT_LAPTOP}


@BY_SCALE
def test_reproduced(scale: str, case: Case) -> None:
    outcome, evidence = judge(case.claim, case.good, scale)
    assert outcome == "reproduced", evidence


@BY_SCALE
def test_contradicted(scale: str, case: Case) -> None:
    for edit in case.bad:
        outcome, evidence = judge(case.claim, put(case.good, edit.numbers, **edit.where), scale)
        assert outcome == "contradicted", (edit, evidence)


@BY_SCALE
def test_untested(scale: str, case: Case) -> None:
    for edit in case.untested:
        outcome, evidence = judge(case.claim, put(case.good, edit.numbers, **edit.where), scale)
        assert outcome == "not tested", (edit, evidence)
        assert "nan" not in evidence


@BY_SCALE
def test_nothing_is_reproduced_by_runs_that_are_not_there(scale: str, case: Case) -> None:
    for frame in (case.good.head(0), case.good.assign(status="missing"), case.good.assign(status="running")):
        assert judge(case.claim, frame, scale)[0] == "not tested"


@BY_SCALE
def test_one_seed_that_fails_contradicts(scale: str, case: Case) -> None:
    edit = case.bad[0]
    bad = put(case.good, edit.numbers, **edit.where)
    frame = pd.concat([case.good.assign(seed=0), bad.assign(seed=1), case.good.assign(seed=2)], ignore_index=True)
    outcome, evidence = judge(case.claim, frame, scale)
    assert outcome == "contradicted"
    assert evidence.startswith("Holds in 2 of 3 seeds (0, 2), fails in 1 of 3 seeds (1). Seed 0: ")


@BY_SCALE
def test_one_seed_that_is_missing_leaves_a_claim_untested(scale: str, case: Case) -> None:
    frame = pd.concat([case.good, case.good.assign(seed=1, status="missing")], ignore_index=True)
    outcome, evidence = judge(case.claim, frame, scale)
    assert outcome == "not tested"
    assert evidence.startswith("Holds in 1 of 2 seeds (0), open in 1 of 2 seeds (1). ")


def test_levels_are_not_tested_at_a_smaller_scale() -> None:
    levels = ["ar_based_best", "ar_mamba_256", "atr_based_256", "atr_baseconv_256"]
    assert [claim for claim, test in claim_tests().items() if test.smaller is None] == levels
    judged = judge_claims({"ar": recall(LAPTOP)}, "laptop", {"ar": settings("laptop")})
    assert [(one.claim, one.outcome, one.evidence) for one in judged[1:]] == [
        (claim, "not tested", LEVEL) for claim in levels[:2]
    ]
    assert judged[1].tested.startswith("at the paper's scale only: the best likelihood of Based")


def test_evidence_in_words() -> None:
    convolution = put(convs({"d_model": (32, 64)}), {"test_accuracy": 0.4}, d_conv=4, d_model=32)
    assert judge("ar_mamba_dconv_step", convolution, "paper")[1] == (
        "d_model 64: d_conv none 6.0 %, d_conv 1 6.0 %, d_conv 2 95.0 %, d_conv 4 95.0 % "
        "(d_conv 4 does not succeed at d_model 32 (40.0 %); guessing gives 6.2 %)."
    )
    value = put(convs(PAPER), {"restored_value": 0.55}, d_conv=3, d_model=32)
    assert judge("ar_mamba_no_value", value, "paper")[1] == (
        "the restored share at the value is 0.20 or more in 1 of 15 runs that learnt: d_conv 3, d_model 32 (0.50)."
    )
    recalled = put(put(recall(PAPER), {"test_accuracy": 0.9}, d_model=32), GONE, d_model=256, mixer="attention")
    assert judge("ar_attention_acc", recalled, "paper")[1] == (
        "Fails: attention, d_model 32: test accuracy 90.0 % (paper: 100.0 %). "
        "Holds: attention, d_model 64: test accuracy 100.0 % (paper: 100.0 %); "
        "attention, d_model 128: test accuracy 100.0 % (paper: 100.0 %). Open: attention, d_model 256: missing."
    )
    assert judge("atr_mamba_best", put(trees(LAPTOP), {"original": 0.9}, mixer="h3", d_model=64), "laptop")[1] == (
        "Fails: d_model 64: mamba 81.0 %, the best other (h3) 90.0 %. "
        "Holds: d_model 128: mamba 81.0 %, the best other (attention) 80.0 %."
    )


def test_the_paper_says() -> None:
    judged = judge_claims({"ar_mamba_conv": convs(PAPER)}, "paper", {"ar_mamba_conv": settings("paper")})[0]
    assert (judged.claim, judged.where, judged.setting) == (
        "ar_mamba_dconv_step", "4.3 fig 4a", "AR, mamba, d_conv 1 -> 2",
    )  # fmt: skip
    assert judged.said == "accuracy: step change (d_conv < 2 or no conv: near zero)"
    assert judged.outcome == "reproduced"


def test_only_claims_about_the_given_studies_are_judged() -> None:
    judged = judge_claims({"atr": trees(PAPER)}, "paper", {"atr": settings("paper")})
    assert [one.claim for one in judged] == [
        "atr_mamba_best", "atr_corrupted_floor", "atr_based_256", "atr_baseconv_256",
    ]  # fmt: skip
