from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from mecheval.store.schema import HISTORY, RUNS, Column
from store.examples import HISTORY as ROWS
from store.examples import ID


def test_a_row_has_exactly_the_columns() -> None:
    row = {"run": ID, **ROWS[0]}
    HISTORY.check([row])
    with pytest.raises(ValueError, match="missing column 'lr' of table history"):
        HISTORY.check([row, {name: value for name, value in row.items() if name != "lr"}])
    with pytest.raises(ValueError, match="unknown column 'lrr' of table history"):
        HISTORY.check([{**row, "lrr": 1.0}])


@pytest.mark.parametrize(
    ("kind", "value", "clean"),
    [
        ("BIGINT", np.int32(7), 7),
        ("BIGINT", 2**63 - 1, 2**63 - 1),
        ("DOUBLE", np.float32(0.5), 0.5),
        ("DOUBLE", 3, 3.0),
        ("DOUBLE", float("nan"), None),
        ("DOUBLE", float("inf"), float("inf")),
        ("TIMESTAMP", "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5)),
        ("TIMESTAMP", datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2))), datetime(2026, 1, 1, 22)),
        ("TIMESTAMP", datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2)),
        ("JSON", {"a": {"b": [1, None]}, "seed": 3}, {"a": {"b": [1, None]}, "seed": 3}),
        ("VARCHAR", None, None),
    ],
)
def test_values_become_plain_once_and_for_all(kind: str, value: Any, clean: Any) -> None:
    column = Column("x", kind, "")
    assert column.clean(value) == clean
    assert type(column.clean(value)) is type(clean)
    assert column.clean(column.clean(value)) == clean


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("BIGINT", 1.5),
        ("BIGINT", 2**63),
        ("INTEGER", 2**31),
        ("DOUBLE", "nan"),
        ("VARCHAR", 3),
        ("TIMESTAMP", "yesterday"),
        ("JSON", "{}"),
        ("JSON", {"a": {"b": float("nan")}}),
        ("JSON", {"a": {"b": object()}}),
        ("JSON", {"a": [1]}),
        ("JSON", {"a": "text"}),
        ("DOUBLE", 10**400),
        ("VARCHAR", "x" * 20_001),
        ("TIMESTAMP", "0001-01-01T00:00:00+14:00"),
        ("TIMESTAMP", "9999-12-31T23:59:59-14:00"),
        ("TIMESTAMP", 7),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_the_column(kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^column x: "):
        Column("x", kind, "").clean(value)


def test_the_id_is_the_first_column_and_names_are_unique() -> None:
    names = [column.name for column in RUNS.columns]
    assert names[0] == "run"
    assert len(names) == len(set(names)) == 26
