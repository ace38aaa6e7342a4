from __future__ import annotations

import pandas as pd
import pytest

from mecheval.paper.arms import NEW, SAME, compare_arms, in_new_order
from mecheval.studies import STUDIES, study_points
from paper.test_cells import papers_own


def farther(by: float) -> pd.DataFrame:
    """The paper's numbers of figure 3, with less recall."""
    frame = papers_own("ar")
    able = frame["original"] > 0.5
    frame.loc[able, "original"] -= by
    return frame


def test_a_new_order_is_that_of_study_recipes() -> None:
    shuffled = {p.config.id for p in study_points(STUDIES["recipes"], "paper") if p.axes["recipe"] == "shuffled"}
    assert {point.config.id for point in in_new_order(study_points(STUDIES["ar"], "paper"))} == shuffled


def test_the_arm_that_is_the_paper_is_nearer() -> None:
    arms = compare_arms("ar", farther(0.2), papers_own("ar"))
    able = int((papers_own("ar")["original"] > 0.5).sum())
    assert (arms.settings[NEW] == 0).all()
    assert (arms.settings[SAME] > 0).sum() == able
    assert arms.settings["closed"].dropna().tolist() == pytest.approx([1.0] * able)
    assert f"a new order 0.0; the new order is nearer in {able} of {len(arms.settings)} settings" in arms.said
    assert arms.said.endswith("The paper's runs are more like those with a new order.")
    assert "closes 100 to 100 % of the gap" in arms.said
    assert "that agree with the paper in the same order, a new one moves none away from it by more" in arms.said


def test_few_settings_decide_nothing() -> None:
    few = [frame[frame["mixer"] == "based"][:4] for frame in (farther(0.2), papers_own("ar"))]
    said = compare_arms("ar", *few).said
    assert said.endswith("This does not decide which order the paper's runs had.")
    far = [
        frame[(frame["mixer"] == "delta_net") & (frame["d_model"] == 64)] for frame in (farther(0.6), papers_own("ar"))
    ]
    assert "There is no negative control" in compare_arms("ar", *far).said


def test_only_settings_that_both_arms_have_count() -> None:
    ours = papers_own("ar")
    none = compare_arms("ar", ours, ours[:0])
    assert none.cells.empty
    assert none.said == "No setting has runs of both arms."
    one = compare_arms("ar", ours, ours[(ours["mixer"] == "mamba") & (ours["d_model"] == 64)])
    assert one.settings[["mixer", "d_model"]].to_numpy().tolist() == [["mamba", 64]]


def test_numbers_near_zero_everywhere_do_not_count() -> None:
    ours = papers_own("ar")
    arms = compare_arms("ar", ours, ours)
    assert (arms.cells[["paper", SAME, NEW]].max(axis=1) >= 0.1).all()
    assert len(arms.cells) < 5 * len(ours)
    assert "h3" not in set(arms.settings["mixer"])
