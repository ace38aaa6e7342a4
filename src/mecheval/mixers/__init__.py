"""Sequence mixers: causal maps (B, L, D) -> (B, L, D), one file each."""

from typing import TYPE_CHECKING

from mecheval.lazy import lazily
from mecheval.mixers.options import BUILT_IN, MIXERS, MixerOptions, check_options, options_of, usual_positions

if TYPE_CHECKING:
    from mecheval.mixers.attention import Attention
    from mecheval.mixers.base import Mixer, build_mixer
    from mecheval.mixers.delta_net import DeltaNet

__all__ = [
    "BUILT_IN", "MIXERS", "Attention", "DeltaNet", "Mixer", "MixerOptions", "build_mixer", "check_options",
    "options_of", "usual_positions",
]  # fmt: skip

_FILES = {"Mixer": "base", "build_mixer": "base", "Attention": "attention", "DeltaNet": "delta_net"}
"""Imported when first used, because they need torch and configs do not."""
__getattr__ = lazily(__name__, _FILES)
