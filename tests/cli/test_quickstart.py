from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from commands import Command
from mecheval.store import Store
from mecheval.studies import get_study, scales
from mecheval.sweep import Job
from mecheval.sweep.driver import in_order

TINY = {
    "preset": "laptop", "pairs": 2, "queries": 1, "d_model": 16, "batch_size": 8, "steps": 4, "evaluate.documents": 16,
    "evaluate.every": 2,
}  # fmt: skip


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line, with a quickstart of runs that take a moment."""
    monkeypatch.setattr(scales, "BASE", {**scales.BASE, ("ar", "laptop"): TINY})
    monkeypatch.setattr(scales, "WIDTHS", {**scales.WIDTHS, ("ar", "laptop"): (16,)})
    return Command(monkeypatch, capsys)


def test_a_table_of_seven_and_a_report_and_nothing_is_trained_twice(
    command: Command, tmp_path: Path, here: None
) -> None:
    page = tmp_path / "page.html"
    words = ["quickstart", "--store", str(tmp_path / "store"), "--report", str(page)]
    code, out, err = command(*words)
    assert code == 0, err
    assert out.splitlines()[1] == "None of the seven mixers learnt to recall at this small size."
    assert [line.split()[:2] for line in out.splitlines()[5:12]] == [[mixer, "not_learnt"] for mixer in scales.MIXERS]
    assert err.startswith("Trains seven mixers on associative recall")
    told = re.findall(r"^\w+ +not_learnt, \d+ s  \(", err, re.MULTILINE)
    assert len(told) == 7 == len(Store(tmp_path / "store").ids())
    assert err.count("next: mecheval") == 1
    assert page.read_text().startswith("<!doctype html>")
    assert f"report: file://{page}" in err
    files = [path for path in (tmp_path / "store" / "runs").rglob("*") if path.is_file()]
    stamps = {path: path.stat().st_mtime_ns for path in files}
    page.unlink()
    code, again, err = command(*words)
    assert (code, again) == (0, out)
    assert "not_learnt" not in err
    assert page.exists()
    assert stamps == {path: path.stat().st_mtime_ns for path in files}
    code, out, _ = command(*words, "--json")
    rows = json.loads(out)
    assert [row["mixer"] for row in rows] == list(scales.MIXERS)
    assert [row["lr"] for row in rows] == [scales.PREFERRED.get(mixer, scales.FAST) for mixer in scales.MIXERS]


def test_a_place_where_no_report_can_be_is_told_before_anything_is_trained(command: Command, tmp_path: Path) -> None:
    code, _, err = command("quickstart", "--store", str(tmp_path / "store"), "--report", str(tmp_path / "page.pdf"))
    assert code == 2
    assert err == f"mecheval: cannot write a report as '{tmp_path / 'page.pdf'}'; choose .html or .htm at the end.\n"
    assert not (tmp_path / "store").exists()


def test_the_quickstart_is_study_ar_with_fewer_values() -> None:
    points, known = scales.quick(), {point.config.id for point in get_study("ar").points("laptop")}
    assert [point.axes["mixer"] for point in points] == list(scales.MIXERS)
    assert {point.config.id for point in scales.quick({"values": 32, "interchange_every": 50})} <= known
    assert points == get_study("quickstart").points("laptop") == get_study("quickstart").points("paper")


def test_the_longest_runs_begin_first(tmp_path: Path) -> None:
    jobs = in_order([Job(point.config) for point in scales.quick()], Store(tmp_path))
    assert {job.config.mixer.name for job in jobs[:4]} == {"mamba", "base_conv", "h3", "hyena"}
