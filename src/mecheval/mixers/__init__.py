"""Sequence mixers: causal maps (B, L, D) -> (B, L, D), one file each."""

from mecheval.mixers.attention import Attention
from mecheval.mixers.base import MIXERS, Mixer, MixerOptions, build_mixer, check_options
from mecheval.mixers.base_conv import BaseConv
from mecheval.mixers.based import TaylorAttention
from mecheval.mixers.delta_net import DeltaNet
from mecheval.mixers.h3 import H3
from mecheval.mixers.hyena import Hyena
from mecheval.mixers.mamba import Mamba

__all__ = [
    "H3", "MIXERS", "Attention", "BaseConv", "DeltaNet", "Hyena", "Mamba", "Mixer", "MixerOptions", "TaylorAttention",
    "build_mixer", "check_options",
]  # fmt: skip
