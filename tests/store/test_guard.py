"""A store from a stranger: nothing outside it is read, written, removed or waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Command
from mecheval.store import RunFolder, Store, StoreError, StoreWarning
from mecheval.store.guard import read_file
from mecheval.training.loop import _remove_checkpoints
from store.examples import ID, write_run

Place = Callable[[Path, Path], None]


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def fifo(path: Path, target: Path) -> None:
    os.mkfifo(path)


def hard_link(path: Path, target: Path) -> None:
    path.hardlink_to(target)


def listening(path: Path, target: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(Store(tmp_path / "store").folder(ID))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of files outside the store."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("000000007.json", "000000007.safetensors", "precious"):
        (outside / name).write_text("precious")
    return outside


def unharmed(victim: Path) -> bool:
    return {path.name: path.read_text() for path in victim.iterdir()} == dict.fromkeys(
        ("000000007.json", "000000007.safetensors", "precious"), "precious"
    )


@pytest.mark.parametrize("place", [link, fifo, hard_link, listening])
def test_a_lock_that_is_no_file_of_its_own(folder: RunFolder, victim: Path, place: Place) -> None:
    (folder.path / "lock").unlink()
    place(folder.path / "lock", victim / "precious")
    with pytest.raises(StoreError, match=r"lock is a .*; a store holds only regular files"), folder.exclusive():
        pass
    assert unharmed(victim)


@pytest.mark.parametrize("name", ["status.json", "history.parquet", "config.yaml", "weights", "checkpoint", ".x.part"])
@pytest.mark.parametrize("place", [link, fifo])
def test_what_is_not_a_regular_file_is_refused(folder: RunFolder, victim: Path, name: str, place: Place) -> None:
    path = folder.path / name
    path.unlink(missing_ok=True)
    place(path, victim if name in ("weights", "checkpoint") else victim / "precious")
    with pytest.raises(StoreError, match=f"{name} is a (symbolic link|FIFO)"), folder.exclusive():
        pass
    if name in ("status.json", "history.parquet"):
        store = Store(folder.path.parents[1])
        with pytest.warns(StoreWarning, match=f"run {ID} is left out: .*{name} is a"):
            assert len(store.history()) == 0
    assert unharmed(victim)


def test_removing_checkpoints_does_not_wait_for_a_fifo(folder: RunFolder) -> None:
    os.mkfifo(folder.checkpoints)
    other_end = os.open(folder.checkpoints, os.O_RDWR)  # so that opening it would not block this test
    with pytest.raises(StoreError, match="checkpoint is a FIFO"):
        _remove_checkpoints(folder)
    os.close(other_end)


def test_a_run_or_all_runs_that_lie_elsewhere(folder: RunFolder, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    other = tmp_path / "store" / "runs" / ("f" * 12)
    other.symlink_to(folder.path)
    with pytest.raises(StoreError, match=r"f{12} is a symbolic link"), RunFolder(other).exclusive():
        pass
    with pytest.warns(StoreWarning, match=r"run f{12} is left out"):
        assert list(store.runs()["status"]) == ["done", "failed"]
    (tmp_path / "received").mkdir()
    (tmp_path / "received" / "runs").symlink_to(tmp_path / "store" / "runs")
    with pytest.raises(StoreError, match="runs is a symbolic link"):
        Store(tmp_path / "received").ids()
    (tmp_path / "mine").symlink_to(tmp_path / "store")  # the store itself may be reached by a link of the user's
    other.unlink()
    assert Store(tmp_path / "mine").ids() == [ID]


def test_what_is_read_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(101))
    assert len(read_file(tmp_path / "large", tmp_path, 101)) == 101
    with pytest.raises(StoreError, match="it has 101 bytes; the limit is 100"):
        read_file(tmp_path / "large", tmp_path, 100)


DEEP = b'{"status": "done", "config": {"task": ' + b'{"a": ' * 50_000 + b"1" + b"}" * 50_000 + b"}}"


@pytest.mark.parametrize(
    "status",
    [
        DEEP,
        b'{"status": "done", "seed": 1' + b"0" * 400 + b"}",
        b'{"status": "done", "lr": 1' + b"0" * 400 + b"}",
        b'{"status": "done", "started": "0001-01-01T00:00:00+14:00"}',
        b'{"status": "done", "started": [1]}',
        b'{"status": "done", "config": {"model": [1, 2]}}',
        b'{"status": "done", "config": [1, 2]}',
        b'{"status": "done", "mixer": "' + b"x" * 100_000 + b'"}',
        b'{"status": "done", "what": 1}',
        b'{"status": 3}',
        b'{"status": "done", "message": "' + b"x" * 4_000_000 + b'"}',
    ],
    ids=lambda status: status[:45].decode(),
)
def test_a_hostile_status_is_one_line_and_the_others_are_listed(folder: RunFolder, status: bytes) -> None:
    store = Store(folder.path.parents[1])
    other = store.folder("f" * 12)
    other.path.mkdir()
    (other.path / "status.json").write_bytes(status)
    with pytest.warns(StoreWarning) as warned:
        assert list(store.history()["run"].unique()) == [ID]
    for each in warned:
        assert str(each.message).startswith(f"run {other.id} is left out: ")
        assert len(str(each.message)) < 600
        assert "\n" not in str(each.message)


def test_figures_and_trackers_do_not_leave_the_store(tmp_path: Path, victim: Path, command: Command) -> None:
    for name in ("figures", "tensorboard"):
        (tmp_path / name).symlink_to(victim)
    for words in (["study", "ar"], ["train", "--preset", "laptop", "--track", "tensorboard"]):
        code, out, err = command(*words, "--store", str(tmp_path))
        assert (code, out) == (2, "")
        assert "is a symbolic link; a store holds only regular files" in err
    assert unharmed(victim)
