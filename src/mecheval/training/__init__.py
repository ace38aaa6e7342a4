"""Training: from a config to a finished run in the store."""

from typing import TYPE_CHECKING

from mecheval.lazy import lazily

if TYPE_CHECKING:
    from mecheval.training.loop import Interrupted, train
    from mecheval.training.progress import progress
    from mecheval.training.watch import tracker

__all__ = ["Interrupted", "progress", "tracker", "train"]

_FILES = {"Interrupted": "loop", "train": "loop", "progress": "progress", "tracker": "watch"}
"""Imported when first used, so that watchers and progress displays do not wait for torch."""
__getattr__ = lazily(__name__, _FILES)
