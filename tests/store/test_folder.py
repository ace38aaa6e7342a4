from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mecheval.errors import UserError
from mecheval.store import RunFolder, Store, StoreError, StoreWarning
from mecheval.store.lock import PATIENCE
from mecheval.store.schema import RUNS
from store.examples import ABLATION, EFFECT, HISTORY, ID, hold, write_run


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / ID)


@contextmanager
def held_elsewhere(folder: RunFolder, tmp_path: Path) -> Iterator[int]:
    """Another process holds the run; at the end it is killed."""
    sign = tmp_path / "held"
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(folder.path, sign))
    process.start()
    assert process.pid is not None
    try:
        until = time.monotonic() + 60
        while not sign.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.join()


def test_a_held_run_is_refused_and_the_holder_is_named(folder: RunFolder, tmp_path: Path) -> None:
    with held_elsewhere(folder, tmp_path) as pid:
        assert folder.is_held()
        assert folder.status()["status"] == "running"
        with (
            pytest.raises(UserError, match=rf"run {ID} is in use by process {pid} on host .+ \(since 2.+ UTC\)"),
            folder.exclusive(),
        ):
            pass
        assert folder.is_held()
        assert (folder.weights / ".last.safetensors.x.part").exists()  # the holder's own work


def test_a_killed_holder_leaves_the_run_free_interrupted_and_its_rests_are_removed(
    folder: RunFolder, tmp_path: Path
) -> None:
    with held_elsewhere(folder, tmp_path) as pid:
        os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 60
        while folder.is_held():
            assert time.monotonic() < until
    assert folder.status() | {"status": "interrupted", "step": 7} == folder.status()
    (folder.path / "part").write_text("not a rest")
    with folder.exclusive():
        assert {entry.name for entry in folder.path.rglob("*")} == {"lock", "status.json", "weights", "part"}


def test_exclusive_also_within_a_process_and_again_afterwards(folder: RunFolder) -> None:
    for _ in range(2):
        assert not folder.is_held()
        with folder.exclusive():
            assert folder.is_held()
            with pytest.raises(UserError, match=f"process {os.getpid()} "), RunFolder(folder.path).exclusive():
                pass
            assert folder.is_held()


def test_what_was_computed_waits_for_the_run_and_says_so_once(folder: RunFolder) -> None:
    write_run(folder)
    holder = RunFolder(folder.path).exclusive()
    holder.__enter__()
    end = threading.Timer(3 * PATIENCE, lambda: holder.__exit__(None, None, None))
    end.start()
    with pytest.warns(StoreWarning) as warned, folder.saving():
        folder.replace({"ablations": [ABLATION | {"edited": 0.0}]}, ("state",), "interventions")
    end.join()
    [said] = warned
    assert str(said.message).startswith(f"run {ID} is in use by process {os.getpid()} on host ")
    assert str(said.message).endswith("the result is saved as soon as it is released.")
    assert [row["edited"] for row in folder.read("ablations")] == [0.0]


def test_a_run_that_goes_while_it_is_held_is_told_and_not_begun_again(folder: RunFolder, tmp_path: Path) -> None:
    moved = RunFolder(tmp_path / "elsewhere" / ID)
    moved.path.parent.mkdir()
    with folder.exclusive():
        folder.set_status(status="running")
        folder.path.rename(moved.path)
        writes: list[Callable[[], None]] = [folder.check_here, lambda: folder.set_status(step=1)]
        writes += [lambda: folder.write("history", HISTORY)]
        for write in writes:
            with pytest.raises(StoreError, match=f"run {ID} was moved or removed meanwhile: it is no longer at"):
                write()
        assert moved.status()["status"] == "running"
        RunFolder(folder.path).path.mkdir()  # another process begins it anew
        with pytest.raises(StoreError, match="was moved or removed"):
            folder.set_status(step=1)
    assert list(folder.path.iterdir()) == []
    assert moved.status()["status"] == "interrupted"
    folder.path.rmdir()
    with pytest.raises(StoreError, match="was moved or removed"), folder.saving():
        pass
    assert not folder.path.exists()


def test_a_status_that_goes_while_the_run_is_held_is_told(folder: RunFolder) -> None:
    with folder.exclusive():
        folder.set_status(status="running")
        (folder.path / "status.json").unlink()
        writes: list[Callable[[], None]] = [lambda: folder.set_status(step=1), lambda: folder.write("history", [])]
        for write in writes:
            with pytest.raises(StoreError, match=r"status\.json is missing; restore it"):
                write()
    assert not folder.exists()


def test_a_folder_that_goes_between_its_opening_and_its_locking_is_made_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, list[Path]()

    def late(descriptor: int, operation: int) -> None:
        if not removed:  # as `mecheval clean` does at this moment
            removed.append(folder.path)
            shutil.rmtree(folder.path)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with folder.exclusive():
        folder.set_status(status="running")
        assert folder.is_held()
    assert folder.status()["status"] == "interrupted"


def test_asking_who_holds_a_run_is_not_in_the_way_of_a_writer(folder: RunFolder) -> None:
    write_run(folder)
    with (folder.path / "lock").open() as asker:
        fcntl.flock(asker, fcntl.LOCK_SH)  # as `is_held` does, only longer
        end = threading.Timer(0.05, lambda: fcntl.flock(asker, fcntl.LOCK_UN))
        end.start()
        with folder.exclusive():
            assert folder.is_held()
        end.join()


