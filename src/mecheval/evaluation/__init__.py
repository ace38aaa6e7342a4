"""Evaluate a custom architecture: a mixer that is trained here, or a model that was trained elsewhere."""

from mecheval.evaluation.entry import evaluate
from mecheval.evaluation.result import Evaluation

__all__ = ["Evaluation", "evaluate"]
