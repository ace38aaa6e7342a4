"""Results that are made for others, and checked by them, with the mixer of an example."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from commands import Command
from mecheval.analysis.runs import probe
from mecheval.analysis.weights import load_weights, weights_file
from mecheval.config import RunConfig
from mecheval.custom import VARIABLE, Source
from mecheval.store import Store
from mecheval.store.published import pretrained_files
from mecheval.training import train
from training.runs import tiny

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_mixer.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two short runs of the example's mixer, one of attention, and the mixer's file."""
    path = tmp_path_factory.mktemp("recheck")
    shutil.copy(EXAMPLE, path / "mine.py")
    with pytest.MonkeyPatch.context() as patch:
        source = Source(path / "mine.py", "GatedRecurrence")
        patch.setenv(VARIABLE, str(source))
        configs = [tiny(mixer=source.name, d_model=width, seed=seed) for width, seed in ((16, 0), (16, 1), (24, 0))]
        for config in (*configs, tiny()):
            probe(train(config, path / "store"))
        ids = [config.id for config in (*configs, tiny())]
    (path / "ids.json").write_text(json.dumps(ids))
    return path


@pytest.fixture
def folder(made: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a pull request would carry, with the runs of widths 16 and 24; no mixer is known any more."""
    one, _, wide, _ = json.loads((made / "ids.json").read_text())
    to = tmp_path / "shared"
    monkeypatch.setenv(VARIABLE, "")
    words = ("results", "add", one, wide, "--store", str(made / "store"), "--to", str(to))
    code, out, err = command(*words, "--mixer", f"{made / 'mine.py'}:GatedRecurrence")
    assert code == 0, err
    assert f"next: mecheval results check {to} --mixer {to / 'mixers' / 'mine.py'}:GatedRecurrence" in err
    assert out.startswith(f"{to} has the runs and weights of ar-GatedRecurrence@")
    monkeypatch.setenv(VARIABLE, "")
    return to


def checked(command: Command, folder: Path, *, named: bool = True) -> tuple[int, str, str]:
    file = folder / "mixers" / "mine.py"
    return command("results", "check", str(folder), *(("--mixer", f"{file}:GatedRecurrence") if named else ()))


def test_the_folder_has_what_a_reader_needs_and_is_what_its_weights_give(folder: Path, command: Command) -> None:
    assert (folder / "mixers" / "mine.py").read_bytes() == EXAMPLE.read_bytes()
    assert len(Store(folder).ids()) == len(pretrained_files(folder)) == 2
    code, out, err = checked(command, folder)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[-1] == "2 of 2 runs are what their weights give."
    assert all(line.endswith("shares: as published") for line in lines[:-1])


def test_code_of_the_folder_is_executed_only_if_it_is_named(folder: Path, command: Command, tmp_path: Path) -> None:
    """A file that leaves a trace when it is executed, even if it comes under the name of a run's mixer."""
    trace = tmp_path / "executed"
    for file in ("mine.py", "other.py"):
        (folder / "mixers" / file).write_text(f"open({str(trace)!r}, 'w')\n{EXAMPLE.read_text()}")
    code, out, err = checked(command, folder, named=False)
    assert (code, out) == (2, "")
    assert "no file in" in err  # none has the digest that the run's name carries
    shutil.copy(EXAMPLE, folder / "mixers" / "mine.py")
    code, out, err = checked(command, folder, named=False)
    assert (code, out) == (2, "")
    assert f"name it, --mixer {folder / 'mixers' / 'mine.py'}:GatedRecurrence." in err
    assert checked(command, folder)[0] == 0
    assert not trace.exists()


def test_other_weights_than_those_that_were_measured_are_found(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{folder / 'mixers' / 'mine.py'}:GatedRecurrence")
    path = next(iter(pretrained_files(folder).values()))
    lm, origin = load_weights(path)
    torch.manual_seed(0)
    weights = {name: tensor + 0.3 * torch.randn_like(tensor) for name, tensor in lm.state_dict().items()}
    path.write_bytes(weights_file(RunConfig.read(origin["config"]), "last", origin["step"], weights))
    code, out, _ = checked(command, folder)
    assert code == 1
    assert "test likelihood: published 0." in out
    assert out.splitlines()[-1] == "1 of 2 runs are what their weights give."
    path.unlink()
    code, out, _ = checked(command, folder)
    assert code == 1
    assert "its weights are not in the folder." in out


def test_tables_that_were_edited_are_found(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With matching checksums, as anyone can write them: only computing the scores anew finds it."""
    run = Store(folder).folder(Store(folder).ids()[0])
    rows = [row | {"value": 1.0} if row["metric"] == "accuracy" else row for row in run.read("scores")]
    with run.exclusive():
        run.write("scores", rows)
    code, out, _ = checked(command, folder)
    assert code == 1
    assert "test accuracy: published 1.0000, computed 0." in out
    assert "test likelihood" not in out


def test_mistakes_are_one_line(made: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, again, _, attention = json.loads((made / "ids.json").read_text())
    monkeypatch.setenv(VARIABLE, "")
    mine, store, to = (
        f"{made / 'mine.py'}:GatedRecurrence",
        ["--store", str(made / "store")],
        ["--to", str(tmp_path / "x")],
    )
    for words, problem in (
        (["add", "--mixer", mine, *store, *to], "name the runs"),
        (["add", one, "--mixer", mine, *store], "a folder of their own"),
        (["add", attention, "--mixer", mine, *store, *to], f"run {attention} is of attention"),
        (["add", one, again, "--mixer", mine, *store, *to], "name the one that counts"),
        (["check", str(tmp_path / "none")], "has no runs"),
    ):
        code, out, err = command("results", *words)
        assert (code, out) == (2, ""), words
        assert problem in err
    assert not (tmp_path / "x").exists()
