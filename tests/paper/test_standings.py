from __future__ import annotations

import pandas as pd
import pytest

from mecheval.paper.estimates import estimate
from mecheval.paper.standings import COLUMNS, panels, standings
from mecheval.store import RESULTS, Store
from mecheval.studies import STUDIES, study_points


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    return standings(Store(RESULTS), "paper")


def row(found: pd.DataFrame, task: str, setting: str, width: int) -> pd.Series:
    [place] = found.index[(found["task"] == task) & (found["setting"] == setting) & (found["d_model"] == width)]
    return found.loc[place]


def test_there_is_one_row_for_each_task_setting_and_width(found: pd.DataFrame) -> None:
    assert list(found) == list(COLUMNS)
    assert not found.duplicated(["task", "setting", "d_model"]).any()
    ends = found[["likelihood_low", "likelihood", "likelihood_high"]]
    assert (ends.diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    assert found["likelihood_low"].min() >= 0
    assert found["likelihood_high"].max() <= 1


def test_numbers_are_those_of_the_runs_that_are_best_on_dev(found: pd.DataFrame) -> None:
    runs = Store(RESULTS).runs().set_index("run")
    mamba = row(found, "ar", "mamba", 32)
    own = runs.loc[mamba["runs"].split(", ")]
    assert mamba["seeds"] == own["seed"].nunique() == len(own) >= 3
    assert mamba["likelihood"] == pytest.approx(own["test_likelihood"].mean())
    assert mamba["likelihood_low"] == pytest.approx(estimate(list(own["test_likelihood"]), 320).interval()[0])
    grid = study_points(STUDIES["newer"], "paper", 3, {"mixer": ["mamba"], "task": ["ar"], "d_model": [32]})
    others = runs[runs.index.isin({point.config.id for point in grid}) & (runs["status"] == "done")]
    best = others.groupby("seed")["dev_accuracy"].max()
    assert len(others) > len(own)
    assert dict(zip(own["seed"], own["dev_accuracy"], strict=True)) == dict(best)


def test_variants_are_settings_of_their_own_and_defaults_are_not(found: pd.DataFrame) -> None:
    names = set(found["setting"])
    assert {"mamba", "mamba · d_conv none", "mamba · d_conv 2", "based", "based · kernel long"} <= names
    assert not {"mamba · d_conv 4", "based · kernel 3"} & names
    assert row(found, "ar", "based · kernel long", 32)["option"] == "kernel long"


def test_what_is_restored_is_said_of_runs_that_learnt(found: pd.DataFrame) -> None:
    attention, failed = row(found, "ar", "attention", 32), row(found, "ar", "base_conv", 32)
    assert (attention["restored_at"], attention["verdict"]) == ("value", "induction")
    assert attention["share_low"] < attention["share"] < attention["share_high"]
    assert failed["verdict"] == "not_learnt"
    assert failed["share"] != failed["share"]


def test_a_panel_has_a_row_for_each_mixer_and_task(found: pd.DataFrame) -> None:
    shown = panels(found, "paper")
    assert list(shown) == ["width 32", "width 64"]
    for frame in (*shown.values(), *panels(found, "laptop").values()):
        assert not frame.duplicated(["task", "mixer"]).any()
        assert set(frame["option"]) == {""}


def test_an_empty_store_has_no_standings(tmp_path: object) -> None:
    assert standings(Store(f"{tmp_path}/none"), "laptop").empty
