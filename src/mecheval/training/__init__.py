"""Training: from a config to a whole run in the store."""

from mecheval.training.loop import Interrupted, train
from mecheval.training.progress import progress
from mecheval.training.trackers import tracker
from mecheval.training.weights import load_lm

__all__ = ["Interrupted", "load_lm", "progress", "tracker", "train"]
