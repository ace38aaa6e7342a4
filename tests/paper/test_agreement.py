from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mecheval.paper.agreement import STEPS, agreement, beside, differences, early, interval, laptop, ranks, spearman
from mecheval.paper.standings import COLUMNS
from mecheval.store import RESULTS, Store

MIXERS = ("attention", "base_conv", "based", "delta_net", "mamba2")


def table(likelihoods: dict[str, float], verdicts: dict[str, str | None], width: int = 32, **more: Any) -> pd.DataFrame:
    rows = [
        {"task": "ar", "setting": name, "mixer": name, "option": "", "d_model": width, "likelihood": value,
         "verdict": verdicts[name], **more}
        for name, value in likelihoods.items()
    ]  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def test_the_correlation_of_ranks_is_scipys_with_ties_too() -> None:
    random = np.random.default_rng(0)
    for n in (5, 9, 30):
        ours, theirs = random.integers(6, size=(2, n)).astype(float)
        assert ranks(ours) + 1 == pytest.approx(stats.rankdata(ours))
        assert spearman(ours, theirs) == pytest.approx(stats.spearmanr(ours, theirs).statistic)


def test_a_correlation_needs_settings_that_differ() -> None:
    assert math.isnan(spearman(np.array([1.0, 2, 3]), np.array([1.0, 2, 3])))
    assert math.isnan(spearman(np.ones(9), np.arange(9.0)))
    assert all(map(math.isnan, interval(np.ones(9), np.arange(9.0))))


def test_the_interval_holds_the_true_correlation_as_often_as_it_says() -> None:
    """Of 40 settings with a known correlation of ranks; 200 draws have a standard error of 1.5 points."""
    random, held = np.random.default_rng(1), 0
    of_ranks = 6 / math.pi * math.asin(0.7 / 2)  # Spearman's of two normal numbers with Pearson's 0.7
    for _ in range(200):
        drawn = random.multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], size=40)
        low, high = interval(drawn[:, 0], drawn[:, 1])
        held += low <= of_ranks <= high
    assert 0.88 <= held / 200 <= 1.0


def test_a_scale_agrees_with_itself_and_an_opposite_one_does_not() -> None:
    up = dict(zip(MIXERS, (0.1, 0.3, 0.5, 0.7, 0.9), strict=True))
    verdicts: dict[str, str | None] = {name: "induction" if value > 0.2 else "not_learnt" for name, value in up.items()}
    ours = table(up, verdicts)
    same = agreement(ours, ours).to_dict("records")
    assert [(row["group"], row["settings"]) for row in same] == [
        ("the paper's mixers", 4),
        ("all mixers and hybrids", 5),
    ]
    for row in same:
        assert (row["correlation"], row["recalls"], row["stored"]) == pytest.approx((1, 1, 1))
    down = table({name: 1 - value for name, value in up.items()}, dict.fromkeys(up, "not_learnt"))
    last = agreement(down, ours).to_dict("records")[-1]
    assert last["correlation"] == pytest.approx(-1)
    assert (last["recalls_hits"], last["recalls_of"], last["stored_of"]) == (1, 5, 0)
    assert math.isnan(last["stored"])


def test_mechanisms_are_compared_where_both_scales_learnt_and_settings_where_both_have_a_verdict() -> None:
    up = dict.fromkeys(MIXERS, 0.5)
    small = table(up, dict(zip(MIXERS, ("induction", "mixed", "not_learnt", "induction", None), strict=True)), 128)
    large = table(up, dict(zip(MIXERS, ("induction", "induction", "mixed", "not_learnt", "mixed"), strict=True)))
    [row] = agreement(small, large).to_dict("records")
    assert row["settings"] == 4
    assert (row["recalls_hits"], row["recalls_of"]) == (2, 4)
    assert (row["stored_hits"], row["stored_of"]) == (1, 2)
    assert row["recalls_low"] < 0.5 < row["recalls_high"]
    assert len(differences(beside(small, large))) == 3
    assert differences(beside(small, large), widths=(64,)) == []


def test_the_small_scale_is_seen_at_its_largest_width() -> None:
    small = pd.concat([table({"mamba": 0.9}, {"mamba": "mixed"}, 128), table({"mamba": 0.1}, {"mamba": "joint"}, 64)])
    [row] = beside(small, table({"mamba": 0.5}, {"mamba": "mixed"}, 32)).to_dict("records")
    assert (row["d_small"], row["likelihood_small"], row["verdict_small"]) == (128, 0.9, "mixed")


def test_the_results_at_scale_laptop_that_come_with_the_package_are_standings() -> None:
    found = laptop()
    assert list(found) == list(COLUMNS)
    assert not found.duplicated(["task", "setting", "d_model"]).any()
    assert found["likelihood"].between(0, 1).all()


def test_runs_rank_the_better_like_their_ends_the_nearer_these_are() -> None:
    found = early(Store(RESULTS), {"attention", "based", "delta_net", "mamba", "h3", "hyena"})
    assert [(row["task"], row["step"]) for row in found.to_dict("records")] == [
        (task, step) for task, steps in STEPS.items() for step in steps
    ]
    assert set(found["settings"]) == {6}
    for _, own in found.groupby("task"):
        assert own["correlation"].iloc[-1] > max(0.7, own["correlation"].iloc[0])
