"""How each claim of the paper is tested: at its own scale, and in a form that a smaller scale can answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mecheval.paper import claims_ar as ar
from mecheval.paper import claims_atr as atr
from mecheval.paper import claims_depth as depth
from mecheval.paper.checks import Check
from mecheval.paper.thresholds import BENEFITS, LEARNT, MOST, NEAR_FLOOR, RESTORED, TIE, TOLERANCE, WELL_ABOVE_ZERO

if TYPE_CHECKING:  # slow to import
    import pandas as pd

Predicate = Callable[["pd.DataFrame", float], list[Check]]
"""The rows of one seed, and the accuracy of guessing (NaN where the study has no associative recall)."""

NUMBER = f"within {100 * TOLERANCE:g} points"
FAIL = f"at most {100 * NEAR_FLOOR:g} points above guessing among the document's values"


@dataclass(frozen=True)
class ClaimTest:
    """How a claim is tested: in words and as a question, at the paper's scale and at any smaller one."""

    study: str
    words: str
    question: Predicate
    smaller_words: str = ""
    smaller: Predicate | None = None


def same(study: str, words: str, question: Predicate) -> ClaimTest:
    """A claim that asks the same at every scale."""
    return ClaimTest(study, words, question, words, question)


TESTS: dict[str, ClaimTest] = {
    "ar_attention_acc": ClaimTest(
        "ar", f"accuracy of attention is 100 %, {NUMBER}, at d 32, 64, 128 and 256", ar.attention_is_perfect,
        f"no mixer is more accurate than attention (by {100 * TIE:g} points) at any width from 32 where one learnt",
        ar.attention_is_unbeaten,
    ),
    "ar_based_best": ClaimTest(
        "ar", f"the best likelihood of Based over widths is 98.9 %, {NUMBER}", ar.based_at_its_best
    ),
    "ar_mamba_256": ClaimTest("ar", f"likelihood of Mamba at d 256 is 90.3 %, {NUMBER}", ar.mamba_256),
    "ar_mamba_dconv_step": same(
        "ar_mamba_conv",
        f"where d_conv 4 succeeds, accuracy with d_conv 1 or none is {FAIL}, and d_conv 2 gains over d_conv 1 at least "
        "half of what d_conv 4 gains over guessing",
        ar.convolution_step,
    ),
    "ar_mamba_no_value": same(
        "ar_mamba_conv", f"no Mamba that learnt has a restored share of {BENEFITS} or more at the value",
        ar.never_at_value,
    ),
    "ar_based_conv": same(
        "ar_based_conv", f"where kernel 3 succeeds, accuracy with kernel 1 or a long convolution is {FAIL}",
        ar.based_needs_short,
    ),
    "ar_mamba_next_key": ClaimTest(
        "ar_mamba_inside",
        f"of the runs that learnt (original - corrupted above {100 * LEARNT:g} points), {MOST:.0%} have a restored "
        f"share of {RESTORED} or more at the next key after layer 0's convolution",
        ar.almost_all_at_next_key,
        f"more than half of the runs that learnt have a restored share of {RESTORED} or more at the next key after "
        "layer 0's convolution",
        ar.most_at_next_key,
    ),
    "atr_mamba_best": same(
        "atr", f"no mixer has a higher likelihood than Mamba (by {100 * TIE:g} points) at any width where one learnt",
        atr.mamba_is_unbeaten,
    ),
    "atr_corrupted_floor": same(
        "atr", f"corrupted likelihood is {WELL_ABOVE_ZERO:.0%} or more in every run", atr.corrupted_is_high
    ),
    "atr_mamba_noconv_256": ClaimTest(
        "atr_mamba_conv",
        f"likelihood without convolution at d 256 is 93.4 %, {NUMBER}, with a restored share of {RESTORED} or more at "
        "the value",
        atr.no_convolution_256,
        f"Mamba without convolution has a restored share of {RESTORED} or more at the value wherever it learnt",
        atr.induction_without_convolution,
    ),
    "atr_based_256": ClaimTest(
        "atr", f"likelihood of Based at d 256 is 92.2 %, {NUMBER}",
        lambda rows, _: atr.likelihood_256("based", 0.922, rows),
    ),
    "atr_baseconv_256": ClaimTest(
        "atr", f"likelihood of BaseConv at d 256 is 89.7 %, {NUMBER}",
        lambda rows, _: atr.likelihood_256("base_conv", 0.897, rows),
    ),
    "ar_attention_nope": ClaimTest(
        "position", f"accuracy of attention at d 256 is 5.62 % without position embeddings and 100 % with, {NUMBER}",
        ar.attention_needs_positions_256,
        f"where attention with position embeddings succeeds, without them its accuracy is {FAIL}",
        ar.attention_needs_positions,
    ),
    "pe_hurts_ssm": same(
        "position",
        f"more than half of all pairs of runs are worse with position embeddings than without (by {100 * TIE:g} "
        "points; all mixers but attention)",
        depth.positions_hurt,
    ),
    "split_attention_256": ClaimTest(
        "atr_holdout", f"accuracy of attention at d 256 is 95.62 % on dev and 68.12 % on test, {NUMBER}",
        atr.holdout_attention_256,
        f"attention is worse on test than on dev (by {100 * TIE:g} points) at every width where it learnt",
        atr.holdout_is_harder,
    ),
    "split_mamba_128": ClaimTest(
        "atr_holdout",
        f"dev accuracy of Mamba at d 128 is 65 %, {NUMBER}; by the best dev accuracy over widths, just one mixer is "
        "above Mamba",
        atr.holdout_mamba_128,
        "by the best dev accuracy over widths, just one mixer is above Mamba",
        atr.second_on_dev,
    ),
    "split_h3": ClaimTest(
        "atr_holdout", "test accuracy of H3 is above Mamba's at 3 widths or more", atr.h3_generalises_in_3,
        "test accuracy of H3 is above Mamba's at more than half of the widths where Mamba learnt",
        atr.h3_generalises_in_most,
    ),
    "ar_1layer_mamba_256": ClaimTest(
        "one_layer", f"accuracy of Mamba at d 256 is 96.25 % with 1 layer and 91.25 % with 2, {NUMBER}",
        lambda rows, _: ar.one_layer_numbers("mamba", "ar", 0.9625, 0.9125, rows),
        "Mamba with 1 layer succeeds wherever it does with 2", partial(ar.one_layer_is_enough, "mamba"),
    ),
    "ar_1layer_hyena_256": ClaimTest(
        "one_layer", f"accuracy of Hyena at d 256 is 31.56 % with 1 layer and 29.69 % with 2, {NUMBER}",
        lambda rows, _: ar.one_layer_numbers("hyena", "ar", 0.3156, 0.2969, rows),
        "Hyena with 1 layer succeeds wherever it does with 2", partial(ar.one_layer_is_enough, "hyena"),
    ),
    "ar_1layer_induction_fail": same(
        "one_layer",
        f"where attention with 2 layers succeeds, accuracy of attention, Based and BaseConv with 1 is {FAIL}",
        ar.one_layer_fails,
    ),
    "atr_1layer_attention_256": ClaimTest(
        "one_layer", f"accuracy of attention at d 256 is 74.69 % with 1 layer and 96.25 % with 2, {NUMBER}",
        lambda rows, _: ar.one_layer_numbers("attention", "atr", 0.7469, 0.9625, rows),
        f"attention is worse with 1 layer than with 2 (by {100 * TIE:g} points) at every width where it learnt with 2",
        atr.one_layer_is_worse,
    ),
    "layers_hyena_mamba": same(
        "depth",
        "in models of 2 and 3 layers that learnt, attribution at the query is highest in layer 0: always for Hyena, in "
        "more than half of the runs for Mamba, whose others have it in the last layer",
        depth.first_layer,
    ),
    "layers_attention_based": same(
        "depth",
        "in models of 2 and 3 layers that learnt, attribution at the query is highest in layer 1 in more than half of "
        "the runs, for attention, for Based, and for BaseConv if it learnt; never in layer 0",
        depth.second_layer,
    ),
    "sibling": ClaimTest(
        "sibling",
        f"accuracy of all models but 1-layer Based and BaseConv is above 80 %, {NUMBER}",
        atr.siblings_are_trivial,
        "at every width, all models are better than 1-layer Based and BaseConv, which have a local convolution only",
        atr.local_models_are_worst,
    ),
}  # fmt: skip
"""By claim."""
