"""Runs drawn from known truths: how often is a claim decided wrongly?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from mecheval.paper.estimates import (
    LEVEL,
    MANY,
    PRIOR,
    SPREAD,
    Apart,
    Estimate,
    Part,
    Tally,
    estimate,
    from_paper,
    spread_of,
    student,
)  # fmt: skip
from mecheval.paper.limits import DOCUMENTS, USUAL

DRAWS = 500
WRONG = stats.binom.ppf(0.999, DRAWS, 1 - LEVEL) / DRAWS
"""More wrong decisions than this, in so many draws, are more than 5 % with near certainty."""
Runs = list[float]


def drawn(random: np.random.Generator, truth: float, seeds: int, spread: float) -> list[Runs]:
    """Runs of one setting: the mean over seeds is the truth, and seeds and documents make each run another number."""
    p = np.clip(truth + spread * truth * (1 - truth) * random.standard_normal((DRAWS, seeds)), 0, 1)
    found: list[Runs] = (random.binomial(DOCUMENTS, p) / DOCUMENTS).tolist()
    return found


def states(
    first: tuple[float, int], second: tuple[float, int], spread: float, make: Callable[[Runs, Runs], Part]
) -> dict[str, float]:
    """How often each state is found; either side is a truth and a number of seeds."""
    random = np.random.default_rng([first[1], *(int(1e4 * truth) for truth, _ in (first, second))])
    sides = (drawn(random, *side, spread) for side in (first, second))
    found = [make(*runs).state(1) for runs in zip(*sides, strict=True)]
    return {state: found.count(state) / DRAWS for state in ("holds", "fails", "unsure")}


def beside_the_paper(ours: float, paper: float, seeds: int, spread: float) -> dict[str, float]:
    """A claim about a number, which the paper drew once from its own truth."""

    def part(runs: Runs, theirs: Runs) -> Part:
        return Part("", from_paper(runs, DOCUMENTS, theirs[0], DOCUMENTS), -USUAL.tolerance, USUAL.tolerance)

    return states((ours, seeds), (paper, 1), spread, part)


def against_each_other(first: float, second: float, seeds: int, spread: float) -> dict[str, float]:
    """A claim that one mixer is above the other."""

    def part(ours: Runs, theirs: Runs) -> Part:
        return Part("", estimate(ours, DOCUMENTS) - estimate(theirs, DOCUMENTS), 0.0)

    return states((first, seeds), (second, seeds), spread, part)


@pytest.mark.parametrize("truth", [0.3156, 0.903, 1.0])
@pytest.mark.parametrize("seeds", [1, 3, 5])
@pytest.mark.parametrize("spread", [0.0, SPREAD])
def test_the_truth_is_the_papers(truth: float, seeds: int, spread: float) -> None:
    assert beside_the_paper(truth, truth, seeds, spread)["fails"] <= 0.01


@pytest.mark.parametrize(("ours", "paper"), [(0.5, 0.3156), (0.75, 0.903), (0.85, 1.0)])
@pytest.mark.parametrize("spread", [0.0, SPREAD])
def test_the_truth_is_another(ours: float, paper: float, spread: float) -> None:
    one, three, nine = (beside_the_paper(ours, paper, seeds, spread) for seeds in (1, 3, 9))
    assert one["fails"] == 0  # one seed never contradicts
    assert max(one["holds"], three["holds"], nine["holds"]) <= WRONG
    assert nine["holds"] <= one["holds"] + 0.005
    assert nine["fails"] >= three["fails"]


def test_at_the_edge_of_the_tolerance() -> None:
    for seeds in (1, 3, 9):
        found = beside_the_paper(0.8, 0.9, seeds, SPREAD)
        assert max(found["holds"], found["fails"]) <= WRONG


@pytest.mark.parametrize("truth", [0.06, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("seeds", [1, 3, 5])
@pytest.mark.parametrize("spread", [0.0, SPREAD])
def test_two_equal_mixers(truth: float, seeds: int, spread: float) -> None:
    found = against_each_other(truth, truth, seeds, spread)
    assert found["holds"] + found["fails"] <= WRONG


def test_more_seeds_decide_more_often_and_are_wrong_less_often() -> None:
    right = [against_each_other(0.9, 0.75, seeds, SPREAD) for seeds in (1, 3, 9)]
    assert [each["fails"] for each in right] == [0, 0, 0]
    assert right[0]["holds"] < right[1]["holds"] < right[2]["holds"]


def test_seeds_that_learn_or_not_by_chance() -> None:
    """Half of the seeds are at 5 % and half at 80 %, in the paper, too: no spread that is assumed covers this."""
    random, wrong = np.random.default_rng(0), 0
    for _ in range(DRAWS):
        p = random.choice([0.05, 0.8], MANY + 1)
        *ours, paper = (random.binomial(DOCUMENTS, p) / DOCUMENTS).tolist()
        wrong += (
            Part("", from_paper(ours, DOCUMENTS, paper, DOCUMENTS), -USUAL.tolerance, USUAL.tolerance).state(1)
            == "fails"
        )
    assert wrong / DRAWS <= 0.25  # three alike, and the paper's another: 2 / 16, and no interval can know


@pytest.mark.parametrize("freedom", [PRIOR, 5, 6, 12, 100])
@pytest.mark.parametrize("level", [0.95, 0.99, 0.999])
def test_quantiles_of_student(freedom: int, level: float) -> None:
    assert student(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=0.015)


@pytest.mark.parametrize(("hits", "of"), [(0, 5), (9, 10), (10, 10), (31, 60)])
def test_shares_of_runs(hits: int, of: int) -> None:
    exact = stats.binomtest(hits, of).proportion_ci()
    assert Tally(hits, of).interval() == pytest.approx((exact.low, exact.high), abs=1e-6)


def test_one_of_many_parts_needs_more_to_fail() -> None:
    part = Part("", Estimate(0.0, 0.01, ((0.0, 97),)), low=0.22)
    assert (part.state(1), part.state(10)) == ("fails", "unsure")


def test_failing_by_accident_is_rarely_taken_for_failing() -> None:
    """Two settings of which each seed learns with probability 0.3: a claim that both fail is wrong."""
    random = np.random.default_rng(3)

    def reproduced(seeds: int) -> float:
        p = np.where(random.random((DRAWS, 2, seeds)) < 0.3, 0.8, 0.03)
        runs = random.binomial(DOCUMENTS, p) / DOCUMENTS
        found = [[Part("", estimate(own.tolist(), DOCUMENTS), high=0.16, failing=True).state(2) for own in pair]
                 for pair in runs]  # fmt: skip
        return float(np.mean([states == ["holds", "holds"] for states in found]))

    assert (reproduced(1), reproduced(2)) == (0, 0)
    assert reproduced(3) == pytest.approx(0.7**6, abs=0.05)
    assert reproduced(5) < 0.06


@pytest.mark.parametrize("truth", [0.1, SPREAD, 0.6])
def test_the_spread_between_seeds_is_found_in_settings_of_three(truth: float) -> None:
    random = np.random.default_rng(4)

    def settings(n: int) -> list[Runs]:
        middle = random.uniform(-1, 1, (n, 1))
        found: list[Runs] = (1 / (1 + np.exp(-middle - truth * random.standard_normal((n, 3))))).tolist()
        return found

    assert spread_of([]) == SPREAD
    assert spread_of(settings(400)) == pytest.approx(truth, rel=0.1)
    few = [spread_of(settings(2)) for _ in range(200)]
    assert min(truth, SPREAD) * 0.6 < float(np.mean(few)) < max(truth, SPREAD) * 1.2


def test_the_share_of_runs_beside_the_papers_is_newcombes() -> None:
    """56 of 70 and 48 of 80, a published example: 0.0524 to 0.3339."""
    assert Apart(Tally(56, 70), Tally(48, 80)).interval() == pytest.approx((0.0524, 0.3339), abs=1e-4)


@pytest.mark.parametrize("truth", [0.02, 0.9])
def test_the_seeds_that_would_decide_do_decide_if_they_find_the_same(truth: float) -> None:
    part = Part("", estimate([truth], DOCUMENTS), high=truth + 0.08, failing=True)
    assert part.state(1) == "unsure"
    said = part.needs(1)
    assert said is not None
    seeds = int(said.split()[0])
    assert part._replace(quantity=estimate([truth] * seeds, DOCUMENTS)).state(1) == "holds"
    assert seeds >= MANY
