from __future__ import annotations

import numpy as np
import pytest

from mecheval import rng
from mecheval.errors import UserError


def test_next64_is_splitmix64() -> None:
    # The published sequence of SplitMix64 from state 1234567.
    state = np.array([1234567], dtype=np.uint64)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [int(rng.next64(state)) for _ in expected] == expected


@pytest.mark.parametrize("n", [1, 2, 3, 7, 4096, 1 << 31])
def test_below_stays_in_range_and_is_centred(n: int) -> None:
    state = np.array([7], dtype=np.uint64)
    draws = np.array([rng.below(state, n) for _ in range(4000)])
    assert draws.min() >= 0
    assert draws.max() < n
    assert abs(draws.mean() - (n - 1) / 2) <= 4 * n / np.sqrt(12 * 4000)


def test_below_rejects_the_uneven_rest() -> None:
    # With n just above 2**31, every second 32-bit word would be doubled without rejection: half of all draws
    # would fall on even products only. Exact uniformity shows as an even split of low and high halves.
    n = (1 << 31) + 1
    state = np.array([11], dtype=np.uint64)
    draws = np.array([rng.below(state, n) for _ in range(4000)])
    assert abs((draws < n // 2).mean() - 0.5) < 0.04
    assert abs((draws % 2).mean() - 0.5) < 0.04


def test_pick_follows_the_cut_points_exactly() -> None:
    cuts = rng.cut_points(np.array([0.25, 0.0, 0.5, 0.25]))
    assert cuts.tolist() == [rng.ONE // 4, rng.ONE // 4, 3 * rng.ONE // 4, rng.ONE]
    state = np.array([3], dtype=np.uint64)
    copy = state.copy()
    for _ in range(2000):
        expected = int(np.searchsorted(cuts, np.uint64(rng.bits53(copy)), side="right"))
        assert rng.pick(state, cuts, 0, 4) == expected


@pytest.mark.parametrize("seed", [0, 1, 1 << 63, (1 << 64) - 1])
def test_plain_python_draws_what_kernels_draw(seed: int) -> None:
    for number in (0, 1, (1 << 64) - 1):
        assert rng.derived(np.uint64(seed), number) == np.uint64(rng.fold(np.uint64(seed), np.uint64(number)))
    numbers = np.array([0, 1, (1 << 64) - 1], dtype=np.uint64)
    assert rng.folded(np.uint64(seed), numbers).tolist() == [rng.derived(seed, int(number)) for number in numbers]
    state, plain = rng.generator(np.uint64(seed)), rng.Draws(seed)
    for n in (1, 2, 3, 1000, (1 << 31) + 1, (1 << 32) - 1):  # with the last but one, every second draw is rejected
        assert [plain.below(n) for _ in range(50)] == [rng.below(state, n) for _ in range(50)]
        assert plain.bits(53) == rng.bits53(state)


def test_dirichlet_sums_to_one_and_has_the_uniform_moments() -> None:
    state = rng.Draws(int(rng.key(0, "grammar")))
    draws = np.array([state.dirichlet(5) for _ in range(3000)])
    assert (draws.sum(axis=1) == 1).all()
    assert draws.min() >= 0
    assert np.allclose(draws.mean(axis=0), 0.2, atol=0.02)
    assert np.allclose(draws.var(axis=0), 4 / (25 * 6), atol=0.003)  # variance of a uniform Dirichlet share
    assert state.dirichlet(1).tolist() == [1.0]


def test_streams_of_one_seed_differ() -> None:
    assert len({int(rng.key(seed, stream)) for seed in range(50) for stream in rng.STREAMS}) == 50 * len(rng.STREAMS)


@pytest.mark.parametrize("seed", [-1, 1 << 64, 0.5])
def test_a_bad_seed_is_named(seed: int) -> None:
    with pytest.raises(UserError, match="whole number"):
        rng.key(seed, "train")
