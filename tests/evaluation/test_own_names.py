"""What an own mixer is called, and how other processes find it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mecheval import cli
from mecheval import custom as own
from mecheval.config import run_config
from mecheval.custom import VARIABLE, Source
from mecheval.errors import UnknownName, UserError
from mecheval.mixers import MIXERS, build_mixer

MINE = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, d_model, gain=1.0):
        super().__init__()
        self.gain = gain

    def forward(self, x):
        return self.gain * x.cumsum(1)

class Other(nn.Module):
    pass

class Helper:
    pass

def make(d_model):
    return Mine(d_model)

built = make(4)
"""


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(MIXERS, "_classes", dict(MIXERS._classes))
    monkeypatch.setattr(MIXERS, "_found", {})
    monkeypatch.setattr(sys, "path", list(sys.path))


def written(folder: Path, text: str = MINE, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_name_carries_the_files_digest(tmp_path: Path) -> None:
    source = Source.read(f"{written(tmp_path)}:Mine")
    assert source.name == f"Mine@{hashlib.sha256(MINE.encode()).hexdigest()[:8]}"
    assert own.own_name(source.load()) == source.name, "a class at hand has the name of its file"


def test_an_edit_makes_another_mixer_and_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.setenv(VARIABLE, f"{path}:Mine")
    before = Source(path, "Mine").name
    first = run_config("ar", before)
    assert run_config("ar", before).id == first.id
    path.write_text(MINE.replace("cumsum(1)", "cumsum(1) + 1"))
    after = Source(path, "Mine").name
    assert after != before
    assert run_config("ar", after).id != first.id
    outputs = [build_mixer(name, 2)(torch.ones(1, 1, 2)).tolist() for name in (before, after)]
    assert outputs == [[[[1.0, 1.0]]], [[[2.0, 2.0]]]], "both versions, side by side"


def test_a_file_that_was_edited_after_it_was_imported_is_not_taken_for_the_class(tmp_path: Path) -> None:
    path = written(tmp_path)
    cls = Source(path, "Mine").load()
    path.write_text(MINE.replace("cumsum(1)", "cumsum(1) * 2"))
    assert own.own_name(cls) != Source(path, "Mine").name
    assert own.own_name(cls) == own.own_name(cls)


def made(code: str) -> type[nn.Module]:
    """A class as from a prompt: there is no file."""
    names: dict[str, type[nn.Module]] = {"__name__": "__main__"}  # type: ignore[dict-item]
    exec(code, names)
    return names["Mine"]


def test_a_class_without_a_file_is_named_by_what_it_does() -> None:
    name = own.own_name(made(MINE))
    assert own.own_name(made(MINE)) == name
    assert own.own_name(made("# a comment\n\n" + MINE)) == name
    edits = [("cumsum(1)", "cumsum(0)"), ("self.gain *", "2.5 *"), ("gain=1.0", "gain=2.0"),
             ("class Mine(nn.Module):", "class Mine(nn.Module):\n    positions = 'learned'")]  # fmt: skip
    names = [own.own_name(made(MINE.replace(*edit))) for edit in edits]
    assert len({name, *names}) == 5


def test_the_bases_of_a_class_without_a_file_count() -> None:
    child = "\nclass Mine(Mine):\n    pass\n"
    assert own.own_name(made(MINE + child)) != own.own_name(made(MINE.replace("cumsum(1)", "cumsum(0)") + child))


def inside(gain: float) -> type[nn.Module]:
    class Mine(nn.Module):
        def __init__(self, d_model: int) -> None:
            super().__init__()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return gain * x

    return Mine


def test_what_a_class_takes_from_a_function_counts() -> None:
    assert own.own_name(inside(1.0)) == own.own_name(inside(1.0))
    assert own.own_name(inside(1.0)) != own.own_name(inside(2.0))


def test_a_set_of_words_has_the_same_digest_in_every_process() -> None:
    """Without a module of torch, whose import takes seconds; the digest is of the constants in its own code."""
    text = "class Mine:\n    def forward(self, x):\n        return x in {'a', 'b', 'c', 'd', 'e', 'f'}"
    code = f"from mecheval import custom as own\nexec({text!r})\nprint(own.own_name(Mine))"
    words = [sys.executable, "-c", code]
    other = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    assert subprocess.check_output(words, text=True, env=other).strip() == own.own_name(made(text))


def test_the_environment_lists_files_with_commas_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "a, b:c"
    odd.mkdir()
    monkeypatch.setenv(VARIABLE, f"{odd}/x.py:A, {tmp_path}/y.py:B,")
    assert own.sources() == [Source(odd / "x.py", "A"), Source(tmp_path / "y.py", "B")]
    own.announce(Source(tmp_path / "z.py", "C"))
    own.announce(Source(tmp_path / "z.py", "C"))
    assert [source.cls for source in own.sources()] == ["A", "B", "C"]
    monkeypatch.setenv(VARIABLE, "x.py")
    with pytest.raises(UserError, match=r"MECHEVAL_MIXERS lists path/to/file.py:MyMixer, comma-separated"):
        own.sources()


def test_what_goes_to_other_machines_has_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own.environment() == {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "mine.py:Mine")
    assert own.environment() == {VARIABLE: f"{tmp_path}/mine.py:Mine"}


def test_names_are_listed_without_executing_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "raise SystemExit('executed')")
    monkeypatch.setenv(VARIABLE, f"{path}:Mine,{tmp_path}/gone.py:Gone")
    assert Source(path, "Mine").name in MIXERS.names()
    assert not any(name.startswith("Gone") for name in MIXERS.names())


