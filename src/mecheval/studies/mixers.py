"""Studies of mixers beyond the paper: the quickstart, newer mixers, short convolutions, hybrids."""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from mecheval.mixers.options import BUILT_IN
from mecheval.studies.scales import AT_BLOCK_1, MIXERS, QUICK, one_width, preferred, quick, runs
from mecheval.studies.study import Study
from mecheval.sweep import Point

EVERY = (*MIXERS, *(name for name in BUILT_IN if name not in MIXERS))
"""The paper's mixers, then the newer ones."""
HYBRIDS = tuple("+".join(pair) for pair in permutations(("attention", "mamba", "gated_delta_net"), 2))
"""Models of two layers with different mixers, in either order."""
WITHOUT: dict[str, dict[str, Any] | None] = {
    "attention": {}, "base_conv": {"kernel_size": -1}, "based": {"kernel_size": -1},
    "delta_net": {"use_short_conv": False}, "h3": None, "hyena": {"short_filter_order": 1}, "mamba": {"d_conv": 0},
    "gated_delta_net": {"use_short_conv": False}, "gla": {}, "kda": {"use_short_conv": False}, "mamba2": {"d_conv": 0},
    "mesa_net": {"use_short_conv": False}, "retnet": {}, "rg_lru": {"conv1d_width": 0},
    "rwkv7": {"token_shift": False}, "sliding_attention": {},
}  # fmt: skip
"""The options that switch a mixer's own short convolution off: none where it has none, None where that is impossible.

H3's is its shift SSM, so its Canon convolution stands beside it. RWKV-7's is its token shift.
"""


def on_ar(scale: str) -> dict[str, Any]:
    """On a laptop, the settings of the quickstart, whose runs are then among those of a study."""
    return QUICK if scale == "laptop" else {}


def on_both_tasks(scale: str) -> list[Point]:
    """The runs of all mixers on AR and on ATR."""
    ar = preferred("ar", scale, on_ar(scale), mixers=EVERY, task=("ar",))
    return [*ar, *preferred("atr", scale, mixers=EVERY, task=("atr",))]


def by_short_convolution(scale: str) -> list[Point]:
    """The runs, with a further axis: `short_conv` is none, own (the mixer's), or the letter of a Canon convolution."""
    return [
        Point({"mixer": mixer, "short_conv": name, **point.axes}, point.config)
        for mixer, name, options in _short_convolutions()
        for point in preferred("ar", scale, {**on_ar(scale), **options}, mixers=(mixer,))
    ]


def _short_convolutions() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for mixer, without in WITHOUT.items():
        if without is not None:
            yield mixer, "none", {**without}
        if without != {}:
            yield mixer, "own", {}
        for letter in "AB" if without == {} else "A":
            yield mixer, letter, {**(without or {}), "canon": letter}


STUDIES = (
    Study("quickstart", "–", "How does each mixer recall?", lambda scale: quick(), readings=AT_BLOCK_1),
    Study(
        "newer", "–", "How do Mamba-2, Gated DeltaNet, KDA, GLA, RetNet, RWKV-7, MesaNet and RG-LRU recall?",
        on_both_tasks, "accuracy", AT_BLOCK_1,
    ),
    Study(
        "canon", "–",
        "Who recalls with a short convolution and who without, and does it turn induction into association by it?",
        by_short_convolution, "accuracy", AT_BLOCK_1,
    ),
    Study(
        "hybrids", "–", "Which layer stores and which retrieves when two layers have different mixers?",
        lambda scale: runs("ar", scale, on_ar(scale), mixer=HYBRIDS, **one_width("ar", scale)), readings=AT_BLOCK_1,
    ),
)  # fmt: skip
