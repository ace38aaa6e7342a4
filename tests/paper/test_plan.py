from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mecheval.paper import Compared, compare_studies
from mecheval.paper.claims import all_claims
from mecheval.paper.picture import DRAWN, HERE, PAPER, picture
from mecheval.paper.plan import CHANGES, ORDER, PLAN, Standing, standings
from mecheval.store import RESULTS, Store
from mecheval.store.schema import WHOLE
from mecheval.studies import PAPER as STUDIES


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    """Every study of the paper, by the published results."""
    return compare_studies(STUDIES, Store(RESULTS), "paper")


@pytest.fixture(scope="module")
def found(compared: list[Compared]) -> list[Standing]:
    return standings(compared, Store(RESULTS))


def test_every_step_is_there_once_with_the_date_of_a_change(found: list[Standing]) -> None:
    assert sorted(id(each.step) for each in found) == sorted(map(id, PLAN))
    assert {step.added for step in PLAN} == {*CHANGES}
    assert all(each.runs > 0 for each in found)


def test_runs_that_are_left_are_those_that_did_not_end(found: list[Standing]) -> None:
    ended = {row["run"] for row in Store(RESULTS).rows() if row["status"] in WHOLE}
    for each in found:
        assert not ended & each.left.keys()
        assert each.left.keys() == {point.config.id for point in each.points}
        assert all(seconds > 0 for seconds in each.left.values())
        assert {point.config.seed for point in each.points} <= {*each.step.seeds}
        assert {point.config.data.shuffle for point in each.points} <= {each.step.new_order}


def test_the_most_valuable_runs_come_first_and_what_is_done_last(found: list[Standing]) -> None:
    left = [each for each in found if each.left]
    assert [each.value for each in left] == sorted((each.value for each in left), reverse=True)
    assert found[: len(left)] == left
    assert all(each.value == pytest.approx(len(each.claims) / each.hours) for each in left)


def test_a_step_serves_the_open_claims_that_lack_its_runs(compared: list[Compared], found: list[Standing]) -> None:
    opened = {one.claim for each in compared for one in each.claims if one.outcome in ("inconclusive", "not tested")}
    for each in found:
        assert {*each.claims} <= opened | {ORDER}
        if each.step.study == "atr" and each.step.only["d_model"] == (256,) and each.left:
            assert {"atr_based_256", "atr_baseconv_256", "atr_mamba_noconv_256"} & opened <= {*each.claims}
    assert opened <= {claim.name for claim in all_claims()}


@pytest.mark.parametrize("study", DRAWN)
def test_the_picture_has_the_papers_cells_above_ours(study: str, compared: list[Compared]) -> None:
    one = next(each for each in compared if each.table.study.name == study)
    rows = [row for values in picture(one).spec["datasets"].values() for row in values]
    theirs, ours = ([row for row in rows if (row["source"] == PAPER) == own] for own in (True, False))
    assert len(theirs) == 35 * 5
    assert not any(row["differs"] for row in theirs)
    assert (HERE in {row["label"] for row in theirs}) == (study == "atr")
    cells = {(row["mixer"], row["d_model"], row["quantity"]): row["value"] for row in theirs}
    for row in ours:
        paper = cells[row["mixer"], row["d_model"], row["quantity"]]
        assert row["label"] == f"{100 * row['value']:.0f}"
        if paper is not None:
            assert row["differs"] == (abs(row["value"] - paper) > 0.1)
    best = one.table.best().frame
    done = best[best["status"] == "done"].groupby(["mixer", "d_model"]).size()
    assert sum(row["source"] == "same order" for row in ours) == 5 * len(done)


def test_where_figure_7_has_no_numbers_a_run_that_is_restored_elsewhere_is_marked(compared: list[Compared]) -> None:
    one = next(each for each in compared if each.table.study.name == "atr")
    rows = [row for values in picture(one).spec["datasets"].values() for row in values]
    places = {"at value": ("attention", "base_conv", "based")}
    for row in rows:
        if row["differs"] and row["quantity"] == "at value":
            cell = [
                r
                for r in rows
                if (r["mixer"], r["d_model"], r["source"]) == (row["mixer"], row["d_model"], row["source"])
            ]
            numbers = {r["quantity"]: r["value"] for r in cell}
            share = (numbers["at value"] - numbers["corrupted"]) / (numbers["original"] - numbers["corrupted"])
            assert (share >= 0.5) != (row["mixer"] in places["at value"])


def test_the_command(command: Callable[..., tuple[int, str, str]], tmp_path: object) -> None:
    store = ("--store", str(tmp_path))
    steps = json.loads(command("plan", "--json", *store)[1])
    assert len(steps) == len(PLAN)
    for step in steps:
        assert step["hours"] == pytest.approx(sum(run["seconds"] for run in step["left"]) / 3600)
        assert all(run["config"]["seed"] == run["seed"] for run in step["left"])
    table = command("plan", *store)[1]
    assert "what for" in table
    assert max(map(len, table.splitlines())) <= 80
    waits = command("plan", "--claims", *store)[1]
    assert "not tested" in waits or "inconclusive" in waits
