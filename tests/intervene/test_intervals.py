from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage import BANDS, binomial, coverage, covered, false_alarms
from mecheval.errors import UserError
from mecheval.intervene.intervals import (
    _logit_quantiles,
    _widening,
    difference_interval,
    mean_interval,
    share_interval,
    surely_above,
)


@pytest.mark.parametrize("n", [2, 3, 16, 64, 256, 2000])
def test_documents_that_are_all_alike_leave_room_for_others(n: int) -> None:
    rule_of_three = 0.025 ** (1 / n)
    for ones in (mean_interval(np.ones(n)), share_interval(np.full(n, 0.7), np.full(n, 0.7))):
        np.testing.assert_allclose(ones, (rule_of_three, 1), rtol=5e-3)
    np.testing.assert_allclose(mean_interval(np.zeros(n)), (0, 1 - rule_of_three), rtol=5e-3, atol=1e-9)
    for middle in (0.5, 0.3):
        low, high = mean_interval(np.full(n, middle))
        assert middle * rule_of_three - 0.05 < low < middle - 0.5 / n / n**0.5
        assert middle + 0.5 / n / n**0.5 < high < 1 - (1 - middle) * rule_of_three + 0.05
    low, high = difference_interval(np.ones(n), np.ones(n))
    assert low == pytest.approx(-high)
    assert high > 1 / n


def test_one_document_gives_the_whole_range_and_none_gives_nothing() -> None:
    np.testing.assert_array_equal(mean_interval(np.array([0.4])), (0, 1))
    np.testing.assert_array_equal(difference_interval(np.array([0.4]), np.array([0.2])), (-1, 1))
    np.testing.assert_array_equal(share_interval(np.array([0.4]), np.array([0.5])), (0, 1))
    low, high = share_interval(np.array([0.6]), np.array([0.5]))
    assert low == 0
    assert high >= 1.2
    missing = np.array([[0.2, np.nan, np.nan], [np.nan] * 3, [0.2, 0.4, 0.5]])
    low, high = mean_interval(missing)
    assert (low[0], high[0]) == (0, 1)
    assert np.isnan([low[1], high[1]]).all()
    assert 0 < low[2] < high[2] < 1
    assert np.isnan(mean_interval(np.zeros(0))).all()


def test_quantiles_are_those_of_beta_and_student() -> None:
    rng = np.random.default_rng(0)
    a, b = 10 ** rng.uniform(-0.5, 6, (2, 200))
    for tail in (0.005, 0.025, 0.975):
        (logits,) = _logit_quantiles(a, b, (tail,))
        np.testing.assert_allclose(stats.beta.cdf(1 / (1 + np.exp(-logits)), a, b), tail, atol=3e-4)
    freedom = np.array([1, 2, 5, 15, 300])
    for level in (0.9, 0.95, 0.99):
        ratio = stats.t.ppf((1 + level) / 2, freedom) / stats.norm.ppf((1 + level) / 2)
        np.testing.assert_allclose(np.sqrt(_widening(freedom, level)), ratio, rtol=0.01)


def test_far_from_the_ends_intervals_are_students_and_for_right_or_wrong_jeffreyss() -> None:
    x = 0.6 + 0.02 * np.random.default_rng(0).standard_normal(20)
    half = stats.t.ppf(0.975, 19) * x.std(ddof=1) / 20**0.5
    np.testing.assert_allclose(mean_interval(x), (x.mean() - half, x.mean() + half), atol=2e-4)
    for right, n in ((1, 16), (3, 64), (60, 64), (128, 256)):
        jeffreys = stats.beta.ppf((0.025, 0.975), right + 0.5, n - right + 0.5)
        hits = (np.arange(n) < right).astype(float)
        np.testing.assert_allclose(mean_interval(hits), jeffreys, rtol=5e-3)
        restored = share_interval(hits * 0.7, np.full(n, 0.7))
        np.testing.assert_allclose(restored, jeffreys, rtol=5e-3)


