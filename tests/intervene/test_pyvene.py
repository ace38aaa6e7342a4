"""`interchange` restores what pyvene restores, document by document."""

from __future__ import annotations

import pytest
import torch

import mecheval as me
from benchmarks.interventions import ROLES, allowed, check, grid, noisy, our_restored, pyvene_restored


@pytest.mark.parametrize("mixer", ["attention", "based", "mamba", "delta_net"])
def test_interchange_equals_pyvene(mixer: str) -> None:
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    clean = task.sample(8, split="test")
    corrupted = task.corrupt(clean)
    lm = noisy(me.LM(task.vocab_size, 32, 2, mixer, seed=0))
    sites = grid(lm)
    assert len(sites) == (8 if mixer == "mamba" else 12)  # Mamba's blocks have no MLP
    theirs = pyvene_restored(lm, clean, corrupted, sites, ROLES)
    ours = our_restored(lm, clean, corrupted, sites, ROLES)
    check(ours, theirs, lm, clean, corrupted)
    with torch.no_grad():
        logits = lm(corrupted.tokens)[torch.arange(8), corrupted.roles["query"]]
    unrestored = logits.double().softmax(-1)[torch.arange(8), clean.answers]
    moved = (theirs - unrestored).abs().amax(dim=(0, 2))  # (roles,)
    most = float(allowed(theirs, float(logits.abs().max()), lm.d_model).max())
    assert float(moved.min()) > 10 * most  # so that agreement says something about every role
