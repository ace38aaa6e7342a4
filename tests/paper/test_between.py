"""The candidates for a scale between laptop and paper: each has every setting of the split, under its name there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.between import CANDIDATES, CHOOSE, REPORT, halves, points, seconds, table
from mecheval.paper.standings import about
from mecheval.store import Store


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_candidate_has_every_setting_in_the_half_where_it_belongs(candidate: str) -> None:
    found = {half: {about(point)["setting"] for point in points(candidate, half)} for half in (CHOOSE, REPORT)}
    assert found == {half: {name for name, own in halves().items() if own == half} for half in found}
    every = list(points(candidate))
    assert len({point.config.id for point in every}) == len(every) == 2 * (26 + 22)
    assert {point.config.seed for point in every} == {0}


def test_an_empty_store_has_a_table_and_times_add_up(tmp_path: Path) -> None:
    assert set(table(Store(tmp_path), CHOOSE, CANDIDATES)["done"]) == {"0 of 26", "0 of 22"}
    (tmp_path / "cpu.csv").write_text("a,1.5\nb,2.0\na,3.0\n")
    assert seconds(Store(tmp_path)) == {"a": 4.5, "b": 2.0}
