"""Studies beyond the paper, of newer mixers, short convolutions, hybrids and other tasks."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Any

from mecheval.mixers.options import BUILT_IN, options_of
from mecheval.studies.scales import (
    AT_BLOCK_1,
    FAST,
    MIXERS,
    PREFERRED,
    QUICK,
    RATES,
    SLOW,
    WIDTHS,
    one_width,
    preferred,
    quick,
    runs,
)  # fmt: skip
from mecheval.studies.study import Study
from mecheval.sweep import Point, grid

EVERY = (*MIXERS, *(name for name in BUILT_IN if name not in MIXERS))
"""The paper's mixers, then the newer ones."""
HYBRIDS = tuple("+".join(pair) for pair in permutations(("attention", "mamba", "gated_delta_net"), 2))
"""Models of two layers with different mixers, in either order."""
BOTH_TASKS = (*EVERY, "attention+mamba", "gated_delta_net+attention")
"""What is trained on AR and on ATR: every mixer, and two of the hybrids."""
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
RECIPES: dict[str, dict[str, Any]] = {
    "published": {}, "clipped": {"clip": 1.0}, "shuffled": {"shuffle": True}, "both": {"clip": 1.0, "shuffle": True},
}  # fmt: skip
"""Ways to train: as published, with gradients of a norm of at most 1, with a new order in every epoch, or with both."""
MQAR_SIZES = {4: (64, 512), 8: (128, 512), 16: (256, 256), 64: (512, 128)}
"""Pairs -> length of a document, and the batch size with which zoology trains."""
MQAR_SCALES: dict[str, tuple[dict[str, Any], Sequence[int], Sequence[float]]] = {
    "paper": (
        {"epochs": 64, "stop_at": 0.99, "evaluate.documents": 3000},
        (64, 128, 256, 512),
        (1e-4, 4.642e-4, 2.154e-3, 1e-2),
    ),
    "laptop": ({"batch_size": 64, "steps": 4000, "evaluate.every": 250}, (64,), (2e-3,)),
}
"""Options of the runs of multi-query recall, then their widths and rates.

On a laptop, a mixer of `PREFERRED` has its rate from there: attention finds no induction at 2e-3, but does at 1e-3.
"""


def on_ar(scale: str) -> dict[str, Any]:
    """On a laptop, the settings of the quickstart, whose runs are then among those of a study."""
    return QUICK if scale == "laptop" else {}


def on_both_tasks(scale: str) -> list[Point]:
    """The runs of all mixers, and of two hybrids, on AR and on ATR."""
    ar = preferred("ar", scale, on_ar(scale), mixers=BOTH_TASKS, task=("ar",))
    return [*ar, *preferred("atr", scale, mixers=BOTH_TASKS, task=("atr",))]


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


def by_recipe(scale: str) -> list[Point]:
    """The runs of the paper's mixers, with a further axis: `recipe` is a name of `RECIPES`.

    On a laptop, documents are new at every step, so that there is no order to change.
    """
    return [
        Point({"recipe": name, **point.axes}, point.config)
        for name, options in RECIPES.items()
        if scale == "paper" or "shuffle" not in options
        for point in runs("ar", scale, options, mixer=MIXERS, **one_width("ar", scale))
    ]


def mqar(scale: str) -> list[Point]:
    """Figure 2 of zoology, whose blocks have no MLP; on a laptop the two small sizes."""
    options, widths, rates = MQAR_SCALES[scale]
    points = []
    for pairs, mixer in product(list(MQAR_SIZES)[: 2 if scale == "laptop" else None], MIXERS):
        length, size = MQAR_SIZES[pairs]
        base = {
            "task": "mqar", "preset": scale, "batch_size": size, "evaluate.every": 100_000 // size, "vocab": 8192,
            "mlp": False, "data.documents": 100_000, "weight_decay": 0.1, **options, "length": length,
        }  # fmt: skip
        own = (PREFERRED[mixer],) if scale == "laptop" and mixer in PREFERRED else rates
        points += grid(base, pairs=(pairs,), mixer=(mixer,), d_model=widths, lr=own)
    return points


