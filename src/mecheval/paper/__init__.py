"""The paper's numbers and claims, and what ours say about them."""

from mecheval.paper.cells import Comparison, compare
from mecheval.paper.judging import OUTCOMES, Judged, judge_claims
from mecheval.paper.settings import Setting, settings_of

__all__ = ["OUTCOMES", "Comparison", "Judged", "Setting", "compare", "judge_claims", "settings_of"]
