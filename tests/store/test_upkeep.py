from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import Command
from mecheval.analysis.weights import weights_file
from mecheval.store import RunFolder, Store, upkeep
from mecheval.store.upkeep import clean, verify
from store.examples import ID, write_run
from training.runs import tiny


def weighed(store: Store) -> RunFolder:
    """A whole run with the weights of an untrained model."""
    config = tiny()
    folder = store.folder(config.id)
    with folder.exclusive():
        folder.set_status(status="running", config=config.to_dict())
        weights = dict(config.build_lm().state_dict())
        folder.write_files({"weights/last.safetensors": weights_file(config, "last", 3, weights)})
        folder.write("history", [])
        folder.write("scores", [])
        folder.set_status(status="done")
    return folder


def test_verify_says_what_is_wrong_with_which_run(tmp_path: Path, command: Command) -> None:
    store = Store(tmp_path / "store")
    folder = weighed(store)
    begun = store.folder("0" * 12)
    with begun.exclusive():
        begun.set_status(status="interrupted")
    assert [each[:2] for each in verify(store)] == [("0" * 12, "unfinished"), (folder.id, "ok")]
    arguments = ["verify", "--store", str(store.path)]
    assert "2 runs: 1 ok, 1 unfinished." in command.prints(*arguments)

    weights = folder.weights / "last.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, out, _ = command(*arguments)
    assert code == 1
    assert "1 damaged" in out
    code, out, _ = command(*arguments, folder.id[:6], "--json")
    assert code == 1
    found = json.loads(out)
    assert found == [{"run": folder.id, "state": "damaged", "problems": [found[0]["problems"][0]]}]
    assert "last.safetensors does not match its checksum" in found[0]["problems"][0]

    with folder.exclusive():  # sealed as they are: weights of another run, and a table with a column of another type
        other = tiny(seed=1)
        lie = weights_file(other, "last", 3, dict(other.build_lm().state_dict()))
        folder.write_files({"weights/last.safetensors": lie, "history.parquet": b"no Parquet"})
    [(_, state, problems)] = verify(store, [folder.id])
    assert state == "damaged"
    assert "history.parquet cannot be used" in problems[0]
    assert "does not hold the last weights of this run" in problems[1]


def test_a_run_without_its_status_is_not_overlooked(tmp_path: Path, command: Command) -> None:
    store = Store(tmp_path / "store")
    whole = weighed(store)
    lost = write_run(store.folder("f" * 12))
    (lost.path / "status.json").unlink()
    problem = f"{lost.path / 'status.json'} is missing; restore it, or remove the folder to train the run again."
    assert [tuple(each) for each in verify(store)] == [(whole.id, "ok", ()), (lost.id, "damaged", (problem,))]
    code, out, err = command("query", "select count(*) as n from effects", "--csv", "--store", str(store.path))
    assert (code, out, err) == (0, "n\n0\n", f"mecheval: run {lost.id} is left out: {problem}\n")
    code, out, err = command("runs", "--json", "--store", str(store.path))
    assert {row["run"]: row["status"] for row in json.loads(out)} == {whole.id: "done", lost.id: "failed"}
    assert err == f"mecheval: run {lost.id} is left out: {problem}\n"
    with lost.exclusive():  # as at the beginning of a run
        assert store.ids() == [whole.id]


def test_clean_leaves_what_another_process_has_begun_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    folder = store.folder(ID)
    folder.path.mkdir(parents=True)
    removable, begun = upkeep._removable, list[RunFolder]()

    def late(looked_at: RunFolder) -> list[upkeep.Removal]:
        found = removable(looked_at)
        if not begun:
            begun.append(write_run(store.folder(ID)))
        return found

    monkeypatch.setattr(upkeep, "_removable", late)
    assert clean(store) == []
    assert folder.problems() == []


def test_clean_removes_rests_and_nothing_else(tmp_path: Path, command: Command) -> None:
    store = Store(tmp_path / "store")
    done = write_run(store.folder(ID))
    (done.checkpoints).mkdir()
    (done.checkpoints / "000000001.json").write_text("{}")
    begun = store.folder("0" * 12)
    with begun.exclusive():
        begun.set_status(status="interrupted")
    begun.checkpoints.mkdir()
    (begun.checkpoints / "000000001.json").write_text("{}")
    (begun.path / ".x.part").write_text("half")
    (store.path / "runs" / ("e" * 12)).mkdir()
    (store.path / "runs" / ("d" * 12)).mkdir()
    (store.path / "runs" / ("d" * 12) / "notes").write_text("the user's own")
    removable = [begun.path / ".x.part", done.checkpoints, store.path / "runs" / ("e" * 12)]
    assert sorted(each.path for each in clean(store, dry_run=True)) == sorted(removable)
    assert all(path.exists() for path in removable)
    with begun.exclusive():  # a held run is left alone; to hold it removes its own rests
        assert sorted(each.path for each in clean(store, dry_run=True)) == sorted(removable[1:])
    said = command.prints("clean", "--store", str(store.path))
    assert "checkpoints of a finished run" in said
    assert "2 things removed" in said
    assert not any(path.exists() for path in removable)
    assert (begun.checkpoints / "000000001.json").exists()
    assert (store.path / "runs" / ("d" * 12) / "notes").exists()
    assert done.problems() == []
    assert command.prints("clean", "--store", str(store.path)) == "There is nothing to remove.\n"


@pytest.mark.parametrize("name", ["verify", "clean"])
def test_a_store_that_is_not_there(tmp_path: Path, command: Command, name: str) -> None:
    code, _, err = command(name, "--store", str(tmp_path / "nothing"))
    assert code == 2
    assert "there is no store at" in err
