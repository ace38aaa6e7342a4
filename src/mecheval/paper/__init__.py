"""The paper's numbers and claims, compared with our results."""

from mecheval.paper.comparison import Compared, Comparison, compare, compare_study
from mecheval.paper.judging import OUTCOMES, Judged, judge_claims
from mecheval.paper.numbers import Setting, settings_of

__all__ = [
    "OUTCOMES", "Compared", "Comparison", "Judged", "Setting", "compare", "compare_study", "judge_claims",
    "settings_of",
]  # fmt: skip
