"""Results that cannot rot in silence: every file of a whole run is vouched for."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import mecheval.store.folder as folder_module
from mecheval.files import run_id, sha256, write_atomic
from mecheval.store import RunFolder, Store, StoreError, StoreWarning
from mecheval.store.guard import FIRST_LINE, blank, read_record, write_record
from store.examples import EFFECT, ID, VERDICT, write_run
from training.runs import in_child, outcome

TABLES = ("history", "scores", "effects", "verdicts", "ablations")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(Store(tmp_path).folder(ID))


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["status.json", *(f"{table}.parquet" for table in TABLES)])
def test_no_flipped_bit_is_read(folder: RunFolder, name: str) -> None:
    path = folder.path / name
    whole = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(whole)), 60):
        flip(path, bit)
        with pytest.raises(StoreError, match=name):
            folder.status() if name == "status.json" else folder.read(path.stem)
        path.write_bytes(whole)
    assert folder.status()["status"] == "done"


def test_no_flipped_bit_of_an_environment_is_read_or_sealed_anew(folder: RunFolder) -> None:
    with folder.exclusive():
        folder.write_files(folder.environment_file("training from step 0"))
    path = folder.path / "environment.json"
    whole = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(whole)), 60):
        flip(path, bit)
        with pytest.raises(StoreError, match=r"environment\.json does not match its checksum"):
            folder.environments()
        path.write_bytes(whole)
    flip(path, 100)
    with pytest.raises(StoreError, match="checksum"), folder.exclusive():
        folder.replace({"verdicts": [VERDICT]}, ["state", "split"], "interventions")
    path.write_bytes(whole)
    assert list(folder.environments()) == ["training from step 0"]


def test_every_bit_of_a_status_counts(folder: RunFolder) -> None:
    content = (folder.path / "status.json").read_bytes()
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            with pytest.raises(ValueError, match=r"."):
                read_record(bytes(damaged), ID)


def test_another_runs_status_a_missing_table_and_one_too_many_are_noticed(folder: RunFolder, tmp_path: Path) -> None:
    other = Store(tmp_path).folder("f" * 12)
    shutil.copytree(folder.path, other.path)
    with pytest.raises(StoreError, match=f"it belongs to run {ID}"):
        other.status()
    shutil.rmtree(other.path)
    folder.table("history").rename(tmp_path / "aside")
    with pytest.warns(StoreWarning, match=r"run 0123456789ab is left out: .*history\.parquet is missing"):
        assert len(Store(tmp_path).query("from history")) == 0
    (tmp_path / "aside").rename(folder.table("history"))
    (folder.path / "more.parquet").touch()
    assert folder.problems() == [f"{folder.path / 'more.parquet'} is not among the files of the run."]


def test_a_file_with_rows_of_another_run_is_left_out(folder: RunFolder, tmp_path: Path) -> None:
    other = write_run(Store(tmp_path).folder("f" * 12))
    content = other.table("history").read_bytes()
    with folder.exclusive():
        folder.write_files({"history.parquet": content})  # sealed, and a lie all the same
    with pytest.warns(StoreWarning, match=f"run {ID} is left out: .* has rows of run 'f{{12}}'"):
        assert set(Store(tmp_path).history()["run"]) == {"f" * 12}
    with pytest.raises(StoreError, match="has rows of run"):
        folder.read("history")


def test_runs_from_before_checksums_are_read_and_sealed_when_written_to(folder: RunFolder) -> None:
    path = folder.path / "status.json"
    config = {"task": {"pairs": 8}}
    saved = json.loads(path.read_bytes())
    for name in ("sha256", "files", "replacing"):
        del saved[name]
    old = RunFolder(folder.path.with_name(run_id(config)))
    folder.path.rename(old.path)
    (old.path / "status.json").write_text(json.dumps(saved | {"run": old.id}))
    assert not old.record().sealed
    with old.exclusive():
        old.set_status(message="looked at")
    assert old.record().sealed
    assert set(old.record().files) == {f"{table}.parquet" for table in TABLES}
    (old.path / "status.json").write_text(json.dumps(saved | {"config": {"task": {"pairs": 9}}}))
    with pytest.raises(StoreError, match="its config belongs to another run"):
        old.status()


@pytest.mark.parametrize("name", ["a\0b", "", "/etc/passwd", "../other/status.json", "weights/../../x"])
def test_a_status_vouches_for_files_of_its_run_only(name: str) -> None:
    forged = blank(ID, status="done").accepting({name: "0" * 64})
    with pytest.raises(ValueError, match="which cannot be a file of a run"):
        read_record(write_record(forged), ID)


def test_a_status_that_vouches_for_thousands_of_files_is_checked_in_bounded_time(folder: RunFolder) -> None:
    record = folder.record()
    many = dict.fromkeys(map(str, range(5_000)), "0" * 64)
    (folder.path / "status.json").write_bytes(write_record(replace(record, files=many)))
    *missing, rest = [problem for problem in folder.problems() if "among" not in problem]
    assert len(missing) == 20
    assert rest == f"4,980 more files of {folder.path} were not checked."


def test_a_status_of_a_newer_version_is_one_line_and_not_called_damaged(folder: RunFolder, tmp_path: Path) -> None:
    path = folder.path / "status.json"
    rest = path.read_bytes().partition(b"\n")[2].replace(b'"run":', b'"novelty": 1,\n "run":', 1)
    path.write_bytes(FIRST_LINE.format(sha256(rest)).encode() + rest)
    said = f"the status of run {ID} has unknown name 'novelty': a newer mecheval wrote it; update to read it."
    with pytest.raises(StoreError) as refused:
        folder.status()
    assert str(refused.value) == said
    with pytest.warns(StoreWarning, match=f"run {ID} is left out: {said}"):
        assert len(Store(tmp_path).history()) == 0


def kill_at(count: int, work: Callable[[], None]) -> int:
    """Do `work` in a child that is killed before (even) or after (odd) one of its file replacements; how it ended."""

    def counted() -> None:
        seen = 0

        def write(path: Path, content: bytes) -> None:
            nonlocal seen
            for moment in (False, True):
                if moment:
                    write_atomic(path, content)
                if seen == count:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1

        folder_module.write_atomic = write  # type: ignore[assignment, attr-defined]
        work()

    return outcome(in_child(counted))


def test_killed_at_any_write_every_file_is_vouched_for(folder: RunFolder) -> None:
    def replace() -> None:
        with folder.exclusive():
            rows = {"effects": [EFFECT | {"site": "new"}], "verdicts": [VERDICT | {"layer": 7}]}
            folder.replace(rows, ["state", "split"], "interventions")

    folder.read("effects")  # loads DuckDB before the fork
    kills = 0
    while kill_at(kills, replace):
        kills += 1
        fresh = RunFolder(folder.path)
        assert fresh.problems() == []
        assert {row["site"] for row in fresh.read("effects")} <= {"new", EFFECT["site"]}
    assert kills == 10  # status, effects, verdicts, environment and status again, before and after each
    assert RunFolder(folder.path).record().replacing == {}
    assert [row["layer"] for row in RunFolder(folder.path).read("verdicts")] == [7]
