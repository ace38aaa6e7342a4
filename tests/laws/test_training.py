"""Laws of training: every registered mixer, every registered task, a mixer with Canon convolutions, and a hybrid."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

import mecheval as me
from mecheval.analysis.weights import weights_file
from mecheval.config import RunConfig
from mecheval.mixers import MIXERS
from mecheval.tasks import TASKS
from mecheval.training import Interrupted, train
from training.runs import SignalAt, published, tiny

CASES = [
    *(("ar", mixer) for mixer in [*MIXERS.names(), "attention, canon", "mamba+attention"]),
    *((task, "hyena") for task in TASKS.names() if task != "ar"),
]
"""The other tasks with a mixer whose filters are as long as their documents."""


def config(task: str, variant: str) -> RunConfig:
    mixer, _, canon = variant.partition(", ")
    small = tiny(mixer=mixer, steps=12, every=5, canon="ABCD" if canon else "").to_dict()
    if task != "ar":
        small["task"] = {"name": task}
        small["mixer"] = mixer  # filters as long as this task's documents
    return RunConfig.read(small)


@pytest.mark.parametrize(("task", "mixer"), CASES)
def test_stop_and_go_on_gives_the_same_bytes_and_save_and_load_the_same_logits(
    task: str, mixer: str, tmp_path: Path
) -> None:
    """On one machine: both runs make the same calls on the same shapes, on as many threads as the config says."""
    run = config(task, mixer)
    whole = train(run, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(run, tmp_path / "cut", [SignalAt(7, signal.SIGINT)])
    cut = train(run, tmp_path / "cut")
    assert published(cut) == published(whole)
    assert len(published(whole)) == 4
    tokens = run.build_task().sample(5, "dev").tokens
    first, second = (me.load_lm(whole.weights / "last.safetensors") for _ in range(2))
    assert torch.equal(first(tokens), second(tokens))  # the very same calls
    again = weights_file(run, "last", 12, dict(first.state_dict()))
    assert again == (whole.weights / "last.safetensors").read_bytes()
