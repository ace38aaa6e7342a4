"""The command that counts right verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pytest

from commands import Command
from mecheval.evaluation import calibration
from mecheval.evaluation.calibration import Group, Judged


def made_up(asked: Sequence[Group], seed: int) -> Iterator[Judged]:
    """Every third model is called induction."""
    for group in asked:
        for i in range(group.models):
            named = i % 3 == 0
            label = "induction" if named else "not_learnt"
            right = named == (group.kind == "handmade")
            yield Judged(group, "some model", i, 10 + i, label, label, named, right, 0.95, True)


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(calibration, "judgements", made_up)
    return ["calibrate", "--models", "15", "--documents", "16,64"]


def test_the_table_the_file_and_the_figure(command: Command, words: list[str], tmp_path: Path) -> None:
    csv, save = tmp_path / "rates.csv", tmp_path / "rates.json"
    code, out, err = command(*words, "--csv", str(csv), "--save", str(save))
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 1 + 2 * (3 + 1 + 3 + 5)
    assert lines[1].split()[:7] == ["untrained", "0", "16", "5", "2", "3", "of"]
    assert "wrong: untrained some model, noise 0, seed 0, 16 documents of seed 10: induction" in err
    assert "more wrong names; --json lists all models." in err
    frame = pd.read_csv(csv)
    assert frame["models"].sum() == 2 * 4 * 15
    assert frame.query("kind == 'shuffled'")["rate"].round(3).tolist() == [0.667, 0.667]
    chart = json.loads(save.read_text())
    assert sum(len(rows) for rows in chart["datasets"].values()) == len(frame)
    assert "shuffled: 20 of 30 verdicts are right" in chart["description"]
    code, out, _ = command(*words, "--kinds", "chance", "--json")
    data = json.loads(out)
    assert (code, len(data["rows"]), len(data["judged"])) == (0, 6, 30)
    assert data["judged"][0]["kind"] == "chance"


def test_what_was_counted_before_ctrl_c_is_kept(
    command: Command, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def some(asked: Sequence[Group], seed: int) -> Iterator[Judged]:
        every = made_up(asked, seed)
        yield from (next(every) for _ in range(7))
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration, "judgements", some)
    csv = tmp_path / "rates.csv"
    code, out, err = command(*words, "--csv", str(csv))
    assert code == 130
    assert err.splitlines()[-1] == "stopped; 7 of 120 models are counted."
    assert [line.split()[3] for line in out.splitlines()[1:]] == ["5", "2"]
    assert pd.read_csv(csv)["models"].tolist() == [5, 2]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--kinds", "handmad"], "handmade"),
        (["--documents", "16,x"], "--documents takes whole numbers, comma-separated (got '16,x')."),
        (["--documents", "4"], "documents must be from 16 to 10,000 (got 4)"),
        (["--noise", "nan"], "these kinds have noise 0, 0.02"),
        (["--models", "0"], "the number of models must be from 1 to 100,000"),
        (["--save", "rates.gif"], "choose .html, .json, .pdf, .png, .svg at the end."),
        (["--csv", "nowhere/rates.csv"], "--csv: there is no folder 'nowhere'."),
        (["--seed", "-1"], "--seed: must be from 0"),
    ],
)
def test_mistakes_are_one_line(command: Command, words: list[str], more: list[str], said: str) -> None:
    code, out, err = command(*words, *more)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
