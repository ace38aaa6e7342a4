from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import Command

LEAKING = """
from torch import nn


class Backwards(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(x).flip(1)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECHEVAL_MIXERS", "")


def test_a_new_file_passes_the_check(command: Command) -> None:
    code, out, err = command("new", "short-attention.py")
    assert (code, out) == (0, "wrote short-attention.py with class ShortAttention\n")
    assert err == "next: mecheval check short-attention.py\n"
    code, out, err = command("check", "short-attention.py", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["mixer"].startswith("ShortAttention@")
    assert found["warnings"] == []
    assert found["called"] == "ShortAttention(d_model=128)"
    assert found["convolutions"] == ["blocks.0.mixer.mix", "blocks.1.mixer.mix"]
    assert 0 < found["step_seconds"] < found["seconds"]
    assert list(Path().iterdir()) == [Path("short-attention.py")]  # nothing is trained or kept


def test_a_check_takes_the_options_of_an_evaluation_and_hands_them_on(command: Command) -> None:
    Path("mine.py").write_text("from torch.nn import GRU")
    words = ["mine.py", "--set", "num_layers=2", "--set", "steps=7", "--task", "induction", "--scale", "paper"]
    code, out, err = command("check", *words)
    assert code == 0, err
    assert "GRU(input_size=16, hidden_size=16, num_layers=2, batch_first=True), takes the first of the tuple" in out
    assert "runs of up to 7 steps" in out
    assert "at widths 16, 32, 64, 128, 256\n" in out
    [following] = err.splitlines()
    assert following == (
        "next: mecheval evaluate mine.py:GRU --task=induction --scale=paper --set=num_layers=2 --set=steps=7"
    )


@pytest.mark.parametrize(("words", "said"), [
    (("new", "mixer.txt"), "name a Python file"),
    (("new", "there.py"), "there.py is there already"),
    (("new", "no/such/mixer.py"), "cannot write no/such/mixer.py"),
    (("check", "there.py"), "Backwards is not causal"),
    (("check", "nowhere.py"), "nowhere.py"),
    (("check", "there.py", "--set", "kernel=3"), "unknown option of Backwards 'kernel'"),
])  # fmt: skip
def test_mistakes_are_one_line(command: Command, words: tuple[str, ...], said: str) -> None:
    Path("there.py").write_text(LEAKING)
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
