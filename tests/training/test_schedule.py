from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from mecheval.config.sections import Schedule
from mecheval.training.state import rate


def test_the_papers_schedule_is_a_line_up_and_a_cosine_down() -> None:
    schedule = Schedule()
    rates = [rate(schedule, step, 1000) for step in range(1001)]
    assert rates[:101] == pytest.approx([step / 100 for step in range(101)])
    assert rates[100:] == pytest.approx([(1 + math.cos(math.pi * i / 900)) / 2 for i in range(901)])
    assert rates[1000] == pytest.approx(0, abs=1e-15)


def test_it_equals_torchs_own_schedulers() -> None:
    steps, up = 200, 20
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    rise = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: step / up)
    for step in range(up):
        assert rate(Schedule(), step, steps) == pytest.approx(rise.get_last_lr()[0])
        optimiser.step()
        rise.step()
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=steps - up)
    for step in range(up, steps):
        assert rate(Schedule(), step, steps) == pytest.approx(fall.get_last_lr()[0], abs=1e-9)
        optimiser.step()
        fall.step()


@pytest.mark.parametrize(("decay", "end"), [("cosine", 0.0), ("linear", 0.0), ("constant", 1.0)])
@pytest.mark.parametrize("warmup", [0.0, 0.25, 1.0, 30.0])
def test_every_schedule_reaches_its_peak_and_its_end(
    decay: Literal["cosine", "linear", "constant"], end: float, warmup: float
) -> None:
    schedule = Schedule(warmup=warmup, decay=decay)
    up = {0.0: 0, 0.25: 25, 1.0: 1, 30.0: 30}[warmup]
    assert rate(schedule, up, 100) == 1.0
    assert rate(schedule, 100, 100) == pytest.approx(end, abs=1e-15)
    assert all(0 <= rate(schedule, step, 100) <= 1 for step in range(101))
