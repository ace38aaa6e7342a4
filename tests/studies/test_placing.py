"""A custom mixer among the published ones; its numbers here are those of a published run, so its place is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from mecheval.store import Store
from mecheval.studies.early_ends import after_guessing, replayed
from mecheval.studies.learning import Learning, guesses, learning, plateau
from mecheval.studies.peers import placings
from mecheval.studies.placing import HEADS, Placing, wilson
from mecheval.tasks import build_task
from mecheval.training.early import GUESSING
from studies.disguise import NAME, disguised


def placed(store: Store) -> Placing:
    [found] = placings(store)
    return found


def test_it_stands_between_its_neighbours_with_the_numbers_of_the_run(tmp_path: Path) -> None:
    place = placed(disguised(tmp_path, "ar", "based", (1e-3, 3e-3)))
    assert (place.task, place.width, place.own()) == ("ar", 32, [NAME])
    row = place.frame.set_index("mixer").loc[NAME]
    assert row["accuracy"] == pytest.approx(0.90625), "the better of two rates by dev"
    assert (row["verdict"], row["role"], row["seeds"], row["steps"]) == ("induction", "value", 1, 50_016)
    assert list(place.frame["accuracy"]) == sorted(place.frame["accuracy"], reverse=True)
    at = list(place.frame["own"]).index(True)
    above, below = (f"{title} ({100 * accuracy:.0f} %)" for title, accuracy in
                    place.frame[["title", "accuracy"]].iloc[[at - 1, at + 1]].itertuples(index=False))  # fmt: skip
    assert place.sentence(NAME) == (
        f"Mine recalls 91 % of pairs at width 32, between {below} and {above}; "
        "it stores the key at the value: induction."
    )
    assert place.details(NAME) == []
    assert len(place.cells()) == len(place.frame)
    assert all(len(cells) == len(HEADS) for cells in place.cells())


def test_the_published_rows_do_not_depend_on_the_custom_one(tmp_path: Path) -> None:
    one = placed(disguised(tmp_path / "a", "ar", "based", (3e-3,)))
    other = placed(disguised(tmp_path / "b", "ar", "h3", (1e-3,)))
    left, right = (place.frame[~place.frame["own"]].drop(columns="title") for place in (one, other))
    assert left.reset_index(drop=True).equals(right.reset_index(drop=True))
    assert set(left["mixer"]) >= {"attention", "base_conv", "based", "delta_net", "h3", "hyena", "mamba"}
    spread = left.set_index("mixer").loc["mamba"]
    assert spread["seeds"] == 3
    assert spread["least"] <= spread["accuracy"] <= spread["most"]
    assert f"3 ({100 * spread['least']:.0f}–{100 * spread['most']:.0f})" in [cells[6] for cells in one.cells()]


def test_an_early_end_is_told_in_table_and_words(tmp_path: Path) -> None:
    early = {"step": 36_000, "message": "ended early: settled at step 36,000"}
    place = placed(disguised(tmp_path, "atr", "mamba", (3e-3,), lambda row: early))
    [cells] = [cells for cells in place.cells() if cells[0] == "Mine"]
    assert cells[-1] == "36,000*"
    assert place.learnt[NAME].short, "a third of the paper's steps"
    place = placed(disguised(tmp_path / "b", "atr", "mamba", (3e-3,), lambda row: {**early, "step": 72_000}))
    assert place.details(NAME) == ["On trees, its run ended early: settled at step 36,000."]
    assert place.sentence(NAME).startswith("Mine recalls 93 % of trees at width 32, ")


def test_five_steps_are_no_finding(tmp_path: Path) -> None:
    place = placed(disguised(tmp_path, "ar", "h3", (1e-3,), lambda row: {"step": 5, "steps": 5}))
    only = "Mine was trained for only 5 of 50,016 steps on pairs at width 32"
    assert place.sentence(NAME) == f"{only}, too few to say whether it recalls (1 % so far)."
    assert place.details(NAME)[0].endswith("That is too short to conclude anything; train it to the last step.")


def test_what_has_not_learnt_is_told_with_what_was_tried(tmp_path: Path) -> None:
    half = {"step": 25_500, "message": "ended early: no better than guessing at step 25,500"}
    place = placed(disguised(tmp_path, "ar", "h3", (1e-3, 3e-3), lambda row: half))
    assert place.sentence(NAME) == ("Mine has not learnt yet to recall pairs at width 32 (1 %; guessing gives 6 %).")
    [said] = place.details(NAME)
    assert "with learning rates 1e-3 and 3e-3." in said
    assert "above that of guessing one of the document's values (2.77)" in said
    assert after_guessing("ar", 32) in said
    assert said.endswith("To try next: --set early=false (train to the last step), --lr 3e-4,1e-2, --widths 64.")


def test_a_run_that_nobody_intervened_on_has_a_place_and_no_mechanism(tmp_path: Path) -> None:
    store = disguised(tmp_path, "ar", "based", (3e-3,))
    [folder] = [store.folder(run) for run in store.ids()]
    status = folder.status()
    folder.write("verdicts", [])
    folder.seal(status)
    place = placed(store)
    assert place.sentence(NAME).endswith("; `mecheval intervene` names its mechanism.")
    assert place.frame.set_index("mixer").loc[NAME, "verdict"] == "done"


@pytest.mark.parametrize(
    "wrong",
    [
        {"config": None},
        {"config": {"task": {}}},
        {"step": None},
        {"mixer": None},
        {"d_model": None},
        {"status": "failed"},
    ],
)
def test_a_damaged_row_has_no_place(tmp_path: Path, wrong: dict[str, Any]) -> None:
    assert placings(disguised(tmp_path, "ar", "based", (3e-3,), lambda row: wrong)) == []


def test_an_impossible_score_has_no_interval(tmp_path: Path) -> None:
    place = placed(disguised(tmp_path, "ar", "based", (3e-3,), lambda row: {"test_accuracy": 7.0}))
    assert math.isnan(place.frame.set_index("mixer").loc[NAME, "low"])


def test_a_mixer_without_a_run_at_the_papers_size_has_no_place(tmp_path: Path) -> None:
    assert placings(Store(tmp_path)) == []
    small = disguised(tmp_path, "ar", "based", (3e-3,), lambda row: {"n_layers": 3})
    assert placings(small) == []


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    [(0.5, 100, 0.4038, 0.5962), (0.0, 320, 0.0, 0.0119), (1.0, 320, 0.9881, 1.0), (0.9, 320, 0.8622, 0.9283)],
)
def test_intervals_are_wilsons(share: float, n: int, low: float, high: float) -> None:
    assert list(wilson(share, n)) == pytest.approx([low, high], abs=1e-4)
    assert all(map(math.isnan, wilson(share, 0)))


def test_a_loss_is_placed_among_those_of_guessing() -> None:
    levels = guesses(build_task("ar", preset="paper"), 1 / 16)
    assert {name: round(level, 2) for name, level in levels.items()} == {
        "any token": 9.01, "any value": 8.32, "one of the document's values": 2.77,
    }  # fmt: skip
    assert plateau(9.0, levels) == "that of guessing any token (9.01)"
    assert plateau(2.8, levels) == "that of guessing one of the document's values (2.77)"
    assert plateau(5.0, levels) == (
        "below that of guessing any value (8.32) and above that of guessing one of the document's values (2.77)"
    )
    assert plateau(0.1, levels).endswith("(2.77): it learns its training documents by heart")
    assert plateau(1.0, guesses(build_task("atr", preset="paper"), 0.5)).startswith("below that of guessing any token")


@pytest.mark.parametrize(("losses", "falling"), [([5.0] * 20, False), ([5.0] * 18 + [4.8] * 2, True)])
def test_falling_is_told_from_flat(losses: list[float], falling: bool) -> None:
    task = build_task("ar", preset="paper")
    history = [{"step": 100 * (n + 1), "loss": loss} for n, loss in enumerate(losses)]
    found = learning({"step": 2000, "steps": 2000, "message": None}, history, task, 1 / 16, 2000)
    assert isinstance(found, Learning)
    assert (found.falling, found.short, found.message) == (falling, False, "")


def test_the_rule_is_replayed_on_published_histories() -> None:
    rows = replayed("ar", 32)
    assert len(rows) >= 54
    assert (rows["step"] <= rows["steps"]).all()
    went_on = rows[rows["why"] == ""]
    assert (went_on["step"] == went_on["steps"]).all()
    assert (went_on["early"] == went_on["accuracy"]).all()
    guessing = rows[rows["why"] == GUESSING]
    assert (guessing["early"] < guessing["guess"]).all()
    assert (guessing["accuracy"] < 0.25).all(), "no published run that recalls would have been ended as guessing"