def test_shares_beyond_one_are_inside_and_doubtful_gaps_give_the_whole_range() -> None:
    shares = np.array([1.02, 1.05, 1.01, 1.03, 0.99, 1.04])
    low, high = share_interval(shares, np.ones(6))
    assert low < shares.mean() < high
    assert high > 1.03
    low, high = share_interval(-0.1 * shares, np.ones(6))
    assert low < -0.1 * shares.mean() < high
    gap = np.array([0.3, -0.2, 0.25, -0.3, 0.1])
    low, high = share_interval(0.5 * gap, gap)  # the mean gap is 0.03 ± 0.12
    assert low <= 0
    assert high >= 1
    assert np.isnan(share_interval(gap, -np.abs(gap))).all()  # nothing was lost
    steady = np.array([0.5, 0.6, -0.01, 0.7, 0.55, 0.65])  # one small negative gap does no harm
    low, high = share_interval(0.5 * steady + 0.01 * np.array([1, -1, 1, 1, -1, -1]), steady)
    assert 0.45 < low < 0.5 < high < 0.55


def test_every_cell_is_computed_as_if_alone_and_quickly() -> None:
    rng = np.random.default_rng(1)
    gap = rng.beta(4, 2, (300, 320))
    attribution = gap * rng.beta(np.linspace(0.01, 2, 300)[:, None], 1, gap.shape)
    attribution[::7, ::5] = np.nan
    took = []
    for _ in range(5):
        before = time.process_time()
        low, high = share_interval(attribution, gap)
        took.append(time.process_time() - before)
    assert min(took) < 0.05
    for cell in (0, 1, 150, 299):
        np.testing.assert_allclose(share_interval(attribution[cell], gap[cell]), (low[cell], high[cell]))
    shared = share_interval(attribution * 0 + 0.1, gap[0])  # one gap for all cells
    assert shared[0].shape == (300,)
    again = share_interval(attribution, gap)
    assert (again[0] == low).all()
    assert (again[1] == high).all()


def test_clusters_count_once_and_runs_count_as_drawn() -> None:
    rng = np.random.default_rng(2)
    x = rng.random((4, 40))
    four_times, names = np.repeat(x, 4, axis=1), np.repeat(np.arange(40), 4)
    np.testing.assert_allclose(mean_interval(four_times, names), mean_interval(x))
    by_name = np.array([f"document {i}" for i in names])
    order = rng.permutation(160)
    np.testing.assert_allclose(mean_interval(four_times[:, order], by_name[order]), mean_interval(x))
    gap = rng.random((4, 40)) + 0.5
    np.testing.assert_allclose(
        share_interval(np.repeat(x * gap, 4, axis=1), np.repeat(gap, 4, axis=1), names), share_interval(x * gap, gap)
    )

    same = [rng.random(200) for _ in range(4)]
    low, high = mean_interval(same)
    pooled = mean_interval(np.concatenate(same))
    assert high - low > 0.99 * (pooled[1] - pooled[0])
    differing = [0.2 * run + shift for run, shift in zip(same, (0.1, 0.3, 0.5, 0.7), strict=True)]
    low, high = mean_interval(differing)
    half = stats.t.ppf(0.975, 3) * np.std([run.mean() for run in differing], ddof=1) / 2
    assert high - low == pytest.approx(2 * half, rel=0.25)
    lengths = [x[:, :30], x]
    assert mean_interval(lengths, [np.arange(30), np.arange(40)])[0] == pytest.approx(mean_interval(lengths)[0])


def test_wider_for_higher_levels_and_for_fewer_documents() -> None:
    x = np.random.default_rng(3).beta(9, 1, 64)
    widths = [np.subtract(*mean_interval(x, level=level)[::-1]) for level in (0.5, 0.8, 0.95, 0.99)]
    assert widths == sorted(widths)
    widths = [np.subtract(*mean_interval(x[:n])[::-1]) for n in (64, 16, 4, 1)]
    assert widths == sorted(widths)


def test_mirrored_documents_have_mirrored_intervals() -> None:
    x = np.random.default_rng(4).beta(0.2, 2, (50, 12))
    low, high = mean_interval(x)
    np.testing.assert_allclose(mean_interval(1 - x), (1 - high, 1 - low), atol=1e-9)
    np.testing.assert_allclose(difference_interval(x, 0 * x), -np.array(difference_interval(0 * x, x))[::-1], atol=1e-9)


