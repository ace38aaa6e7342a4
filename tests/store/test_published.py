from __future__ import annotations

from pathlib import Path

import pytest

from commands import Command
from mecheval.errors import UserError
from mecheval.store import RESULTS, Published, Snapshot, Store
from mecheval.store.published import MOST_BYTES, MOST_STEPS, publish
from mecheval.store.upkeep import OK, verify
from store.examples import EFFECT, ID, write_run

OTHER = "ba9876543210"


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_adding_again_changes_nothing_and_other_runs_stay(tmp_path: Path) -> None:
    source, to = Store(tmp_path / "store"), tmp_path / "results"
    assert publish(write_run(source.folder(ID), rows=1000), to)
    first = files(to)
    assert not publish(source.folder(ID), to)
    assert files(to) == first
    assert publish(write_run(source.folder(OTHER)), to)
    assert files(to).items() >= first.items()
    assert Store(to).ids() == [ID, OTHER]
    assert [Store(to).folder(run).problems() for run in (ID, OTHER)] == [[], []]


def test_adding_again_removes_what_a_killed_command_left(tmp_path: Path, command: Command) -> None:
    source, to = Store(tmp_path / "store"), tmp_path / "results"
    write_run(source.folder(ID))
    left = [to / "runs" / ID / ".history.parquet.x.part", to / "weights" / ".ar.safetensors.x.part", to / ".runs.lock"]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    words = ["results", "add", "--store", str(source.path), "--to", str(to)]
    assert command.prints(*words).startswith("1 of 1 runs are new or changed")
    assert not any(path.exists() for path in left)
    assert Store(to).folder(ID).problems() == []


def test_a_published_run_has_its_tables_without_what_is_large(tmp_path: Path) -> None:
    source, to = Store(tmp_path / "store"), tmp_path / "results"
    folder = write_run(source.folder(ID), rows=1000, test_accuracy=0.5)
    (folder.path / "weights").mkdir()
    (folder.path / "weights" / "last.safetensors").write_bytes(b"large")
    folder.replace({"effects": [EFFECT | {"state": "training"}]}, ("state",), "interventions on the way")
    publish(folder, to)
    assert not list(to.rglob("*.safetensors"))
    assert not list(to.rglob("lock"))
    copied = Store(to)
    assert copied.runs().equals(source.runs())  # the times, too
    assert len(copied.history()) <= MOST_STEPS + 1
    assert copied.history()["step"].iloc[-1] == 999
    assert copied.scores().equals(source.scores())
    assert copied.verdicts().equals(source.verdicts())
    assert copied.effects()["state"].tolist() == ["last"]
    [part] = copied.folder(ID).environments().values()
    assert {"commit", "cpu"} <= part.keys()
    assert "host" not in part


def test_only_runs_that_ended_can_be_published(tmp_path: Path) -> None:
    folder = write_run(Store(tmp_path).folder(ID), status="failed")
    with pytest.raises(UserError, match="is failed; only runs that ended can be published"):
        publish(folder, tmp_path / "results")


def test_the_store_comes_first_and_the_results_have_the_rest(tmp_path: Path) -> None:
    own, other, to = Store(tmp_path / "own"), Store(tmp_path / "other"), tmp_path / "results"
    for run in (ID, OTHER):
        publish(write_run(other.folder(run), test_accuracy=0.5), to)
    assert Published(own.path, to).ids() == [ID, OTHER]  # there is no store yet
    write_run(own.folder(ID), test_accuracy=0.75)
    write_run(own.folder(OTHER), status="failed")
    both = Published(own.path, to)
    for store in (both, Snapshot(both)):
        assert store.exists()
        assert store.runs().set_index("run")["test_accuracy"].to_dict() == {ID: 0.75, OTHER: 0.5}
        assert store.effects()["run"].tolist() == [ID, OTHER]
    assert not Published(tmp_path / "none", tmp_path / "none").exists()


def test_the_results_of_the_package_are_whole_and_small() -> None:
    assert {found.state for found in verify(Store(RESULTS))} == {OK}
    assert sum(map(len, files(RESULTS / "runs").values())) <= MOST_BYTES
