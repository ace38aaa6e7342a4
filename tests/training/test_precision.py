"""Training in bfloat16: it learns, resumes with the same bytes, and what is stored of it is in float32."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mecheval as me
from mecheval.analysis import score
from mecheval.config import run_config
from mecheval.custom import announced
from mecheval.training import Interrupted, train
from mecheval.training.state import evaluation_set
from training.runs import SignalAt, published, tiny

CUSTOM = """
import torch
from torch import nn

class Sums(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.write, self.read = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.read(torch.tanh(self.write(x)).cumsum(1))
"""


def test_a_run_in_bfloat16_learns_and_is_judged_in_float32(tmp_path: Path) -> None:
    config = run_config(
        "ar", "delta_net", "laptop", pairs=2, keys=4, values=4, queries=2, d_model=32, batch_size=64, lr=3e-3,
        steps=100, every=50, precision="bf16",
    )  # fmt: skip
    folder = train(config, tmp_path)
    status = folder.status()
    assert status["test_accuracy"] >= 0.95
    assert {tensor.dtype for tensor in load_file(folder.weights / "last.safetensors").values()} == {torch.float32}
    judged = score(me.load_lm(folder.weights / "last.safetensors"), evaluation_set(config, config.build_task(), "test"))
    assert (judged.likelihood, judged.loss) == (status["test_likelihood"], status["test_loss"])  # the very same calls


@pytest.mark.parametrize("mixer", ["attention", "mamba", "mesa_net", "custom"])
def test_a_run_in_bfloat16_resumes_with_the_same_bytes_which_are_not_those_of_float32(
    mixer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mixer == "custom":
        monkeypatch.setenv("MECHEVAL_MIXERS", "")
        (tmp_path / "sums.py").write_text(CUSTOM)
        mixer = announced(f"{tmp_path / 'sums.py'}:Sums")
    full, rounded = (tiny(mixer=mixer, steps=12, every=5, precision=each) for each in ("full", "bf16"))
    whole = train(rounded, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(rounded, tmp_path / "cut", [SignalAt(7, signal.SIGINT)])
    cut = train(rounded, tmp_path / "cut")
    assert published(cut) == published(whole)
    exact = load_file(train(full, tmp_path / "full").weights / "last.safetensors")
    close = load_file(whole.weights / "last.safetensors")
    assert any(not torch.equal(close[name], exact[name]) for name in exact)
    assert whole.status()["status"] == "done"