def test_a_name_from_a_store_alone_executes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, MINE + f"\nopen({str(tmp_path / 'executed')!r}, 'w')")
    with pytest.raises(UserError) as error:
        MIXERS.get("Mine@12345678")
    assert str(error.value) == (
        "mixer 'Mine@12345678' is a custom mixer; to load it, set MECHEVAL_MIXERS=path/to/file.py:Mine."
    )
    monkeypatch.setenv(VARIABLE, f"{path}:Mine")
    with pytest.raises(UserError) as error:
        MIXERS.get("Mine@12345678")
    assert str(error.value) == (
        f"mixer 'Mine@12345678' cannot be loaded: {path} has changed since (it is {Source(path, 'Mine').name} now)."
    )
    assert not (tmp_path / "executed").exists()
    with pytest.raises(UnknownName, match="unknown mixer 'mambo'"):
        MIXERS.get("mambo")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_package_at_all", "line 1 failed when it was imported: ModuleNotFoundError: No module named"),
        ("x = 1\n\ny = x / 0\n", "line 3 failed when it was imported: ZeroDivisionError: division by zero"),
        ("x = 1\ndef f(:\n", "line 2 is not Python: invalid syntax"),
        ("import sys\nsys.exit(3)", "line 2 failed when it was imported: SystemExit: 3"),
        ("x = '\0'", "is not Python: source code string cannot contain null bytes"),
        ("import mecheval\nmecheval.evaluate(None)", "line 2: mecheval.evaluate is called when the file is imported"),
        ("import mecheval\n\nmecheval.build_task('arr')", "line 3: unknown task 'arr'. Did you mean 'ar'?"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_imported_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as error:
        Source(path, "Mine").load()
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gone.py:Mine", "cannot read gone.py: No such file or directory."),
        ("mine.txt:Mine", "mine.txt is not a Python file (.py)."),
        (".py:Mine", ".py is not a Python file (.py)."),
        ("mine.py", "name a class in the file, mine.py:MyMixer; torch modules there: Mine, Other."),
        ("Mine", "name a file and a class in it, path/to/file.py:MyMixer (got 'Mine')."),
        ("mine.py:Mnie", "unknown torch module in mine.py 'Mnie'. Did you mean 'Mine'? Choices: Mine, Other."),
        (
            "mine.py:torch",
            "torch in mine.py is of type module; give a torch module class, or a function that builds one.",
        ),
        (
            "mine.py:built",
            "built in mine.py is a mixer that is built already, and models of several widths need their own; "
            "give its class Mine, or a function that builds one: def make(d_model): return Mine(...).",
        ),
        ("mine.py:Helper", "Helper in mine.py is not a torch module; write `class Helper(torch.nn.Module)`."),
    ],
)
def test_a_wrong_name_is_one_line_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    with pytest.raises(UserError) as error:
        Source.read(source).load()
    assert str(error.value) == message


def test_neighbours_can_be_imported_and_hide_nothing(tmp_path: Path) -> None:
    written(tmp_path, "FACTOR = 3\n", "a_neighbour.py")
    written(tmp_path, "raise RuntimeError\n", "json.py")
    text = "import json\nfrom a_neighbour import FACTOR\n" + MINE
    assert Source(written(tmp_path, text), "Mine").load().__name__ == "Mine"


def test_a_file_is_executed_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = written(tmp_path, MINE + f"\nwith open({str(log)!r}, 'a') as file:\n    file.write('x')\n")
    assert Source(path, "Mine").load() is Source(path, "Mine").load()
    assert log.read_text() == "x"


def test_list_mixers_shows_own_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path)
    monkeypatch.setenv(VARIABLE, f"{path}:Mine")
    monkeypatch.setattr(sys, "argv", ["mecheval", "list", "mixers", "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    assert Source(path, "Mine").name in capsys.readouterr().out


def test_a_task_of_ray_gets_the_list_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed; pip install 'mecheval[ray]'")
    from mecheval.sweep.job import Job
    from mecheval.sweep.ray_engine import _Tasks
    from training.runs import tiny

    asked: list[dict[str, object]] = []

    class Task:
        def options(self, **given: object) -> Task:
            asked.append(given)
            return self

        def remote(self, *_: object) -> str:
            return "reference"

    class Engine:
        cpus, gpus, checkpoint_seconds = 1, 0, 30.0

    sweep = _Tasks.__new__(_Tasks)
    sweep.engine, sweep.task, sweep.store, sweep.marker = Engine(), Task(), "store", ""  # type: ignore[assignment]
    sweep.mailbox, sweep.under_way = None, {}
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/mine.py:Mine")
    sweep.start(Job(tiny()))
    environment = asked[0]["runtime_env"]["env_vars"]  # type: ignore[index]
    assert environment[VARIABLE] == f"{tmp_path}/mine.py:Mine"
    assert environment["OMP_NUM_THREADS"] == "1"
