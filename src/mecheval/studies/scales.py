"""The two scales of every study: the paper's, and one for a laptop.

The laptop's tasks, steps, widths and rates were chosen by accuracy alone, before interventions on them were looked at.
`PREFERRED` came later, after a first run of all studies with both rates, to save time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from mecheval.studies.axes import MIXERS as MIXERS
from mecheval.studies.study import Reading
from mecheval.sweep import Point, grid
from mecheval.types import FRAMED, MISSING, Meaning

BASE: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("ar", "laptop"): {
        "preset": "laptop", "pairs": 4, "keys": 8, "values": 32, "queries": 4, "batch_size": 64, "steps": 2000,
        "interchange_every": 50, "interchange_documents": 32,
    },
    ("atr", "laptop"): {"preset": "laptop", "max_length": 32, "batch_size": 64, "steps": 1200, "evaluate.every": 100},
    ("", "paper"): {"preset": "paper"},
    ("", "laptop"): {"preset": "laptop", "batch_size": 64, "steps": 2000},
}  # fmt: skip
"""What a task's runs have in common at a scale; "" is any other task, here and in WIDTHS and RATES.

Few keys and many values let every mixer but BaseConv learn at width 128 in 2,000 steps; four queries give four
times the signal, and a model without recall an accuracy of 0.52, by excluding the answers already given. Interventions
on the way, a sixth of the time, show the mechanism as it forms."""
WIDTHS = {
    ("ar", "paper"): (16, 32, 64, 128, 256),
    ("ar", "laptop"): (64, 128),
    ("atr", "laptop"): (64,),
    ("", "paper"): (16, 32, 64, 128, 256),
    ("", "laptop"): (128,),
}
RATES = {
    ("ar", "paper"): (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    ("ar", "laptop"): (1e-3, 3e-3),
    ("", "paper"): (3e-5, 1e-4, 3e-4, 1e-3, 3e-3),
    ("", "laptop"): (1e-3, 3e-3),
}

SLOW, FAST = RATES["ar", "laptop"]
PREFERRED = {"attention": SLOW, "sliding_attention": SLOW}
"""On a laptop, the one learning rate of the quickstart and of studies about something else; FAST for the others.

Chosen by dev accuracy in study `ar` with both rates. With FAST, attention learns at width 128 but not at 64, nor with
three layers; with SLOW, Mamba of two layers does not learn, and BaseConv and Hyena learn less. Sliding attention was
chosen by dev accuracy in study `newer` over three seeds: at least 0.99 with SLOW, at most 0.27 with FAST.
"""

QUICK = {"values": 16, "interchange_every": 100}
"""The settings in which the quickstart differs from study `ar` at scale laptop."""

T = TypeVar("T")


def at_scale(table: Mapping[tuple[str, str], T], task: str, scale: str) -> T:
    """The entry of one of the tables above for a task."""
    return table.get((task, scale), table["", scale])


def at_block_1(meaning: Meaning) -> tuple[Reading, ...]:
    """Readings of where the clean input of block 1 restores the answer, for models of two layers."""
    roles = {"key": meaning.key, "value": meaning.value, "query": meaning.query}
    return tuple(
        Reading(f"restored_{kind}", f"restored at {role}", "blocks.1.input", role or MISSING)
        for kind, role in roles.items()
    )


AT_BLOCK_1 = at_block_1(FRAMED)


def runs(task: str, scale: str, options: Mapping[str, Any] = {}, /, **axes: Sequence[Any]) -> list[Point]:
    """A task's runs at a scale: the given axes, then widths and learning rates (unless they are among the axes)."""
    usual = {"d_model": at_scale(WIDTHS, task, scale), "lr": at_scale(RATES, task, scale)}
    rest = {name: values for name, values in usual.items() if name not in axes}
    return grid({"task": task, **at_scale(BASE, task, scale), **options}, **axes, **rest)


def one_width(task: str, scale: str) -> dict[str, Sequence[int]]:
    """A single width at scale laptop, for studies in which the width does not matter."""
    return {"d_model": at_scale(WIDTHS, task, scale)[-1:]} if scale == "laptop" else {}


def preferred(
    task: str, scale: str, options: Mapping[str, Any] = {}, /, mixers: Sequence[str] = MIXERS, **axes: Sequence[Any]
) -> list[Point]:
    """The runs of several mixers; on a laptop, one width, and each mixer's preferred learning rate alone."""
    if scale != "laptop":
        return runs(task, scale, options, mixer=mixers, **axes)
    return [
        point
        for mixer in mixers
        for point in runs(
            task, scale, options, mixer=(mixer,), **axes, **one_width(task, scale), lr=(PREFERRED.get(mixer, FAST),)
        )
    ]


def quick(options: Mapping[str, Any] = {}) -> list[Point]:
    """The runs of the quickstart, and of the mixers that a custom one is compared with.

    As in study `ar` at width 128, each mixer with its preferred learning rate; fewer values let all seven learn sooner.
    """
    return preferred("ar", "laptop", {**QUICK, **options})


def both_tasks(scale: str, **axes: Sequence[Any]) -> list[Point]:
    """The runs of both tasks with every mixer."""
    return [point for task in ("ar", "atr") for point in preferred(task, scale, task=(task,), **axes)]
