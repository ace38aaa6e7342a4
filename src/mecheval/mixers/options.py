"""The options of each built-in mixer, and the registry of mixers by name. Nothing here needs torch.

Configs, run ids and listings of studies are made from these alone; a mixer itself is imported when it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mecheval.custom import OwnMixers
from mecheval.errors import parse_options
from mecheval.mixers.adapter import call_of
from mecheval.registry import Registry

if TYPE_CHECKING:  # slow to import
    from torch import nn

MAX_WIDTH, MAX_LENGTH = 1 << 17, 1 << 24
"""Upper bounds of options that count channels or heads, and of options that count tokens, far above any real model."""
MAX_TAPS = 4096
"""Largest number of taps of a short convolution."""
LONG = -1
"""The kernel size that stands for an implicit long convolution."""


class MixerOptions(BaseModel):
    """Options of a mixer: closed and frozen, with the names of the upstream layer."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    positions: ClassVar[Literal["none", "learned"]] = "none"
    """The position embeddings that a model uses unless the config names others."""
    family: ClassVar[str] = "custom"
    """The family of mixers that this one belongs to, as in docs/mixers/index.md."""
    paper: ClassVar[str] = ""
    """The authors and the year of the publication."""
    added_later: ClassVar[frozenset[str]] = frozenset()
    """Options that were added later; they are left out of plain data at their defaults, so that ids do not change."""


class AttentionOptions(MixerOptions):
    """Options of attention."""

    family, paper = "attention", "Vaswani et al. 2017"
    positions = "learned"
    num_heads: int = Field(1, ge=1, le=MAX_WIDTH, description="heads")
    bias: bool = Field(False, description="bias of the q, k, v projection; the output projection always has one")
    rotary: bool = Field(False, description="rotate q and k by position (beyond the paper)")


def check_kernel(size: int) -> int:
    """`size`, if it is a kernel size."""
    if not 1 <= size <= MAX_TAPS and size != LONG:
        raise ValueError(f"a kernel size is 1 to {MAX_TAPS}, or {LONG} for an implicit long convolution")
    return size


class BaseConvOptions(MixerOptions):
    """Options of BaseConv."""

    family, paper = "convolution", "Arora et al. 2024"
    kernel_size: int | list[int] = Field(
        [3, LONG], description="taps by layer, repeating; one number = all layers; -1 = long"
    )
    l_max: int = Field(1024, ge=2, le=MAX_LENGTH, description="longest document of the long convolution")

    @field_validator("kernel_size")
    @classmethod
    def _sizes(cls, value: int | list[int]) -> int | list[int]:
        for size in [value] if isinstance(value, int) else value:
            check_kernel(size)
        if value == [] or (isinstance(value, list) and len(value) > 1000):
            raise ValueError("give 1 to 1000 kernel sizes")
        return value


class BasedOptions(MixerOptions):
    """Options of Based."""

    family, paper = "linear attention", "Arora et al. 2024"
    kernel_size: int = Field(3, description="taps of its convolution layers; -1 = implicit long convolution")
    feature_dim: int = Field(8, ge=1, le=4096, description="f, width of a head's queries and keys")
    num_heads: int = Field(1, ge=1, le=MAX_WIDTH, description="heads of the linear attention")
    l_max: int = Field(1024, ge=2, le=MAX_LENGTH, description="longest document of an implicit long convolution")

    @field_validator("kernel_size")
    @classmethod
    def _size(cls, value: int) -> int:
        return check_kernel(value)


class DeltaNetOptions(MixerOptions):
    """Options of DeltaNet."""

    family, paper = "delta rule", "Yang et al. 2024"
    num_heads: int = Field(1, ge=1, le=MAX_WIDTH, description="heads")
    use_short_conv: bool = Field(True, description="short convolutions on q, k and v")
    conv_size: int = Field(4, ge=1, le=MAX_TAPS, description="their taps")
    allow_neg_eigval: bool = Field(False, description="strengths up to 2, so that a step can reverse a sign")
    added_later = frozenset({"allow_neg_eigval"})


class H3Options(MixerOptions):
    """Options of H3."""

    family, paper = "state space", "Fu et al. 2022"
    d_state: int = Field(1024, ge=2, le=1 << 17, multiple_of=2, description="N, states of each SSM")
    head_dim: int = Field(2, ge=1, le=MAX_WIDTH, description="P, channels of a head")
    l_max: int = Field(1024, ge=1, le=MAX_LENGTH, description="longest document")


