"""What the paper says about associative recall, as questions to the rows of one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mecheval.paper.checks import (
    Check,
    at_floor,
    beside,
    check,
    close,
    fail_beside,
    gaps,
    labels,
    learnt,
    listed,
    none_learnt,
    percent,
    pick,
    shares,
    succeeds,
    unbeaten,
    within,
)  # fmt: skip
from mecheval.paper.thresholds import BENEFITS, MOST, RESTORED, STEP

if TYPE_CHECKING:  # slow to import
    import pandas as pd

LOCAL = ("based", "base_conv")
"""Mixers whose first layer is a short convolution: with one layer, the same model."""


def attention_is_perfect(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Accuracy 1 at every width of the paper from 32 up."""
    return [close(rows, "test_accuracy", 1.0, mixer="attention", d_model=d) for d in (32, 64, 128, 256)]


def attention_is_unbeaten(rows: pd.DataFrame, floor: float) -> list[Check]:
    """None is better at any width from 32 up."""
    return unbeaten(rows, "attention", "test_accuracy", least=32)


def based_at_its_best(rows: pd.DataFrame, floor: float) -> list[Check]:
    """The highest likelihood over all widths."""
    based = pick(rows, mixer="based")
    missing = gaps(based, "original")
    done = pick(based, status="done").dropna(subset=["original"])
    if done.empty or missing:  # a width that is not there might be the best one
        return missing or [Check("open", "based: diverged at every width")]
    top = done.loc[done["original"].idxmax()]
    said = f"the best is d {top['d_model']}: {percent(top['original'])} (paper: {percent(0.989)})"
    return [check(within(top["original"], 0.989), said)]


def mamba_256(rows: pd.DataFrame, floor: float) -> list[Check]:
    """The likelihood of the widest Mamba."""
    return [close(rows, "original", 0.903, mixer="mamba", d_model=256)]


def convolution_step(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Mamba only guesses with d_conv 1 or none, and gains most of what d_conv 4 gains at once with d_conv 2."""

    def holds(four: float, others: Sequence[float]) -> bool:
        none, one, two = others
        return at_floor(none, floor) and at_floor(one, floor) and two - one >= STEP * (four - floor)

    return beside(rows, floor, {"d_conv": 4}, [{"d_conv": size} for size in (0, 1, 2)], holds)


def never_at_value(rows: pd.DataFrame, floor: float) -> list[Check]:
    """No run that learnt benefits from the clean activation at the value."""
    able, missing = learnt(rows), gaps(rows, "original")
    if able.empty:
        return missing or [none_learnt("run")]
    found = shares(able, "restored_value")
    helped = found >= BENEFITS
    if helped.any():
        told = [f"{name} ({share:.2f})" for name, share in zip(labels(able[helped], rows), found[helped], strict=True)]
        said = f"{helped.sum()} of {len(able)} runs that learnt are restored at the value, by share: {listed(told)}"
        return [Check("fails", said), *missing]
    said = f"the highest restored share at the value is {found.max():.2f}, of {len(able)} runs that learnt"
    return [Check("holds", said), *missing]


def based_needs_short(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Based only guesses with kernel 1 or a long convolution, where it can with kernel 3."""
    return fail_beside(rows, floor, [{"kernel_size": 1}, {"kernel_size": -1}], {"kernel_size": 3})


def almost_all_at_next_key(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Of the runs that learnt, 9 of 10 are restored at the next key after the first convolution."""
    return _at_next_key(rows, lambda share: share >= MOST)


def most_at_next_key(rows: pd.DataFrame, floor: float) -> list[Check]:
    """As above for more than half of the runs that learnt."""
    return _at_next_key(rows, lambda share: share > 0.5)


def _at_next_key(rows: pd.DataFrame, enough: Callable[[float], bool]) -> list[Check]:
    able, missing = learnt(rows), gaps(rows, "original")
    if able.empty:
        return missing or [none_learnt("run")]
    there = shares(able, "conv0_at_next_key") >= RESTORED
    rest = able[~there]
    exceptions = [
        f"{name} ({first:.2f}, but {second:.2f} at the value after layer 1's convolution)"
        for name, first, second in zip(
            labels(rest, rows), shares(rest, "conv0_at_next_key"), shares(rest, "conv1_at_value"), strict=True
        )
    ]
    said = f"{there.sum()} of {len(able)} runs that learnt are restored there"
    said += f", not {listed(exceptions)}" if exceptions else ""
    if missing:  # runs that are still to come may change a count
        return [*missing, Check("aside", f"so far {said}")]
    return [check(enough(float(there.mean())), said)]


def attention_needs_positions_256(rows: pd.DataFrame, floor: float) -> list[Check]:
    """The two accuracies of the paper."""
    of = {"task": "ar", "mixer": "attention", "d_model": 256}
    return [
        close(rows, "test_accuracy", 0.0562, **of, positions="none"),
        close(rows, "test_accuracy", 1.0, **of, positions="learned"),
    ]


def attention_needs_positions(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Attention only guesses without position embeddings, where it can with them."""
    of = pick(rows, task="ar", mixer="attention")
    return fail_beside(of, floor, [{"positions": "none"}], {"positions": "learned"})


def one_layer_fails(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Models that do induction with two layers only guess with one."""
    of = pick(rows, task="ar")
    there = set(pick(of, n_layers=1)["mixer"])
    local = [mixer for mixer in LOCAL if mixer in there] or [LOCAL[0]]
    failing = [{"mixer": mixer, "n_layers": 1} for mixer in ("attention", *local)]
    return fail_beside(of, floor, failing, {"mixer": "attention", "n_layers": 2})


def one_layer_numbers(mixer: str, task: str, one: float, two: float, rows: pd.DataFrame) -> list[Check]:
    """The paper's accuracies with one layer and with two, at width 256."""
    of = {"task": task, "mixer": mixer, "d_model": 256}
    return [close(rows, "test_accuracy", paper, **of, n_layers=n) for n, paper in ((1, one), (2, two))]


def one_layer_is_enough(mixer: str, rows: pd.DataFrame, floor: float) -> list[Check]:
    """One layer succeeds at every width where two do."""
    of = pick(rows, task="ar", mixer=mixer)
    return beside(of, floor, {"n_layers": 2}, [{"n_layers": 1}], lambda _, others: succeeds(others[0], floor))