def test_status_merges_and_keeps_times(folder: RunFolder) -> None:
    blank = dict.fromkeys((column.name for column in RUNS.columns), None) | {"run": ID}
    assert not folder.exists()
    assert folder.status() == blank
    before = datetime.now(UTC).replace(tzinfo=None)
    with folder.exclusive():
        folder.set_status(status="running", lr=1e-3, config={"task": {"pairs": 8}})
        first = folder.status()
        folder.set_status(status="done", dev_loss=float("nan"), test_loss=float("inf"), lr=None)
        second = folder.status()
    known = {"status": "running", "lr": 1e-3, "config": {"task": {"pairs": 8}}}
    assert first == blank | known | {"started": first["started"], "updated": first["updated"]}
    assert before <= first["started"] == first["updated"] < second["updated"]
    assert second == first | {"status": "done", "lr": None, "updated": second["updated"]}
    assert folder.exists()


def test_status_is_standard_json(folder: RunFolder) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    write_run(folder, dev_loss=float("nan"), test_loss=-float("inf"), lr=0.1)
    saved = json.loads((folder.path / "status.json").read_text(), parse_constant=refuse)
    assert list(saved) == ["sha256", *(column.name for column in RUNS.columns), "files", "replacing"]
    assert (saved["dev_loss"], saved["test_loss"], saved["lr"]) == (None, None, 0.1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"stepp": 1}, "column 'stepp' of table runs cannot be set; choices: status, task"),
        ({"run": "x"}, "column 'run'"),
        ({"updated": "2026-01-01"}, "column 'updated'"),
        ({"status": "paused"}, "unknown status 'paused'; choices: running"),
        ({"step": 1.5}, "column step"),
    ],
)
def test_a_wrong_column_is_an_error_and_changes_nothing(
    folder: RunFolder, columns: dict[str, Any], message: str
) -> None:
    before = write_run(folder).status()
    with folder.exclusive(), pytest.raises(ValueError, match=message):
        folder.set_status(**columns)
    assert folder.status() == before


def test_a_run_begins_with_a_status(folder: RunFolder) -> None:
    with folder.exclusive(), pytest.raises(ValueError, match="unknown status None"):
        folder.set_status(step=1)
    assert not folder.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"status": "done", "lr": "x"}', '{"status": NaN}', "\xff"])
def test_a_damaged_status_is_named(folder: RunFolder, damage: str) -> None:
    write_run(folder)
    (folder.path / "status.json").write_text(damage, encoding="latin-1")
    with pytest.raises(StoreError, match=r"cannot read .*status\.json: the file is damaged .* remove its folder"):
        folder.status()


def test_config_and_environment(folder: RunFolder) -> None:
    with folder.exclusive():
        folder.write_files({"config.yaml": "lr: 1.0\nname: ü\n".encode()})
        folder.write_files(folder.environment_file("training from step 0"))
        folder.write_files(folder.environment_file("interventions on last, test"))
    assert (folder.path / "config.yaml").read_text(encoding="utf-8") == "lr: 1.0\nname: ü\n"
    parts = json.loads((folder.path / "environment.json").read_text())
    assert list(parts) == ["training from step 0", "interventions on last, test"]
    assert parts["training from step 0"]["python"] == sys.version.split()[0]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("what", ["status.json", "config.yaml", "environment.json", "history.parquet"])
def test_a_write_that_fails_is_one_line_and_leaves_what_was_there(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, code: int, what: str
) -> None:
    writes: dict[str, Callable[[], None]] = {
        "status.json": lambda: folder.set_status(status="done"),
        "config.yaml": lambda: folder.write_files({"config.yaml": b"lr: 1"}),
        "environment.json": lambda: folder.write_files(folder.environment_file("training from step 0")),
        "history.parquet": lambda: folder.write("history", HISTORY[:1]),
    }

    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    with folder.exclusive():
        folder.set_status(status="running")
        folder.write_files({"config.yaml": b"lr: 0"})
        folder.write_files(folder.environment_file("training from step 0"))
        folder.write("history", HISTORY)
        before = {path: path.read_bytes() for path in folder.path.iterdir()}
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(StoreError) as caught:
            writes[what]()
    path = folder.path / what
    assert str(caught.value) == f"cannot write {path}: {os.strerror(code)}; what was saved before is intact."
    assert {path: path.read_bytes() for path in folder.path.iterdir()} == before


def test_a_disk_that_fills_up_under_duckdb_is_told_too(folder: RunFolder) -> None:
    write_run(folder)
    program = f"""
import random, resource, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from store.examples import HISTORY, RunFolder
import duckdb
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
RunFolder(Path(sys.argv[1])).write("history", [HISTORY[0] | {{"loss": random.random()}} for _ in range(50000)])
"""
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    command = [sys.executable, "-c", program, str(folder.path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    last = result.stderr.strip().splitlines()[-1]
    path = folder.table("history")
    assert last.endswith(f"StoreError: cannot write {path}: File too large; what was saved before is intact.")
    assert {path: path.read_bytes() for path in folder.path.iterdir()} == before


def test_a_store_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = RunFolder(tmp_path / "file" / "runs" / ID)
    with pytest.raises(StoreError, match=r"cannot write .*lock: Not a directory"), folder.exclusive():
        pass


def test_rows_are_replaced_where_they_agree_in_the_named_columns(tmp_path: Path) -> None:
    folder = write_run(Store(tmp_path).folder(ID))
    first = [EFFECT | {"site": site} for site in ("a", "b")]
    with folder.exclusive():
        for rows in (first, [EFFECT | {"split": "test"}], [EFFECT | {"site": "c"}]):
            folder.replace({"effects": rows}, ["state", "split"], "interventions")
    found = Store(tmp_path).effects()
    assert sorted(zip(found["split"], found["site"], strict=True)) == [("dev", "c"), ("test", EFFECT["site"])]
