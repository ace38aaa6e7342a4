from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mecheval as me
from mecheval.config import RunConfig
from mecheval.mixers import MIXERS
from mecheval.training import train
from training.runs import in_child, kill_self, left_over, outcome, published, tiny


class Noisy(nn.Module):
    """A mixer that draws random numbers at every step, as dropout does."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = nn.functional.dropout(self.linear(x).cumsum(1), 0.1, self.training)
        return result


def killed_at_random(config: RunConfig, store: Path, kills: int, seed: int) -> int:
    """Train, killing the process after random times, until it has been killed `kills` times; then let it finish."""
    moments, done = random.Random(seed), 0
    while done < kills:
        child = in_child(lambda: train(config, store, checkpoint_seconds=0.0))
        time.sleep(moments.uniform(0.01, 0.12))
        os.kill(child, signal.SIGKILL)
        code = outcome(child)
        if code == 0:  # the run ended first
            break
        assert code == -signal.SIGKILL
        done += 1
    assert outcome(in_child(lambda: train(config, store))) == 0  # every checkpoint waits for the disk
    return done


def test_killed_at_twenty_random_moments_a_run_ends_as_if_it_never_was(tmp_path: Path) -> None:
    config = tiny("ar", "mamba", steps=300, every=50)
    whole = train(config, tmp_path / "whole")
    kills = killed_at_random(config, tmp_path / "killed", 20, seed=0)
    assert kills == 20
    killed = me.Store(tmp_path / "killed").folder(config.id)
    assert published(killed) == published(whole)
    assert len(published(whole)) == 4
    assert left_over(killed) == []
    history = me.Store(tmp_path / "killed").history()
    assert history["step"].tolist() == [*range(50, 301, 50)]


def counting_writes(patch: pytest.MonkeyPatch, config: RunConfig, store: Path, die_at: int, late: bool) -> int:
    """Train, and die in write number `die_at`, before or after the file is in its place; else, count the writes."""
    replace, writes = Path.replace, 0

    def dying(self: Path, target: Any) -> Path:
        nonlocal writes
        if writes == die_at and not late:
            kill_self()
        moved = replace(self, target)
        if writes == die_at:
            kill_self()
        writes += 1
        return moved

    with patch.context() as inside:
        inside.setattr(Path, "replace", dying)
        train(config, store, checkpoint_seconds=0.0)
    return writes


def test_killed_in_every_single_write_a_run_ends_as_if_it_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MIXERS._classes, "noisy", Noisy)
    config = tiny("ar", "noisy", steps=4, every=2, **{"data.shuffle": True})
    writes = counting_writes(monkeypatch, config, tmp_path / "whole", die_at=-1, late=False)
    whole = published(me.Store(tmp_path / "whole").folder(config.id))
    assert writes == 3 + 4 * 3 + 5  # to begin; a checkpoint and a status a step; weights, tables and status at the end
    moments = [*((write, False) for write in range(writes)), (writes - 1, True)]  # before each, and after the last
    for die_at, late in moments:
        store = tmp_path / f"{die_at}-{late}"
        died = outcome(in_child(lambda: counting_writes(monkeypatch, config, store, die_at, late)))  # noqa: B023
        assert died == -signal.SIGKILL
        folder = train(config, store)
        assert published(folder) == whole
        assert left_over(folder) == []
        assert not folder.checkpoints.exists()


def test_torchs_own_random_numbers_are_left_as_they_were(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(tiny(steps=3), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
