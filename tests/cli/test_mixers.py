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
    assert found["convolutions"] == ["blocks.0.mixer.mix", "blocks.1.mixer.mix"]
    assert 0 < found["step_seconds"] < found["seconds"]
    assert list(Path().iterdir()) == [Path("short-attention.py")]  # nothing is trained or kept


@pytest.mark.parametrize(("words", "said"), [
    (("new", "mixer.txt"), "name a Python file"),
    (("new", "there.py"), "there.py is there already"),
    (("new", "no/such/mixer.py"), "cannot write no/such/mixer.py"),
    (("check", "there.py"), "Backwards is not causal"),
    (("check", "nowhere.py"), "nowhere.py"),
])  # fmt: skip
def test_mistakes_are_one_line(command: Command, words: tuple[str, ...], said: str) -> None:
    Path("there.py").write_text(LEAKING)
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
