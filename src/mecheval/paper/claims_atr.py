"""What the paper says about associative treecall, as questions to the rows of one seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mecheval.paper.checks import (
    Check,
    check,
    close,
    gaps,
    labels,
    learnt,
    listed,
    none_learnt,
    number,
    percent,
    pick,
    shares,
    unbeaten,
    why,
    widths,
)  # fmt: skip
from mecheval.paper.thresholds import LEARNT, RESTORED, TIE, TOLERANCE, WELL_ABOVE_ZERO

if TYPE_CHECKING:  # slow to import
    import pandas as pd

LOCAL = ("based", "base_conv")
"""Mixers whose first layer is a short convolution, and which have no other with one layer."""


def mamba_is_unbeaten(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Mamba matches or beats every other mixer at every width."""
    return unbeaten(rows, "mamba", "original")


def corrupted_is_high(rows: pd.DataFrame, floor: float) -> list[Check]:
    """With a corrupted key the answer is still likely, in every run."""
    done, missing = pick(rows, status="done").dropna(subset=["corrupted"]), gaps(rows, "corrupted")
    if done.empty:
        return missing or [Check("open", "every run diverged")]
    low = done[done["corrupted"] < WELL_ABOVE_ZERO]
    told = low if len(low) else done.nsmallest(1, "corrupted")
    lowest = listed([f"{n} {percent(c)}" for n, c in zip(labels(told, rows), told["corrupted"], strict=True)])
    said = f"{len(low)} of {len(done)} runs are below {percent(WELL_ABOVE_ZERO)}" if len(low) else "the lowest is"
    return [check(low.empty, f"{said}{':' if len(low) else ''} {lowest}"), *missing]


def likelihood_256(mixer: str, paper: float, rows: pd.DataFrame) -> list[Check]:
    """The likelihood at width 256."""
    return [close(rows, "original", paper, mixer=mixer, d_model=256)]


def no_convolution_256(rows: pd.DataFrame, floor: float) -> list[Check]:
    """The likelihood at width 256, and where it is restored."""
    wide = pick(rows, d_conv=0, d_model=256)
    return [close(rows, "original", 0.934, d_conv=0, d_model=256), *induction_without_convolution(wide, floor)]