def capacity(scale: str) -> list[Point]:
    """Every mixer and number of pairs; on a laptop with few symbols, one width and a learning rate for each mixer."""
    every = (2, 4, 8, 16, 32, 64)
    if scale != "laptop":
        return runs("ar", scale, mixer=tuple(BUILT_IN), pairs=every)
    return [
        point
        for mixer in BUILT_IN
        for pairs in every
        for point in runs(
            "ar", scale, {"keys": 128, "values": 128, "queries": pairs, "interchange_every": None},
            mixer=(mixer,), pairs=(pairs,), d_model=(64,), lr=(PREFERRED.get(mixer, FAST),),
        )
    ]  # fmt: skip


def hops(scale: str) -> list[Point]:
    """Every mixer with each exact number of hops, among 8 words on a laptop and 75 otherwise."""
    base: dict[str, Any] = {"task": "khop", "preset": scale}
    counts: Sequence[int] = (1, 2, 4, 8, 16)
    widths, rates = WIDTHS["ar", scale], RATES["ar", scale]
    if scale == "laptop":
        base |= {"nodes": 8, "symbols": 16, "queries": 4, "batch_size": 64, "steps": 2000, "evaluate.every": 100}
        counts, widths, rates = (1, 2, 3), (128,), (SLOW, FAST)
    return [
        point for n in counts
        for point in grid({**base, "fewest": n}, hops=(n,), mixer=MIXERS, d_model=widths, lr=rates)
    ]  # fmt: skip


TRACKED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "laptop": (("parity",), {"d_model": 32, "steps": 1500, "evaluate.every": 250, "stop_at": None}),
    "paper": (("parity", "S3", "S5"), {"d_model": 128, "data.documents": None, "steps": 20_000}),
}
"""Groups whose state is tracked, and options of the runs."""


def tracking(scale: str) -> list[Point]:
    """Every mixer, one layer, no short convolution; and again with negative eigenvalues where it can have them.

    Documents have 32 elements in training; in test, the elements 33 to 128 are asked for.
    """
    groups, options = TRACKED[scale]
    base = {
        "task": "track", "length": 32, "test_length": 128, "n_layers": 1, "positions": "none", "batch_size": 64,
        "evaluate.documents": 256, "preset": scale, **options,
    }  # fmt: skip
    return [
        Point({"group": group + name, "mixer": mixer, **point.axes}, point.config)
        for group in groups
        for name, mixer, own in _signs()
        for point in grid({**base, "mixer": mixer, "group": group, **own}, lr=(1e-3, 3e-3, 1e-2))
    ]


def _signs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A suffix for the name of a group, the mixer and its options; with beta up to 2, a step can reverse a sign."""
    for mixer in BUILT_IN:
        options = WITHOUT.get(mixer) or {}
        yield "", mixer, options
        known = options_of(mixer)
        if known is not None and "allow_neg_eigval" in known.model_fields:
            yield " (beta to 2)", mixer, {**options, "allow_neg_eigval": True}


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
    Study(
        "recipes", "–", "Does a limit on gradients, or a new order in every epoch, change who recalls, and where?",
        by_recipe, "accuracy", AT_BLOCK_1,
    ),
    Study("mqar", "–", "How wide must a mixer be to recall 4, 8, 16 or 64 pairs, all of them asked?", mqar, "accuracy"),
    Study(
        "capacity", "–", "How many pairs does a mixer recall at 90 %, and how large is the state that holds them?",
        capacity, "capacity",
    ),
    Study("hops", "–", "How many hops does a mixer of two layers follow?", hops, "accuracy"),
    Study(
        "tracking", "–", "Which mixers track a state beyond the lengths that they were trained on?", tracking,
        "accuracy",
    ),
    Study(
        "grandparent", "–", "Who finds a grandparent in a tree, and is it a second step after the parent?",
        lambda scale: preferred("atr", scale, query=("parent", "grandparent")), "accuracy", AT_BLOCK_1,
    ),
)  # fmt: skip
