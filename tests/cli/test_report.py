from __future__ import annotations

import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

import mecheval.report
from commands import Command
from mecheval.store import RESULTS, Store
from store.examples import ID, write_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "runs here")
    write_run(store.folder(ID), d_model=16, n_layers=2, lr=1e-3)
    return store


def test_a_report_is_written_and_its_size_told(command: Command, runs: Store) -> None:
    printed = command.prints("report", "--store", str(runs.path), "--out", "a b.html", "--title", "Ours")
    size = Path("a b.html").stat().st_size
    assert printed == f"wrote a b.html ({size / 1e6:.1f} MB, 1 run)\n"
    assert 0.9e6 < size < 2e6
    assert "<title>Ours</title>" in Path("a b.html").read_text()


def test_it_opens_in_the_browser(command: Command, runs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(store: Store, path: Path, scale: str, title: str | None) -> Path:
        path.write_text(f"{store.path} {scale} {title}")
        return path

    asked: list[str] = []
    monkeypatch.setattr(mecheval.report, "write_report", write)
    monkeypatch.setattr(webbrowser, "open", asked.append)
    command.prints("report", "--store", str(runs.path), "--scale", "paper", "--open")
    assert asked == [Path("report.html").absolute().as_uri()]
    assert Path("report.html").read_text() == f"{runs.path} paper None"


def test_the_demo_shows_the_published_results_and_opens_unless_told_not_to(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(store: Store, path: Path, scale: str, title: str | None) -> Path:
        path.write_text(f"{store.path} {scale}")
        return path

    asked: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mecheval.report, "write_report", write)
    monkeypatch.setattr(webbrowser, "open", asked.append)
    assert command("demo", "--no-open")[0] == 0
    assert asked == []
    assert Path("mecheval-demo.html").read_text() == f"{RESULTS} paper"
    assert command("demo", "--out", "a.html")[0] == 0
    assert asked == [Path("a.html").absolute().as_uri()]


def test_reports_on_runs_without_weights_and_on_published_ones_do_not_wait_for_torch(runs: Store) -> None:
    code = "import sys; from mecheval.report import write_report; from mecheval.store import RESULTS, Store\n"
    code += "from mecheval.report.documents import explored_data; published = Store(RESULTS)\n"
    code += "shown = explored_data(published, published.ids()); assert any('documents' in each for each in shown)\n"
    code += "write_report(Store(sys.argv[1]), 'quick.html'); assert not {'torch', 'altair'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(runs.path)], check=True)
    assert "Where recall happens" in Path("quick.html").read_text()


@pytest.mark.parametrize(("words", "said"), [
    (("--store", "nowhere"), "there is no store at nowhere"),
    (("--store", "gs://bucket/runs"), "the store gs://bucket/runs is a URL; mount it as a folder"),
    (("--out", "report.txt"), "choose .html or .htm at the end"),
    (("--out", "no/such/report.html"), "there is no such folder"),
    (("--scale", "huge"), "unknown scale 'huge'. Choices: laptop, paper."),
])  # fmt: skip
def test_mistakes_are_one_line(command: Command, runs: Store, words: tuple[str, ...], said: str) -> None:
    code, out, err = command("report", "--store", str(runs.path), *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert list(Path().glob("*.html")) == []