def induction_without_convolution(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Mamba without a convolution is restored at the value, wherever it learnt."""
    bare = pick(rows, d_conv=0)
    able, missing = learnt(bare), gaps(bare, "original")
    if able.empty:
        return missing or [none_learnt("run without convolution")]
    checks = [
        check(share >= RESTORED, f"d {d}: restored share {share:.2f} at the value")
        for d, share in zip(able["d_model"], shares(able, "restored_value"), strict=True)
    ]
    return [*checks, *missing]


def holdout_attention_256(rows: pd.DataFrame, floor: float) -> list[Check]:
    """The accuracies on combinations that training asks for, and on others."""
    of = {"mixer": "attention", "d_model": 256}
    found = (("dev_accuracy", 0.9562), ("test_accuracy", 0.6812))
    return [
        Check(one.result, f"{column.split('_')[0]}: {one.said}")
        for column, paper in found
        for one in [close(rows, column, paper, **of)]
    ]


def holdout_is_harder(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Attention is worse on combinations that training never asks for, at every width where it learnt the others."""
    of = pick(rows, mixer="attention")
    able = _learnt_on_dev(of)
    checks = [
        check(dev - test > TIE, f"d {d}: dev {percent(dev)}, test {percent(test)}")
        for d, dev, test in able[["d_model", "dev_accuracy", "test_accuracy"]].itertuples(index=False)
    ]
    return [*checks, *gaps(of, "test_accuracy")] or [Check("open", "attention did not learn (dev attribution)")]


def holdout_mamba_128(rows: pd.DataFrame, floor: float) -> list[Check]:
    """The dev accuracy at width 128, and that only one mixer does better."""
    return [close(rows, "dev_accuracy", 0.65, mixer="mamba", d_model=128), *second_on_dev(rows, floor)]


def second_on_dev(rows: pd.DataFrame, floor: float) -> list[Check]:
    """By their best dev accuracy over widths, exactly one mixer is above Mamba."""
    missing = gaps(rows, "dev_accuracy")
    best = pick(rows, status="done").groupby("mixer")["dev_accuracy"].max().dropna().sort_values(ascending=False)
    if missing or "mamba" not in best or len(best) < 2:  # a mixer that is not there might be above
        return missing or [Check("open", "mamba diverged" if "mamba" not in best else "there is no other mixer")]
    if _learnt_on_dev(pick(rows, mixer="mamba")).empty:
        return [Check("open", "mamba did not learn (dev attribution)")]
    above = [f"{mixer} {percent(value)}" for mixer, value in best.items() if value > best["mamba"]]
    said = f"best dev accuracy: mamba {percent(best['mamba'])}; above it: {listed(above) or 'none'}"
    return [check(len(above) == 1, said)]


def h3_generalises_in_3(rows: pd.DataFrame, floor: float) -> list[Check]:
    """H3 is better than Mamba on test at 3 widths or more."""
    return _h3_above(rows, widths(rows), least=3)


def h3_generalises_in_most(rows: pd.DataFrame, floor: float) -> list[Check]:
    """H3 is better than Mamba on test at more than half of the widths where Mamba learnt."""
    able = widths(_learnt_on_dev(pick(rows, mixer="mamba")))
    if not able:
        return gaps(pick(rows, mixer="mamba"), "test_accuracy") or [
            Check("open", "mamba did not learn (dev attribution)")
        ]
    return _h3_above(rows, able, least=len(able) // 2 + 1)


def _h3_above(rows: pd.DataFrame, where: list[int], least: int) -> list[Check]:
    pairs = {d: [number(rows, "test_accuracy", mixer=mixer, d_model=d) for mixer in ("h3", "mamba")] for d in where}
    lacking = gaps(pick(rows, mixer=("h3", "mamba"), d_model=tuple(where)), "test_accuracy")
    if lacking or any(math.isnan(value) for pair in pairs.values() for value in pair):
        return lacking or [Check("open", "a run of h3 or mamba diverged")]
    above = sum(h3 > mamba for h3, mamba in pairs.values())
    told = "; ".join(f"d {d}: h3 {percent(h3)}, mamba {percent(mamba)}" for d, (h3, mamba) in pairs.items())
    return [check(above >= least, f"at {above} of {len(pairs)} widths: {told}")]


def _learnt_on_dev(rows: pd.DataFrame) -> pd.DataFrame:
    """Runs of which some intervention restores something on dev, whose combinations training asks for."""
    found = rows[[f"dev_attribution_{role}" for role in ("key", "value", "query")]].max(axis=1)
    return rows[(rows["status"] == "done") & (found > LEARNT)]


def one_layer_is_worse(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Attention on trees is worse with one layer, at every width where it learnt with two."""
    of = pick(rows, task="atr", mixer="attention")
    checks = []
    for d in widths(learnt(pick(of, n_layers=2))):
        one, two = (number(of, "test_accuracy", d_model=d, n_layers=n) for n in (1, 2))
        if math.isnan(one):
            checks.append(why(of, "test_accuracy", d_model=d, n_layers=1))
        else:
            checks.append(check(two - one > TIE, f"d {d}: {percent(one)} with 1 layer, {percent(two)} with 2"))
    return [*checks, *gaps(pick(of, n_layers=2), "original")] or [none_learnt("2-layer attention")]


def siblings_are_trivial(rows: pd.DataFrame, floor: float) -> list[Check]:
    """Every model but those with a local convolution only reaches 80 %."""
    able = rows[~_local(rows)]
    low = able[(able["status"] == "diverged") | (able["test_accuracy"] < 0.8 - TOLERANCE)]
    done, missing = able.dropna(subset=["test_accuracy"]), gaps(able, "test_accuracy")
    if len(low):
        told = [
            f"{name} {status if status == 'diverged' else percent(accuracy)}"
            for name, status, accuracy in zip(labels(low, able), low["status"], low["test_accuracy"], strict=True)
        ]
        return [Check("fails", f"{len(low)} of {len(able)} are below: {listed(told)}"), *missing]
    said = f"the lowest of {len(done)} is {percent(done['test_accuracy'].min())}"
    return ([Check("holds", said)] if len(done) else []) + missing


def local_models_are_worst(rows: pd.DataFrame, floor: float) -> list[Check]:
    """At every width, models with a local convolution only are worse than all others."""
    checks = []
    for d in widths(rows):
        here = pick(rows, d_model=d)
        done = pick(here, status="done").dropna(subset=["test_accuracy"])
        local, others = done[_local(done)]["test_accuracy"], done[~_local(done)]["test_accuracy"]
        missing = gaps(here, "test_accuracy")
        if missing or local.empty or others.empty:
            checks += missing or [Check("open", f"d {d}: one side is missing")]
            continue
        worst = done.loc[others.idxmin()]
        told = f"the worst other ({worst['mixer']}, {worst['n_layers']} layers) {percent(others.min())}"
        said = f"d {d}: local convolution only {percent(local.max())}, {told}"
        checks.append(check(bool(local.max() < others.min()), said))
    return checks


def _local(rows: pd.DataFrame) -> pd.Series:
    return rows["mixer"].isin(LOCAL) & (rows["n_layers"] == 1)
