"""The paper's numbers and claims, compared with our results."""

from mecheval.paper.comparison import Compared, Comparison, compare, compare_studies
from mecheval.paper.judging import OUTCOMES, Judged, claims_frame, counted, judge_claims
from mecheval.paper.numbers import Setting, settings_of

__all__ = [
    "OUTCOMES",
    "Compared",
    "Comparison",
    "Judged",
    "Setting",
    "claims_frame",
    "compare",
    "compare_studies",
    "counted",
    "judge_claims",
    "settings_of",
]  # fmt: skip
