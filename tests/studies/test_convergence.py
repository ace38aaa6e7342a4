"""How runs learn: exact steps, windows of learning rates, and hypotheses that can hold, fail and stay open."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from mecheval.figures import draw
from mecheval.studies import StudyTable, get_study
from mecheval.studies.convergence import appearance, hypotheses, pace, windows

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


def table(learnt: dict[str, tuple[int, ...]], seeds: int = 1, **pace: float) -> StudyTable:
    """Runs of some mixers, learnt (1) or not (0) by learning rate."""
    rows: list[dict[str, Any]] = [
        {"mixer": mixer, "d_model": 64, "lr": rate, "seed": seed, "run": f"{mixer}-{rate}-{seed}", "status": "done",
         "test_accuracy": 0.3 + 0.7 * yes, "to_90": 200.0 if yes else None, "jumps": 150.0 if yes else None,
         "appears": 100.0 if yes else None, **(pace if yes else {})}
        for mixer, several in learnt.items() for rate, yes in zip(RATES, several, strict=True) for seed in range(seeds)
    ]  # fmt: skip
    return StudyTable(get_study("convergence"), ("mixer", "d_model", "lr", "seed"), (), pd.DataFrame(rows))


def test_the_step_of_the_jump() -> None:
    assert pace([50, 100, 150, 200], [0.2, 0.3, 0.8, 0.95]) == (200, 150)
    assert pace([50, 100, 150, 200], [0.6, 0.65, 0.7, 0.95]) == (200, 50)
    assert pace([50, 100, 150, 200], [0.6, 0.65, 0.7, 0.95], chance=0.61) == (200, 200), "guessing is no recall"
    reached, jump = pace([50, 100], [0.2, 0.89])
    assert reached != reached
    assert jump != jump


def test_the_step_of_the_mechanism() -> None:
    way = [(50, "induction"), (100, "undetermined"), (150, "induction"), (200, "induction")]
    assert appearance(way, "induction", 230) == 150
    assert appearance(way, "direct_retrieval", 230) == 230


def test_windows() -> None:
    attention, mamba, h3 = windows(table({"attention": (1, 0, 1, 1, 0), "mamba": (0, 0, 1, 0, 0), "h3": (0,) * 5}))
    assert (attention["first"], attention["last"], attention["learnt"]) == (3e-3, 1e-2, 3)
    assert attention["low"] < 0.6 < attention["high"]
    assert (mamba["first"], mamba["last"], mamba["to_90"]) == (3e-3, 3e-3, 200)
    assert (h3["first"], h3["share"]) == (None, 0)


@pytest.mark.parametrize(
    ("attention", "mamba", "outcome"),
    [
        ((1, 1, 1, 1, 1), (0, 0, 1, 0, 0), "holds"),
        ((0, 0, 1, 0, 0), (1, 1, 1, 1, 1), "contradicted"),
        ((1, 1, 1, 0, 0), (0, 1, 1, 1, 0), "inconclusive"),
    ],
)
def test_fewer_rates_than_attention(attention: tuple[int, ...], mamba: tuple[int, ...], outcome: str) -> None:
    first, *_ = hypotheses(table({"attention": attention, "mamba": mamba}, seeds=4))
    assert first.startswith(f"mamba learns with fewer learning rates than attention: {outcome} (")


@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_pairs_to_decide_are_said_to_be(seeds: int) -> None:
    first, *_ = hypotheses(table({"attention": (1,) * 5, "mamba": (0,) * 5}, seeds=seeds))
    assert ("5 pairs of runs cannot decide it, more --seeds can" in first) == (seeds == 1)
    assert (": holds (" in first) == (seeds == 2)


@pytest.mark.parametrize(("appears", "outcome"), [(100.0, "holds"), (200.0, "contradicted")])
def test_mechanism_before_accuracy(appears: float, outcome: str) -> None:
    last = hypotheses(table({"attention": (1,) * 5}, seeds=3, appears=appears))[-1]
    assert last.startswith(f"In most runs the mechanism appears no later than the accuracy jumps: {outcome} (")


def test_the_figure() -> None:
    made = table({"attention": (1, 0, 1, 1, 0), "mamba": (0, 0, 1, 0, 0)})
    drawn = draw(made, "How?")
    rows = [row for rows in drawn.spec["datasets"].values() for row in rows]
    assert {(row["mixer"], row["lr"]): row["share"] for row in rows if "share" in row}["mamba", "3e-3"] == 1
    assert {row["step"] for row in rows if "what" in row} == {100, 150, 200}
    assert "mamba, d_model 64: 1 of 5 runs learn" in drawn.description
    assert "appears 50 steps before the jump of its accuracy" in drawn.description
