"""The language model around the mixers."""

from mecheval.model.interop import load_zoology
from mecheval.model.lm import LM

__all__ = ["LM", "load_zoology"]
