"""Counting right verdicts: what is judged, what counts, and that a wrong verdict is counted as wrong."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from mecheval.errors import UserError
from mecheval.evaluation import calibration
from mecheval.evaluation.calibration import Group, Judged, calibrate, counted, groups, judgements
from mecheval.evaluation.known import INDUCTION, MECHANISMS, Known
from mecheval.intervene.finding import Finding
from mecheval.intervene.intervals import mean_interval
from mecheval.tasks import build_task


def a_judged(right: bool, named: bool = True, counts: bool = True, kind: str = "handmade", of: int = 9) -> Judged:
    label = "induction" if named else "undetermined"
    return Judged(
        Group(kind, 0.1, 16, of), "induction", 1, 2, label, label, named, right, 0.95 if counts else 0.5, counts
    )


def test_models_are_spread_over_the_levels_of_noise() -> None:
    asked = groups(["handmade", "shuffled"], 7, (64, 16))
    assert [each.models for each in asked if each.documents == 16] == [2, 2, 1, 1, 1, 7]
    assert [(each.noise, each.documents) for each in asked[:3]] == [(0, 64), (0, 16), (0.02, 64)]
    assert groups(["untrained"], 1, (16,)) == [Group("untrained", 0, 16, 1)]
    assert groups(["handmade", "untrained"], 3, (16,), noise=0.1) == [Group("handmade", 0.1, 16, 3)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kinds": ["hand"]}, "unknown kind of models 'hand'.*chance, handmade, shuffled, untrained"),
        ({"models": 0}, "from 1 to 100,000 .got 0"),
        ({"documents": (64, 15)}, "from 16 to 10,000 .got 15"),
        ({"noise": 0.3}, "noise 0, 0.02, 0.05, 0.1, 0.2, 3, 10 .got 0.3"),
        ({"kinds": ["shuffled"], "noise": math.nan}, "noise 0 .got nan"),
    ],
)
def test_what_cannot_be_counted(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        groups(**arguments)  # type: ignore[arg-type]


def test_only_models_that_recall_count() -> None:
    judged = [a_judged(True)] * 3 + [a_judged(False), a_judged(False, named=False), a_judged(False, counts=False)]
    [found] = counted(judged).to_dict("records")
    assert {name: found[name] for name in ("kind", "noise", "documents", "models", "counted", "named", "right")} == {
        "kind": "handmade", "noise": 0.1, "documents": 16, "models": 6, "counted": 5, "named": 4, "right": 3,
    }  # fmt: skip
    assert found["rate"] == 0.6
    assert (found["low"], found["high"]) == mean_interval(np.array([1.0, 1, 1, 0, 0]))
    assert found["labels"] == "induction 4, undetermined 1"
    [none] = counted([a_judged(True, counts=False)]).to_dict("records")
    assert (none["models"], none["counted"]) == (1, 0)
    assert math.isnan(none["rate"])


def test_a_right_finding_has_the_layers_and_the_place() -> None:
    known = MECHANISMS[0]
    assert known.agrees(INDUCTION)
    assert not known.agrees(Finding("induction", 2, 0, "value"))
    assert not known.agrees(Finding("induction", 1, 0, "next_key"))
    assert not known.agrees(Finding("undetermined"))
    either = Known("two_stores", {}, INDUCTION, ("value", "next_key"))
    assert either.agrees(Finding("induction", 1, 0, "next_key"))
    assert not either.agrees(Finding("induction", 1, 0, "divider"))


def test_verdicts_on_a_few_models_are_right_and_the_same_again() -> None:
    found = calibrate(["untrained", "chance", "handmade"], 1, (16,), noise=0.0)
    assert found["right"].tolist() == found["counted"].tolist() == [1, 1, 1]
    assert found["named"].tolist() == [0, 0, 1]
    alone = calibrate(["handmade"], 1, (16,), noise=0.0)
    pd.testing.assert_frame_equal(alone, found[2:].reset_index(drop=True))
    seeds = [
        calibration._seeds(*parts) for parts in ((0, "chance", 1), (1, "chance", 1), (0, "chance", 11), (0, "", 1))
    ]
    assert len({seed for pair in seeds for seed in pair}) == 8


def test_a_wrong_verdict_is_counted_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_verdict", lambda effects: Finding("pointer", 1, found_by=0))
    found = list(judgements([Group("chance", 0.05, 16, 1), Group("handmade", 0.02, 16, 1)]))
    assert [(each.named, each.right, each.counts) for each in found] == [(True, False, True)] * 2


def test_noise_that_destroys_the_mechanism_is_not_held_against_the_verdict() -> None:
    [found] = judgements([Group("handmade", 3.0, 16, 1)])
    assert found.likelihood < 0.9
    assert not found.counts


def test_a_model_that_overflows_is_no_test_of_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "likelihood", lambda lm, batch: torch.tensor([torch.nan]))
    [found] = judgements([Group("chance", 0.0, 16, 1)])
    assert not found.counts
    [row] = counted([found]).to_dict("records")
    assert (row["models"], row["counted"]) == (1, 0)
    assert math.isnan(row["likelihood"])


def test_guessing_is_learnt_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    task = build_task("ar", pairs=4, keys=16, values=16)
    batch = task.sample(64)
    drawn = torch.stack([calibration._any_value(batch, torch.Generator().manual_seed(i)) for i in range(40)])
    for row in range(64):
        assert set(drawn[:, row].tolist()) == set(batch.tokens[row, 2:9:2].tolist())
    monkeypatch.setattr(calibration, "STEPS", 40)
    monkeypatch.setattr(calibration, "BUILT_IN", {"attention": ()})
    found = list(judgements([Group("shuffled", 0.0, n, 1) for n in (16, 24)]))
    assert found[0].seed == found[1].seed, "one model is trained, and judged twice"
    assert found[0].documents_seed != found[1].documents_seed
    assert all(0.2 < each.likelihood < 0.3 and each.label == "not_learnt" for each in found)
