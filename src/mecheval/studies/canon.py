"""Short convolutions: every mixer without one, with its own, and with a Canon convolution in its place."""

from collections.abc import Iterator
from typing import Any

from mecheval.studies.scales import AT_BLOCK_1, QUICK, preferred
from mecheval.studies.study import Study
from mecheval.sweep import Point

WITHOUT: dict[str, dict[str, Any] | None] = {
    "attention": {},
    "base_conv": {"kernel_size": -1},
    "based": {"kernel_size": -1},
    "delta_net": {"use_short_conv": False},
    "h3": None,
    "hyena": {"short_filter_order": 1},
    "mamba": {"d_conv": 0},
    "gated_delta_net": {"use_short_conv": False},
    "gla": {},
    "kda": {"use_short_conv": False},
    "mamba2": {"d_conv": 0},
    "mesa_net": {"use_short_conv": False},
    "retnet": {},
    "rg_lru": {"conv1d_width": 0},
    "rwkv7": {"token_shift": False},
    "sliding_attention": {},
}
"""The options that switch a mixer's own short convolution off: none where it has none, None where that is impossible.

H3's is its shift SSM, so its Canon convolution stands beside it. RWKV-7's is its token shift.
"""


def points(scale: str) -> list[Point]:
    """The runs, with a further axis: `short_conv` is none, own (the mixer's), or the letter of a Canon convolution.

    On a laptop their task is the quickstart's, whose runs are among them.
    """
    base = QUICK if scale == "laptop" else {}
    return [
        Point({"mixer": mixer, "short_conv": name, **point.axes}, point.config)
        for mixer, name, options in _settings()
        for point in preferred("ar", scale, {**base, **options}, mixers=(mixer,))
    ]


def _settings() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for mixer, without in WITHOUT.items():
        if without is not None:
            yield mixer, "none", {**without}
        if without != {}:
            yield mixer, "own", {}
        for letter in "AB" if without == {} else "A":
            yield mixer, letter, {**(without or {}), "canon": letter}


STUDY = Study(
    name="canon",
    figure="–",
    question="Who recalls with a short convolution and who without, and does it turn induction into association by it?",
    points=points,
    readings=AT_BLOCK_1,
    draw="accuracy",
)