class HyenaOptions(MixerOptions):
    """Options of Hyena."""

    family, paper = "convolution", "Poli et al. 2023"
    filter_order: int = Field(64, ge=1, le=4096, description="width of the filter's MLP")
    short_filter_order: int = Field(3, ge=1, le=MAX_TAPS, description="taps of the short convolution")
    filter_bias: bool = Field(False, description="skip term of the long convolution (off in the paper)")
    l_max: int = Field(1024, ge=2, le=MAX_LENGTH, description="longest document")


class MambaOptions(MixerOptions):
    """Options of Mamba."""

    family, paper = "state space", "Gu & Dao 2023"
    d_state: int = Field(16, ge=1, le=1 << 17, description="N, states of each channel")
    d_conv: int = Field(4, ge=0, le=MAX_TAPS, description="taps of the short convolution; 0 = no convolution")
    expand: int = Field(2, ge=1, le=256, description="E / D, channels for each model dimension")


class Mamba2Options(MixerOptions):
    """Options of Mamba-2."""

    family, paper = "state space", "Dao & Gu 2024"
    d_state: int = Field(64, ge=1, le=1 << 17, description="N, width of the keys B and the queries C")
    d_conv: int = Field(4, ge=0, le=MAX_TAPS, description="taps of the short convolution; 0 = no convolution")
    expand: int = Field(2, ge=1, le=256, description="E / D, channels for each model dimension")
    num_heads: int = Field(2, ge=1, le=MAX_WIDTH, description="heads, which share keys and queries")


class HeadOptions(MixerOptions):
    """Options that mixers with heads and optional short convolutions share."""

    num_heads: int = Field(1, ge=1, le=MAX_WIDTH, description="heads")
    use_short_conv: bool = Field(False, description="short convolutions on q, k and v")
    conv_size: int = Field(4, ge=1, le=MAX_TAPS, description="their taps")


class GatedDeltaNetOptions(HeadOptions):
    """Options of Gated DeltaNet."""

    family, paper = "delta rule", "Yang et al. 2024"
    use_short_conv: bool = Field(True, description="short convolutions on q, k and v")
    head_dim: int | None = Field(
        None, ge=1, le=MAX_WIDTH, description="width of a head's keys; null: 3/4 of d_model / num_heads"
    )
    expand_v: float = Field(2.0, gt=0, le=256, description="width of a head's values for each key channel")
    use_gate: bool = Field(True, description="output gate")
    allow_neg_eigval: bool = Field(False, description="strengths up to 2, so that a step can reverse a sign")


class KDAOptions(HeadOptions):
    """Options of Kimi Delta Attention."""

    family, paper = "delta rule", "Kimi Team 2025"
    use_short_conv: bool = Field(True, description="short convolutions on q, k and v")
    head_dim: int | None = Field(
        None, ge=1, le=MAX_WIDTH, description="width of a head's keys; null: d_model / num_heads"
    )
    expand_v: float = Field(1.0, gt=0, le=256, description="width of a head's values for each key channel")
    allow_neg_eigval: bool = Field(False, description="strengths up to 2, so that a step can reverse a sign")
    use_gate: bool = Field(True, description="output gate")


class GLAOptions(HeadOptions):
    """Options of gated linear attention."""

    family, paper = "linear attention", "Yang et al. 2023"
    expand_k: float = Field(0.5, gt=0, le=256, description="width of all keys for each model dimension")
    expand_v: float = Field(1.0, gt=0, le=256, description="width of all values for each model dimension")
    gate_low_rank_dim: int = Field(16, ge=1, le=MAX_WIDTH, description="rank of the map that gives the decay")
    gate_logit_normalizer: int = Field(16, ge=1, le=1 << 20, description="the log-decay is divided by this")
    use_output_gate: bool = Field(True, description="output gate")


class RetNetOptions(HeadOptions):
    """Options of RetNet."""

    family, paper = "linear attention", "Sun et al. 2023"
    num_heads: int = Field(2, ge=1, le=MAX_WIDTH, description="heads; number h decays by 1 - 2^(-5-h)")
    expand_k: float = Field(1.0, gt=0, le=256, description="width of all keys for each model dimension")
    expand_v: float = Field(2.0, gt=0, le=256, description="width of all values for each model dimension")
    rotary: bool = Field(True, description="rotate q and k by position")
    use_output_gate: bool = Field(True, description="output gate")


class RWKV7Options(HeadOptions):
    """Options of RWKV-7."""

    family, paper = "delta rule", "Peng et al. 2025"
    use_short_conv: bool = Field(False, description="short convolutions on r, k and v, beside the token shift")
    token_shift: bool = Field(True, description="mix every token with the one before it")
    low_rank_dim: int = Field(32, ge=1, le=MAX_WIDTH, description="rank of the maps that give decay, rate and gate")
    use_gate: bool = Field(True, description="output gate")


