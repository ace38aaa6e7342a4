from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from mecheval.ops.adamw import MOMENTS, AdamW


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_that_of_torch(weight_decay: float) -> None:
    """To the bit, since both call one kernel; also for a parameter whose first gradient comes later, or never."""
    torch.manual_seed(0)
    here, there = (nn.ModuleList([nn.Linear(7, 5), nn.Linear(5, 3), nn.Linear(3, 2)]) for _ in range(2))
    there.load_state_dict(here.state_dict())
    for each in (here, there):
        each[0].bias.requires_grad_(False)
    ours = AdamW(here.parameters(), (0.8, 0.95), 1e-6, weight_decay)
    theirs = torch.optim.AdamW(
        there.parameters(), betas=(0.8, 0.95), eps=1e-6, weight_decay=weight_decay, fused=True
    )  # fmt: skip
    for step in range(6):
        x, lr = torch.randn(4, 7), 0.01 * (step + 1)
        theirs.param_groups[0]["lr"] = lr
        for model, optimiser in ((here, ours), (there, theirs)):
            optimiser.zero_grad()
            y = model[0](x)
            (model[1](y) if step > 2 else y).square().sum().backward()
        ours.step(lr)
        theirs.step()
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.equal(a, b)
        moments = ours.moments(a)
        assert set(moments) == (set(MOMENTS) if b in theirs.state else set())
        assert all(torch.equal(moment, theirs.state[b][name]) for name, moment in moments.items())
    updated = [each for each, n in zip(ours.parameters, ours.updates, strict=True) if n]
    assert set(map(id, updated)) == {id(here[0].weight), *map(id, here[1].parameters())}


def test_training_does_not_import_the_compiler() -> None:
    """Importing it takes longer than all other imports together, in every worker."""
    program = """
import sys
from mecheval.config import run_config
from mecheval.training.state import Training, TrainingData
config = run_config("ar", "mamba", "laptop", d_model=16, steps=1)
task = config.build_task()
Training(config, task).advance(TrainingData(config, task).batch(0))
print(*(name for name in ("torch._dynamo", "sympy") if name in sys.modules))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
