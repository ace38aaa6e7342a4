from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import mecheval.cli.compare  # noqa: F401 (adds its command)
from commands import Command
from mecheval import studies
from mecheval.paper import comparison
from mecheval.paper.claims import all_claims
from mecheval.paper.judging import HEADS
from mecheval.store import Store
from mecheval.studies import Study, StudyTable
from mecheval.sweep import Point

TABLE = studies.study_table
CLAIMS = [claim.name for claim in all_claims() if claim.study == "ar"]


@pytest.fixture
def store(tmp_path: Path) -> list[str]:
    (tmp_path / "runs").mkdir()
    return ["--store", str(tmp_path)]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is done, recalls well, and is restored at the value; seed 1 is not as good."""

    def study_table(study: Study, points: Sequence[Point], store: Store) -> StudyTable:
        table = TABLE(study, points, store)
        frame = table.frame.assign(status="done")
        for name in frame.select_dtypes("number").columns.difference(["mixer", "d_model", "lr", "seed", "d_conv"]):
            frame[name] = 0.1
        good = [name for name in ("dev_accuracy", "test_accuracy", "original", "restored_value") if name in frame]
        frame[good] = 0.9
        frame.loc[frame["seed"] == 1, good] = 0.8
        return replace(table, frame=frame)

    monkeypatch.setattr(comparison, "study_table", study_table)


def test_an_empty_store(command: Command, store: list[str]) -> None:
    out = command.prints("compare", "ar", *store)
    lines = out.splitlines()
    assert lines[0] == "ar (figure 3), laptop scale"
    assert "Only 0 of " in out
    assert f"{len(CLAIMS)} claims of the paper: {len(CLAIMS)} not tested." in lines
    assert max(map(len, lines)) <= 80


def test_a_study(command: Command, store: list[str], trained: None) -> None:
    out = command.prints("compare", "ar", "--seeds", "2", *store)
    assert "have ended" not in out
    assert "2 seeds  80.0–90.0" in out
    assert "Attention reaches 100 % likelihood and accuracy in AR from width 32 on. (4.2)" in " ".join(out.split())


def test_json(command: Command, store: list[str], trained: None) -> None:
    [found] = json.loads(command.prints("compare", "ar", "--json", *store))
    assert (found["study"], found["scale"]) == ("ar", "laptop")
    assert found["settings"]["ar"]["paper"] == "16 pairs of 4,096 keys, 50,016 steps of 32 documents"
    cell = {"mixer": "attention", "d_model": 64, "quantity": "original"}
    [here] = [each for each in found["cells"] if cell.items() <= each.items()]
    assert here["ours"] == pytest.approx(0.9)
    assert here["difference"] == pytest.approx(0.9 - 0.999)
    [gone] = [each for each in found["cells"] if {**cell, "d_model": 16}.items() <= each.items()]
    assert (gone["ours"], gone["paper"]) == (None, 0.019)
    outcomes = {claim["claim"]: claim["outcome"] for claim in found["claims"]}
    assert [*outcomes] == CLAIMS
    assert (outcomes["ar_where_value"], outcomes["ar_based_best"]) == ("reproduced", "not tested")
    assert len(found["patterns"]) == 7


def test_csv(command: Command, store: list[str], trained: None) -> None:
    cells = list(csv.DictReader(io.StringIO(command.prints("compare", "ar", "--csv", *store))))
    assert cells[0]["study"] == "ar"
    assert len(cells) >= 35 * 5
    claims = list(csv.DictReader(io.StringIO(command.prints("compare", "ar_mamba_conv", "--csv", *store))))
    assert [row["claim"] for row in claims] == ["ar_mamba_dconv_step", "ar_mamba_no_value"]
    patterns = command.prints("compare", "ar", "--csv", "--table", "patterns", *store)
    assert len(list(csv.DictReader(io.StringIO(patterns)))) == 7


def test_markdown(command: Command, store: list[str], trained: None) -> None:
    lines = command.prints("compare", "ar", "--markdown", *store).splitlines()
    assert lines[0] == f"| {' | '.join(HEADS.values())} |"
    assert lines[2].startswith("| In AR, attention and Based store the key at the value, for induction. (4.2 fig 3) |")
    assert lines[-1].startswith("8 claims of the paper: 1 reproduced, ")
    patterns = command.prints("compare", "ar", "--markdown", "--table", "patterns", *store).splitlines()
    assert patterns[0].startswith("| study | mixer | ours | paper |")
    assert len(patterns) == 2 + 7


def test_one_table(command: Command, store: list[str], trained: None) -> None:
    out = command.prints("compare", "ar", "--table", "claims", *store)
    assert "Attention reaches 100 %" in out
    assert "corrupted     at key" not in out
    assert "restored most" not in out


def test_all_studies(command: Command, store: list[str]) -> None:
    found = json.loads(command.prints("compare", "all", "--json", "--table", "claims", *store))
    assert [each["study"] for each in found] == studies.PAPER
    claims = [claim for each in found for claim in each["claims"]]
    assert len(claims) == len(all_claims())
    assert {claim["outcome"] for claim in claims} == {"not tested"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["arr"], "unknown study 'arr'. Did you mean 'ar'? Choices: all, ar, "),
        (["ar", "--scale", "big"], "unknown scale 'big'."),
        (["ar", "--table", "cell"], "unknown table 'cell'. Did you mean 'cells'?"),
        (["ar", "--csv", "--json"], "choose one of --csv, --json, --latex, --markdown."),
        (["ar", "--seeds", "0"], "seeds: must be at least 1 (got 0)."),
    ],
)
def test_mistakes(command: Command, store: list[str], words: list[str], said: str) -> None:
    code, out, err = command("compare", *words, *store)
    assert (code, out) == (2, "")
    assert err.startswith(f"mecheval: {said}")


def test_the_picture(command: Command, store: list[str], tmp_path: Path) -> None:
    drawn = tmp_path / "figure.json"
    assert command("draw", "paper", "fig3", "--save", str(drawn), *store)[0] == 0
    assert json.loads(drawn.read_text())["title"]["text"] == ["The paper and our runs, figure 3"]
    code, _, err = command("draw", "paper", "depth", "--save", str(drawn), *store)
    assert (code, err) == (2, "mecheval: unknown study 'depth'. Choices: ar, atr.\n")