class MesaNetOptions(HeadOptions):
    """Options of MesaNet."""

    family, paper = "regression", "von Oswald et al. 2025"
    num_heads: int = Field(2, ge=1, le=MAX_WIDTH, description="heads")
    use_short_conv: bool = Field(True, description="short convolutions on q and k")
    head_dim: int | None = Field(None, ge=1, le=MAX_WIDTH, description="width of a head; null: d_model / num_heads")
    lambda_lower_bound: float = Field(0.25, gt=0, le=1e6, description="smallest ridge of the regression")
    use_output_gate: bool = Field(False, description="output gate")


class RGLRUOptions(MixerOptions):
    """Options of the RG-LRU."""

    family, paper = "diagonal", "De et al. 2024"
    lru_width: int | None = Field(None, ge=1, le=MAX_WIDTH, description="channels of the state; null: d_model")
    num_heads: int = Field(1, ge=1, le=MAX_WIDTH, description="blocks of the two gates' maps")
    conv1d_width: int = Field(4, ge=0, le=MAX_TAPS, description="taps of the short convolution; 0 = no convolution")


class SlidingAttentionOptions(AttentionOptions):
    """Options of attention in a sliding window."""

    family, paper = "attention", "Child et al. 2019"
    window: int = Field(16, ge=1, le=MAX_LENGTH, description="number of tokens that a position sees, including itself")
    use_short_conv: bool = Field(False, description="short convolutions on q, k and v")
    conv_size: int = Field(4, ge=1, le=MAX_TAPS, description="their taps")


BUILT_IN: dict[str, tuple[str, type[MixerOptions]]] = {
    "attention": ("mecheval.mixers.attention:Attention", AttentionOptions),
    "base_conv": ("mecheval.mixers.base_conv:BaseConv", BaseConvOptions),
    "based": ("mecheval.mixers.based:build_based", BasedOptions),
    "delta_net": ("mecheval.mixers.delta_net:DeltaNet", DeltaNetOptions),
    "h3": ("mecheval.mixers.h3:H3", H3Options),
    "hyena": ("mecheval.mixers.hyena:Hyena", HyenaOptions),
    "mamba": ("mecheval.mixers.mamba:Mamba", MambaOptions),
    "gated_delta_net": ("mecheval.mixers.gated_delta_net:GatedDeltaNet", GatedDeltaNetOptions),
    "gla": ("mecheval.mixers.gla:GLA", GLAOptions),
    "kda": ("mecheval.mixers.kda:KDA", KDAOptions),
    "mamba2": ("mecheval.mixers.mamba2:Mamba2", Mamba2Options),
    "mesa_net": ("mecheval.mixers.mesa_net:MesaNet", MesaNetOptions),
    "retnet": ("mecheval.mixers.retnet:RetNet", RetNetOptions),
    "rg_lru": ("mecheval.mixers.rg_lru:RGLRU", RGLRUOptions),
    "rwkv7": ("mecheval.mixers.rwkv7:RWKV7", RWKV7Options),
    "sliding_attention": ("mecheval.mixers.sliding_attention:SlidingAttention", SlidingAttentionOptions),
}
"""Name -> the place of the mixer's class, and its options; a new mixer needs a line here."""

MIXERS: Registry[Callable[..., nn.Module]] = Registry(
    "mixer", "mecheval.mixers", OwnMixers(), {name: place for name, (place, _) in BUILT_IN.items()}
)
"""A registered mixer is a `Mixer` class, or a function or module class called as f(d_model=..., **options).

Besides those of this package and of entry points, there are custom mixers, from files that MECHEVAL_MIXERS names. A
mixer with `Options` gets them parsed, and its layer index: f(d_model, layer, options).
"""


def options_of(name: str) -> type[MixerOptions] | None:
    """The options that the mixer called `name` declares; None for a mixer that is called with plain arguments."""
    if name in BUILT_IN:
        return BUILT_IN[name][1]
    declared: type[MixerOptions] | None = getattr(MIXERS.get(name), "Options", None)
    return declared


def usual_positions(name: str) -> str:
    """The position embeddings that the mixer called `name` is used with."""
    if name in BUILT_IN:
        return BUILT_IN[name][1].positions
    return str(getattr(MIXERS.get(name), "positions", "none"))


def check_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of the mixer called `name` as plain data, with the defaults that it declares."""
    known = options_of(name)
    if known is not None:
        parsed = parse_options(known, name, options)
        usual = {name for name in known.added_later if getattr(parsed, name) == known.model_fields[name].default}
        return parsed.model_dump(mode="json", exclude=usual)
    call_of(MIXERS.get(name), name, 1, 0, options)
    return options
