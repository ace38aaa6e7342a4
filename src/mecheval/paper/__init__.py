"""The paper's numbers and claims, compared with our results."""

from mecheval.paper.answers import OUTCOMES
from mecheval.paper.comparison import Compared, Comparison, Judged, compare, compare_study, judge_claims
from mecheval.paper.numbers import Setting, settings_of

__all__ = [
    "OUTCOMES", "Compared", "Comparison", "Judged", "Setting", "compare", "compare_study", "judge_claims",
    "settings_of",
]  # fmt: skip