@pytest.mark.parametrize("share", [0.5, 0.98])
@pytest.mark.parametrize("n", [16, 64])
def test_coverage_is_what_the_level_says(share: float, n: int) -> None:
    slack = 2.5 * (0.05 * 0.95 / 700) ** 0.5
    for kind in ("Beta, ν = 2", "Beta, ν = 5", "Beta, ν = 20", "normal, sd 0.02", "restored or not"):
        held = coverage(share_interval, kind, share, n, repetitions=700, seed=7)[0]
        assert 0.93 - slack < held < 0.975 + slack, kind


def test_coverage_of_documents_that_are_nearly_all_or_nothing() -> None:
    """Between graded documents and those that are all or nothing there is no step at which intervals grow too wide."""
    slack = 2.5 * (0.025 * 0.975 / 2000) ** 0.5
    kinds = ("Beta, ν = 0.1", "Beta, ν = 0.5", "Beta, ν = 1")
    held = [coverage(share_interval, kind, band, 16, 2000, seed=7)[0] for kind in kinds for band in BANDS.values()]
    assert 0.93 - slack < min(held) < max(held) < 0.975 + slack
    assert 0.955 < sum(held) / len(held) < 0.9665


@pytest.mark.parametrize(("n", "worst"), [(16, 0.91), (64, 0.93), (256, 0.93)])
def test_right_or_wrong_documents_are_covered_around_every_share(n: int, worst: float) -> None:
    """Only n + 1 outcomes exist, so coverage jumps with the share: bands tell its level, single shares its worst."""
    shares, held = covered(n)
    assert held.min() > worst
    for low, high in BANDS.values():
        inside = held[(shares >= low) & (shares <= high)]
        assert 0.93 < inside.mean() < 0.975, (low, high)


def test_no_interval_that_treats_right_and_wrong_alike_covers_one_half_as_it_should_from_16_documents() -> None:
    """What misses on one side misses on the other, so coverage is a sum of pairs of outcomes: 92.3 or 97.9 %."""
    chances = stats.binom.pmf(np.arange(17), 16, 0.5)
    possible = [chances[k : 17 - k].sum() for k in range(9)]
    assert not any(0.93 <= held <= 0.975 for held in possible)
    assert dict(binomial(0.5, 16))["this"] == pytest.approx(min(possible, key=lambda held: abs(held - 0.95)), abs=1e-9)


def test_chance_is_rarely_taken_for_more() -> None:
    for values in (4, 8):
        for name, rate in false_alarms(values, 16, repetitions=600, seed=7):
            assert rate < 0.025 + 2 * (0.025 / 600) ** 0.5, name
    assert surely_above(np.full(16, 0.6), np.full(16, 0.25))
    assert not surely_above(np.full(1, 1.0), np.full(1, 0.25))
    several = np.array([[0.9, 0.8, 0.95, 0.9] * 2, [0.2, 0.3, 0.2, 0.3] * 2])
    assert surely_above(several, np.full(8, 0.25)).tolist() == [True, False]


def test_likelihoods_may_be_off_by_rounding() -> None:
    np.testing.assert_array_equal(mean_interval(np.full(9, 1 + 1e-6)), mean_interval(np.ones(9)))
    noisy = share_interval(np.full(9, 0.7), 0.7 + 1e-7 * np.arange(-4, 5))
    np.testing.assert_allclose(noisy, mean_interval(np.ones(9)), atol=1e-4)


def test_mistakes_are_one_line() -> None:
    x = np.full((2, 3), 0.5)
    with pytest.raises(UserError, match=r"mean_interval: all numbers must lie in \[0, 1\]"):
        mean_interval(x + 1)
    with pytest.raises(UserError, match=r"differences must lie in \[-1, 1\]"):
        difference_interval(x, x - 2)
    with pytest.raises(UserError, match="same runs and documents"):
        share_interval(x, x[:, :2])
    with pytest.raises(UserError, match="2 cells do not go with 3"):
        share_interval(x, np.ones((3, 3)))
    with pytest.raises(UserError, match="same cells in every run"):
        mean_interval([x, x[:1]])
    with pytest.raises(UserError, match="3 numbers need as many clusters, not 2"):
        mean_interval(x, [0, 1])
    with pytest.raises(UserError, match="2 runs need as many arrays of clusters, not 1"):
        mean_interval([x, x], [np.arange(3)])
    with pytest.raises(UserError, match=r"level must be between 0 and 1 \(got 95"):
        mean_interval(x, level=95)
