from __future__ import annotations

from pathlib import Path

import pytest

from mecheval.analysis import ladder
from mecheval.config import run_config
from mecheval.errors import UserError
from mecheval.training import train


def test_a_ladder_is_the_score_by_a_fact(tmp_path: Path) -> None:
    config = run_config(
        "atr", "attention", "laptop", query="grandparent", d_model=8, steps=2, max_length=16,
        **{"evaluate.documents": 100, "evaluate.every": 2},
    )  # fmt: skip
    folder = train(config, tmp_path)
    by_depth, by_distance = ladder(folder, "depth"), ladder(folder, "distance")
    batch = config.build_task().sample(100, "test")
    assert by_depth["depth"].tolist() == sorted(set(batch.facts["depth"].tolist()))
    assert min(by_depth["depth"]) >= 2  # a grandparent stands two edges above
    assert by_distance["n"].sum() == 100
    for table in (by_depth, by_distance):
        for name in ("accuracy", "likelihood"):
            mean = (table[name] * table["n"]).sum() / 100
            assert mean == pytest.approx(folder.status()[f"test_{name}"], abs=1e-6)
        assert (table["low"] <= table["accuracy"]).all()
        assert (table["accuracy"] <= table["high"]).all()
        assert (table["high"] - table["low"] > 0.02).all()  # no document more or less tells everything
    with pytest.raises(UserError, match=r"unknown fact of atr 'dept'.*depth"):
        ladder(folder, "dept")
